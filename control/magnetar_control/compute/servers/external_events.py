# SPDX-License-Identifier: GPL-3.0-or-later
"""What other services tell of servers. Nothing here waits for such a word: hosts say themselves what their guests are,
and the networks and volumes of servers are as their services have them. So most of it is only held against what there
is: it is taken when it is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.target import Target, enqueue
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict
from magnetar_core.power import OFF, POWERS, RUNNING

#: What becomes of an event: it is taken; it lacks what it must say; there is no such thing; nobody can follow it.
TAKEN, WRONG, MISSING, IN_VAIN = 200, 400, 404, 422
POWER = {"POWER_ON": RUNNING, "POWER_OFF": OFF}


class ExternalEvent(NamedTuple):
    """*name*: one of ``KINDS``. *tag*: the port, volume, state or request that it is about."""

    server_id: str
    name: str
    tag: str | None


@use_case("os_compute_api:os-server-external-events:create")
def take(caller: Caller, events: Sequence[ExternalEvent]) -> list[int]:
    """What becomes of each."""
    found = servers.find_each(caller.cloud.store, {event.server_id for event in events})
    return [_take(caller, event, found.get(event.server_id)) for event in events]


def _take(caller: Caller, event: ExternalEvent, found: Any) -> int:
    if found is None:
        return MISSING
    if event.tag is None and event.name not in UNTAGGED:
        return WRONG
    database, row = found
    if row is None or not row.host:
        return IN_VAIN
    return KINDS[event.name](caller, Target(database, row), event.tag)


def _port(_caller: Caller, target: Target, tag: str | None) -> int:
    """NICs are there before a guest runs, and nobody waits for their ports."""
    return TAKEN if tag is None or _has(target.row.interfaces, "port_id", tag) else MISSING


def _unplugged(_caller: Caller, _target: Target, _tag: str | None) -> int:
    return TAKEN


def _port_deleted(caller: Caller, target: Target, tag: str | None) -> int:
    """The guest lets go of the NIC, if it is in a state to do so."""
    mac = next((one["mac"] for one in orjson.loads(target.row.interfaces) if one["port_id"] == tag), None)
    if mac is None:
        return MISSING
    if not servers.allowed(target.row, "detach_interface"):
        return IN_VAIN
    try:
        enqueue(caller, target, "detach_interface", {"port_id": tag, "mac": mac})
    except (Conflict, servers.Moved):  # something else is being done to it since it was read
        return IN_VAIN
    return TAKEN


def _volume(_caller: Caller, target: Target, tag: str | None) -> int:
    """A volume grows together with the disk that the guest sees; whether one is imaged anew, the conductor asks."""
    return TAKEN if _has(target.row.volumes, "volume_id", tag) else MISSING


def _powered(_caller: Caller, target: Target, tag: str | None) -> int:
    """The host tells whether the guest runs. Who says otherwise is mistaken."""
    if tag not in POWER:
        return WRONG
    return TAKEN if target.row.power_state == POWERS[POWER[tag]].number else IN_VAIN


def _nobody(_caller: Caller, _target: Target, _tag: str | None) -> int:
    """Of what no server has: accelerators."""
    return IN_VAIN


def _has(text: str, key: str, wanted: str | None) -> bool:
    return any(one[key] == wanted for one in orjson.loads(text))


KINDS = {"network-changed": _port, "network-vif-plugged": _port, "network-vif-unplugged": _unplugged,
         "network-vif-deleted": _port_deleted, "volume-extended": _volume, "power-update": _powered,
         "accelerator-request-bound": _nobody, "volume-reimaged": _volume}
#: Those that need not say what they are about.
UNTAGGED = frozenset(name for name in KINDS if name.startswith("network-"))
