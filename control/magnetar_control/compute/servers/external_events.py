# SPDX-License-Identifier: GPL-3.0-or-later
"""Events about servers from other services. No action waits for them: hosts report the state of their guests, and
networks and volumes of servers come from their services. Most events are therefore only compared with the current
state, and accepted when they match it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.target import ServerTarget, enqueue_action
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict
from magnetar_core.power import OFF, POWERS, RUNNING

#: Results of an event: it is accepted; required data is missing; its server or resource does not exist; it cannot be
#: followed.
TAKEN, WRONG, MISSING, IN_VAIN = 200, 400, 404, 422
POWER = {"POWER_ON": RUNNING, "POWER_OFF": OFF}


class ExternalEvent(NamedTuple):
    """An event from another service about a server (Nova's API os-server-external-events). *name*: one of ``KINDS``.
    *tag*: the id of the port, volume or accelerator request, or the power state."""

    server_id: str
    name: str
    tag: str | None


@use_case("os_compute_api:os-server-external-events:create")
def accept_external_events(caller: Caller, events: Sequence[ExternalEvent]) -> list[int]:
    """Handle *events*, and return their HTTP statuses in the order of the events: ``TAKEN`` (200), ``WRONG`` (400),
    ``MISSING`` (404) or ``IN_VAIN`` (422)."""
    located_servers = servers.find_server_rows(caller.cloud.store, {event.server_id for event in events})
    return [_accept_event(caller, event, located_servers.get(event.server_id)) for event in events]


def _accept_event(caller: Caller, event: ExternalEvent, located_server: Any) -> int:
    if located_server is None:
        return MISSING
    if event.tag is None and event.name not in UNTAGGED:
        return WRONG
    database, row = located_server
    if row is None or not row.host:
        return IN_VAIN
    return KINDS[event.name](caller, ServerTarget(database, row), event.tag)


def _accept_port_event(_caller: Caller, target: ServerTarget, tag: str | None) -> int:
    """Return ``TAKEN``, or ``MISSING`` when the server does not have the port *tag*. Nothing else is done: no action
    waits for ports, because NICs are created before a guest runs."""
    return TAKEN if tag is None or any(nic["port_id"] == tag for nic in target.row.nics) else MISSING


def _accept_unplug(_caller: Caller, _target: ServerTarget, _tag: str | None) -> int:
    return TAKEN


def _accept_port_deletion(caller: Caller, target: ServerTarget, tag: str | None) -> int:
    """Queue the detachment of the NIC whose port *tag* was deleted, and return ``TAKEN``. Return ``MISSING`` if the
    server has no such NIC, ``IN_VAIN`` if the server's state does not allow detaching."""
    mac = next((nic["mac"] for nic in target.row.nics if nic["port_id"] == tag), None)
    if mac is None:
        return MISSING
    if not servers.action_is_allowed(target.row, "detach_interface"):
        return IN_VAIN
    try:
        enqueue_action(caller, target, "detach_interface", {"port_id": tag, "mac": mac})
    except (Conflict, servers.Moved):  # another action on the server has begun since it was read
        return IN_VAIN
    return TAKEN


def _accept_volume_event(_caller: Caller, target: ServerTarget, tag: str | None) -> int:
    """Return ``TAKEN``, or ``MISSING`` when the server does not have the volume *tag*. Nothing else is needed: a
    guest's disk is resized when its volume is extended, and a conductor that waits for a reimaged volume asks the
    volume service itself."""
    return TAKEN if any(attachment["volume_id"] == tag for attachment in target.row.volumes) else MISSING


def _accept_power_event(_caller: Caller, target: ServerTarget, tag: str | None) -> int:
    """Return ``TAKEN`` when *tag* is the power state that the host reports, ``IN_VAIN`` when it is another power state
    (the server is not changed), ``WRONG`` when it is not a power state."""
    if tag not in POWER:
        return WRONG
    return TAKEN if target.row.power_state == POWERS[POWER[tag]].number else IN_VAIN


def _refuse_event(_caller: Caller, _target: ServerTarget, _tag: str | None) -> int:
    """Return ``IN_VAIN`` for an event about accelerators, because servers here have none."""
    return IN_VAIN


KINDS = {"network-changed": _accept_port_event, "network-vif-plugged": _accept_port_event,
         "network-vif-unplugged": _accept_unplug,
         "network-vif-deleted": _accept_port_deletion, "volume-extended": _accept_volume_event,
         "power-update": _accept_power_event,
         "accelerator-request-bound": _refuse_event, "volume-reimaged": _accept_volume_event}
#: Events without a required tag.
UNTAGGED = frozenset(name for name in KINDS if name.startswith("network-"))
