# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``rebuild``: the root disk is made anew of an image. One that is a volume is imaged anew by the volume
service, on whichever host it lies, while the guest is off."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from magnetar_control.conductor.steps import block_devices, disk_keys, machines, tpm_secrets
from magnetar_control.conductor.steps.guest_data import told
from magnetar_control.conductor.steps.images import deliver
from magnetar_control.conductor.steps.schedule import spec_of
from magnetar_control.conductor.worker.retry import attempt, retry_forever
from magnetar_control.conductor.worker.work import Work
from magnetar_control.scheduler.choose import NoValidHost, why_not_image
from magnetar_control.scheduler.place import read_hosts
from magnetar_control.services import Document
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import servers
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware.merge import asked_of
from magnetar_core.http.client import Client
from magnetar_core.power import REBUILD, STOPPED, number

from .server_create import warned


def rebuild(work: Work) -> None:
    """Make the root disk anew of the image. A stopped server stays off, as in Nova. Where it may not have another image
    it is made of the one of before again, in the transaction in which the action ends: else the same image would not be
    looked at the next time."""
    asked = False

    def do() -> dict[str, Any]:
        nonlocal asked
        if "before" in work.args:
            _check_image(work)
        asked = True
        with work.client() as client:
            return _rebuilt(work, client)

    def fails(error: MagnetarError) -> None:
        if not asked:
            work.defer(**work.args["before"])
        work.error(error)

    attempt(work, do, fails, partial(retry_forever, work))


def _rebuilt(work: Work, client: Client) -> dict[str, Any]:
    """Have the host make it; returns values for the server."""
    before = work.args.get("vm_state") or work.server.vm_state
    root = block_devices.root_of(work)
    if root is not None and work.args.get("reimage"):
        _reimage(work, client, root)
    work.note(task_state=REBUILD[-1])
    if root is None:
        deliver(work, client, work.server.host, work.args["image"])
    with work.guest(client) as watch:
        answer = client.event("server", work.id, "rebuild", _anew(work), request_id=work.idempotency_key,
                              progress=watch)
    disk_keys.settle(work)
    found = client.ensure("server", work.id, {"name": work.server.hostname or work.server.name,
                                              "power": "off" if before == STOPPED else "running",
                                              **tpm_secrets.given(work)})
    warned(work, answer)
    return {"vm_state": STOPPED if before == STOPPED else "active", "fault": None, "launched_at": now(),
            "power_state": number(found["resource"]["power_state"]), **machines.recorded(work, found["resource"])}


def _check_image(work: Work) -> None:
    """Raises ``NoValidHost`` where the server may not be on its host with another image than that of before."""
    conductor, host = work.conductor, work.server.host
    spec, states = spec_of(work), conductor.states
    if why_not_image(states, host, spec):
        read_hosts(conductor.store.api, states)  # it may have been put into an aggregate a moment ago
        if why := why_not_image(states, host, spec):
            raise NoValidHost(explanation=why)
    if work.action.attempts == 1:  # a silent host is tried for as long as it takes
        work.notifications.selected(host)


def _reimage(work: Work, client: Client, root: Document) -> None:
    """Make the root volume anew. Once that is done, a guest that this action has started already is not stopped."""
    if not work.conductor.services.volume.reimaged(root["volume_id"], work.idempotency_key):
        work.begin("The server was deleted, or its state was reset, before it was rebuilt.")
        work.confirm_lease()
        with work.guest(client) as watch:
            client.ensure("server", work.id, {"power": "off"}, progress=watch)
    block_devices.reimage(work, root, work.args["image"])


def _anew(work: Work) -> dict[str, Any]:
    """The body of the agent's rebuild. A new key or new files are saved with the server."""
    own = {"image": work.args["image"]} if block_devices.root_of(work) is None else {"keep_volume": True}
    args: dict[str, Any] = {**own, "metadata": orjson.loads(work.server.metadata),
                            "preserve_ephemeral": work.args["preserve_ephemeral"],
                            "hardware": {}, **asked_of(work.flavor, orjson.loads(work.server.image)),
                            **({"user_data": work.server.user_data} if work.server.user_data else {})}
    replaced = {name: work.args[name] for name in ("public_key", "personality") if name in work.args}
    if replaced:
        work.note(request=servers.text({**work.request, **replaced}))
    if "personality" in replaced:
        args["personality"] = replaced["personality"] or None
    return {**args, **told(work, work.server.host), **disk_keys.renewed(work), **tpm_secrets.given(work)}
