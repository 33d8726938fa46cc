# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a server where it is: power, reboot, rescue, rebuild, crash dump. Most are a state to be had."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.store import servers
from magnetar_control.web import Fault
from magnetar_core.actions import ERROR, POWER, STOPPED
from magnetar_core.errors import MagnetarError

from . import build
from .work import HostDown, Work

#: Seconds between two tries while the host's agent does not answer, and how often.
AGAIN, TRIES = 2.0, 30


def patiently(work: Work, error: HostDown, **values: Any) -> None:
    """The host does not answer: try again in a moment, at last give up."""
    if work.action.attempts < TRIES:
        work.later(AGAIN)
    else:
        work.failed(error, **values)


def converge(work: Work) -> None:
    """The rows of ``ACTIONS`` that say what the agent's server is to be."""
    want = dict(work.rule.want or {})
    try:
        with work.event(), work.client() as client:
            answer = client.ensure("server", work.id, want, timeout=work.conductor.settings.action_timeout)
    except HostDown as error:
        patiently(work, error)
    except MagnetarError as error:
        work.failed(error)
    else:
        work.done(power_state=POWER.get(answer["resource"]["power_state"], 0), fault=None)


def reboot(work: Work) -> None:
    """soft or hard; a server in error that comes up again is active."""
    try:
        with work.event(), work.client() as client:
            if work.server.vm_state in (STOPPED, "suspended", "paused", ERROR):
                client.ensure("server", work.id, {"power": "running"})
            else:
                client.event("server", work.id, "reboot", {"type": work.args["type"]},
                             timeout=work.conductor.settings.action_timeout,
                             request_id=work.once)
            found = client.get("server", work.id)
    except HostDown as error:
        patiently(work, error)
    except MagnetarError as error:
        work.failed(error)
    else:
        work.done(power_state=POWER.get(found["power_state"], 0), fault=None)


def crash_dump(work: Work) -> None:
    """An NMI into the guest."""
    try:
        with work.event(), work.client() as client:
            client.event("server", work.id, "crash_dump", {}, request_id=work.once)
    except HostDown as error:
        patiently(work, error)
    except MagnetarError as error:
        work.failed(error)
    else:
        work.done()


def rescue(work: Work) -> None:
    """Boot from another image, the root disk as second disk."""
    image = work.args.get("image")
    try:
        with work.event(), work.client() as client:
            if image:
                build.image(work, client, work.server.host, image)
            client.ensure("server", work.id, {"rescue": {"image": image} if image else {}, "power": "running"},
                          timeout=work.conductor.settings.action_timeout)
    except HostDown as error:
        patiently(work, error)
    except MagnetarError as error:
        work.error(error)
    else:
        work.done(power_state=POWER["running"], fault=None)


def unrescue(work: Work) -> None:
    """Boot from the root disk again."""
    try:
        with work.event(), work.client() as client:
            client.ensure("server", work.id, {"rescue": None, "power": "running"},
                          timeout=work.conductor.settings.action_timeout)
    except HostDown as error:
        patiently(work, error)
    except MagnetarError as error:
        work.error(error)
    else:
        work.done(power_state=POWER["running"], fault=None)


def rebuild(work: Work) -> None:
    """The root disk anew. A stopped server stays off (as Nova does)."""
    before = work.args.get("vm_state") or work.server.vm_state
    args: dict[str, Any] = {"image": work.args["image"], "metadata": orjson.loads(work.server.metadata),
                            "preserve_ephemeral": work.args["preserve_ephemeral"]}
    if work.server.user_data:
        args["user_data"] = work.server.user_data
    try:
        with work.event(), work.client() as client:
            build.image(work, client, work.server.host, work.args["image"])
            replaced = {name: work.args[name] for name in ("public_key", "personality") if name in work.args}
            if replaced:
                work.note(request=servers.text({**work.request, **replaced}))
                work.load()
            if "personality" in replaced:
                args["personality"] = replaced["personality"] or None
            if "public_key" in replaced:
                args["key_name"] = build.keypair(work, client, work.server.host) if work.args["public_key"] else None
            client.event("server", work.id, "rebuild", args, timeout=work.conductor.settings.action_timeout,
                         request_id=work.once)
            power = "off" if before == STOPPED else "running"
            found = client.ensure("server", work.id, {"name": work.server.hostname or work.server.name, "power": power})
    except HostDown as error:
        patiently(work, error)
    except (MagnetarError, Fault) as error:
        work.error(error)
    else:
        work.done(vm_state=STOPPED if before == STOPPED else "active", fault=None,
                  power_state=POWER.get(found["resource"]["power_state"], 0))
