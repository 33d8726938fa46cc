# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a server where it is: power, reboot, rescue, rebuild, crash dump. Most are a state to be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_control.store import servers
from magnetar_control.store.database import now
from magnetar_core.actions import ERROR, POWER, STOPPED
from magnetar_core.client import Client
from magnetar_core.errors import MagnetarError

from . import build
from .work import HostDown, Work

#: Seconds between two tries while the host's agent does not answer, and how often.
AGAIN, TRIES = 2.0, 30
#: Seconds between tries of what is not given up, after these.
SELDOM = 20.0


def patient(work: Work) -> bool:
    """A host does not answer: whether the action is tried again in a moment."""
    if work.action.attempts < TRIES:
        work.later(AGAIN)
        return True
    return False


def patiently(work: Work, error: HostDown, **values: Any) -> None:
    """As ``patient``; at last the action has failed."""
    if not patient(work):
        work.failed(error, **values)


def once_more(work: Work) -> None:
    """Try until the host answers: its guest may have a volume or NIC that nobody else must get."""
    if not patient(work):
        work.later(SELDOM)


def attempt(work: Work, ask: Callable[[Client], Mapping[str, Any]], fails: Callable[[Exception], None]) -> None:
    """*ask* the host's agent, as the action's event; what that returns is set of the server then. *fails* takes what
    the agent, or a service, refused."""
    try:
        with work.event(), work.client() as client:
            values = ask(client)
    except HostDown as error:
        patiently(work, error)
    except MagnetarError as error:
        fails(error)
    else:
        work.done(**values)


def converge(work: Work) -> None:
    """The rows of ``ACTIONS`` that say what the agent's server is to be."""
    def ask(client: Client) -> dict[str, Any]:
        answer = client.ensure("server", work.id, dict(work.rule.want or {}),
                               timeout=work.conductor.settings.action_timeout)
        return {"power_state": POWER.get(answer["resource"]["power_state"], 0), "fault": None}

    attempt(work, ask, work.failed)


def reboot(work: Work) -> None:
    """soft or hard; a server in error that comes up again is active."""
    def ask(client: Client) -> dict[str, Any]:
        if work.server.vm_state in (STOPPED, "suspended", "paused", ERROR):
            client.ensure("server", work.id, {"power": "running"})
        else:
            client.event("server", work.id, "reboot", {"type": work.args["type"]},
                         timeout=work.conductor.settings.action_timeout, request_id=work.once)
        return {"power_state": POWER.get(client.get("server", work.id)["power_state"], 0), "fault": None}

    attempt(work, ask, work.failed)


def crash_dump(work: Work) -> None:
    """An NMI into the guest."""
    def ask(client: Client) -> dict[str, Any]:
        client.event("server", work.id, "crash_dump", {}, request_id=work.once)
        return {}

    attempt(work, ask, work.failed)


def rescue(work: Work) -> None:
    """Boot from another image, the root disk as second disk."""
    image = work.args.get("image")

    def ask(client: Client) -> dict[str, Any]:
        if image:
            build.image(work, client, work.server.host, image)
        return _boot(work, client, {"image": image} if image else {})

    attempt(work, ask, work.error)


def unrescue(work: Work) -> None:
    """Boot from the root disk again."""
    attempt(work, lambda client: _boot(work, client, None), work.error)


def _boot(work: Work, client: Client, rescue_: Mapping[str, Any] | None) -> dict[str, Any]:
    client.ensure("server", work.id, {"rescue": rescue_, "power": "running"},
                  timeout=work.conductor.settings.action_timeout)
    return {"power_state": POWER["running"], "fault": None}


def rebuild(work: Work) -> None:
    """The root disk anew. A stopped server stays off (as Nova does)."""
    before = work.args.get("vm_state") or work.server.vm_state

    def ask(client: Client) -> dict[str, Any]:
        build.image(work, client, work.server.host, work.args["image"])
        client.event("server", work.id, "rebuild", _anew(work, client),
                     timeout=work.conductor.settings.action_timeout, request_id=work.once)
        found = client.ensure("server", work.id, {"name": work.server.hostname or work.server.name,
                                                  "power": "off" if before == STOPPED else "running"})
        return {"vm_state": STOPPED if before == STOPPED else "active", "fault": None, "launched_at": now(),
                "power_state": POWER.get(found["resource"]["power_state"], 0)}

    attempt(work, ask, work.error)


def _anew(work: Work, client: Client) -> dict[str, Any]:
    """What the agent is told of a rebuild. Key and files that are new are noted as the server's own."""
    args: dict[str, Any] = {"image": work.args["image"], "metadata": orjson.loads(work.server.metadata),
                            "preserve_ephemeral": work.args["preserve_ephemeral"]}
    if work.server.user_data:
        args["user_data"] = work.server.user_data
    replaced = {name: work.args[name] for name in ("public_key", "personality") if name in work.args}
    if replaced:
        work.note(request=servers.text({**work.request, **replaced}))
    if "personality" in replaced:
        args["personality"] = replaced["personality"] or None
    if "public_key" in replaced:
        args["key_name"] = build.keypair(work, client, work.server.host) if work.args["public_key"] else None
    return args
