# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``rebuild``: the root disk is made anew of an image."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.store import servers
from magnetar_control.store.database import now
from magnetar_core.client import Client
from magnetar_core.power import STOPPED, number

from .build import keypair
from .images import deliver
from .retry import of_host, retry_forever
from .work import Work


@of_host(Work.error, retry_forever)
def rebuild(work: Work, client: Client) -> dict[str, Any]:
    """Make the root disk anew of the image. A stopped server stays off, as in Nova."""
    before = work.args.get("vm_state") or work.server.vm_state
    deliver(work, client, work.server.host, work.args["image"])
    with work.guest(client) as watch:
        client.event("server", work.id, "rebuild", _anew(work, client), request_id=work.idempotency_key, progress=watch)
    found = client.ensure("server", work.id, {"name": work.server.hostname or work.server.name,
                                              "power": "off" if before == STOPPED else "running"})
    return {"vm_state": STOPPED if before == STOPPED else "active", "fault": None, "launched_at": now(),
            "power_state": number(found["resource"]["power_state"])}


def _anew(work: Work, client: Client) -> dict[str, Any]:
    """The body of the agent's rebuild. A new key or new files are saved with the server."""
    args: dict[str, Any] = {"image": work.args["image"], "metadata": orjson.loads(work.server.metadata),
                            "preserve_ephemeral": work.args["preserve_ephemeral"],
                            **({"user_data": work.server.user_data} if work.server.user_data else {})}
    replaced = {name: work.args[name] for name in ("public_key", "personality") if name in work.args}
    if replaced:
        work.note(request=servers.text({**work.request, **replaced}))
    if "personality" in replaced:
        args["personality"] = replaced["personality"] or None
    if "public_key" in replaced:
        args["key_name"] = keypair(work, client, work.server.host) if work.args["public_key"] else None
    return args
