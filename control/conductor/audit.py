# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit compares databases, services and hosts, and finds what is stuck, lost or left behind.

``read_state`` reads everything once, ``CHECKS`` are pure functions over that, ``run`` returns what they find twice: a
cloud at work changes while it is read. A cloud at rest has no findings.
A missing row proves nothing: the database may be an older backup. A server counts as deleted when its row or its
mapping says so. A port or volume counts as free when the host says that the guest does not have it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from magnetar_control.agents import Agents
from magnetar_control.scheduler.request_spec import amounts_of
from magnetar_control.services import Services
from magnetar_control.store import migrations
from magnetar_control.store.allocations import RESOURCES
from magnetar_control.store.store import CELL0, Store
from magnetar_core.power import BUILDING, ERROR, RESIZED, VM_STATES, number

from .audit_state import AuditState, parts, read_state


@dataclass(frozen=True)
class Finding:
    """*kind*: name of the check. *id*: of the server, claim, port … *place*: cell or host. *text*: for operators."""

    kind: str
    id: str
    place: str
    text: str


#: Names of networks that the cloud makes on hosts; those of operators have other names.
OF_THE_CLOUD = re.compile("mag-[0-9a-f]{8}")
Found = Iterator[Finding]


def stuck(state: AuditState) -> Found:
    """A server with a task_state, or building, without an action."""
    for id, row in state.servers.items():
        if not row.busy and (row.task_state is not None or row.vm_state == BUILDING):
            yield Finding("stuck", id, state.cells[id], f"server {id} is {row.vm_state}, {row.task_state}; no action "
                          "does anything to it")


def copy(state: AuditState) -> Found:
    """A server that is in its cell and in cell0: a conductor crashed while it moved."""
    for id in state.copies:
        yield Finding("copy", id, CELL0, f"server {id} is in its cell, and still in cell0")


def counter(state: AuditState) -> Found:
    """A host whose counters are not the sum of its claims."""
    for one in state.counters:
        yield Finding("counter", one.host, one.host, f"host {one.host} counts {one.counted}, its claims are {one.held}")


def lost(state: AuditState) -> Found:
    """A server that is mapped to a cell without a row there, and that nothing says was deleted: it may be alive."""
    for id, cell in state.lost.items():
        names = sorted(name for name, found in state.there.items() if id in found)
        yield Finding("lost", id, cell, f"server {id} is mapped to cell {cell}, whose database has no row of it (an "
                      f"older backup, or another database?); hosts that have it: "
                      f"{', '.join(names) or 'none that answers'}; nothing of it is touched")


def orphan(state: AuditState) -> Found:
    """A claim of a server that is gone, or of a host that the server has left."""
    for claim in state.claims:
        row, name = state.servers.get(claim.server_id), state.hosts[claim.host_id].name
        free = name in state.there and claim.server_id not in state.there[name]
        if row is None:
            if claim.server_id in state.deleted or (free and claim.server_id not in state.unknown):
                yield _claim("orphan", state, claim, "is of a server that is gone")
            continue
        moving = {move.uuid for move in state.moves.get(row.id, ())}
        if row.busy or claim.consumer_id in moving or (row.vm_state == ERROR and row.host):
            continue  # of a failed move both hosts stay claimed until somebody looks
        if (free and name != row.host) or (name == row.host and claim.consumer_id != row.id):
            yield _claim("elsewhere", state, claim, f"is held while the server is on {row.host}")


def _claim(kind: str, state: AuditState, claim: Any, why: str) -> Finding:
    name = state.hosts[claim.host_id].name
    return Finding(kind, claim.consumer_id, name, f"the claim of {claim.consumer_id} (server {claim.server_id}) on "
                   f"{name} {why}")


def unclaimed(state: AuditState) -> Found:
    """A server whose claim on its host differs from its flavor."""
    held = {(claim.consumer_id, state.hosts[claim.host_id].name): claim for claim in state.claims}
    for id, row in state.servers.items():
        if row.busy or not row.host or row.vm_state == ERROR:
            continue
        blocks = orjson.loads(row.request).get("blocks") or ()
        amounts = amounts_of(orjson.loads(row.flavor), any(
            one["boot_index"] == 0 and one["destination_type"] == "volume" for one in blocks))
        claim = held.get((id, row.host))
        had = None if claim is None else tuple(int(getattr(claim, name)) for name in RESOURCES)
        if had != tuple(amounts):
            yield Finding("unclaimed", id, row.host, f"server {id} needs {tuple(amounts)}, and holds {had}")


def port(state: AuditState) -> Found:
    """A port of a server that is gone, or whose row does not have it."""
    for id, server in state.ports.items():
        row = state.servers.get(server)
        if row is None and server in state.deleted:
            yield Finding("port", id, server, f"port {id} is of server {server}, which is gone")
        elif row is not None and not row.busy and id not in {
                one["port_id"] for one in orjson.loads(row.interfaces)}:
            yield from _kept("port", "nics", state, row, id)


def attachment(state: AuditState) -> Found:
    """An attachment of a server that is gone, or whose row does not have it; or a row with an attachment that the
    volume service does not have."""
    for id, server in state.attachments.items():
        row = state.servers.get(server)
        if row is None and server in state.deleted:
            yield Finding("attachment", id, server, f"attachment {id} is of server {server}, which is gone")
        elif row is not None and not row.busy and id not in _attached(row):
            yield from _kept("attachment", "volumes", state, row, id)
    for server, row in state.servers.items():
        for id in [] if row.busy else _attached(row):
            if state.attachments.get(id) != server:
                yield Finding("detached", id, server, f"server {server} has attachment {id}, which nobody keeps for it")


def _kept(kind: str, of: str, state: AuditState, row: Any, id: str) -> Found:
    """A port or attachment that is missing in the server's row. Where the guest has it, it is only reported."""
    without = state.without(row, of)
    if without:
        yield Finding(kind, id, row.id, f"{kind} {id} is kept for server {row.id}, which does not have it")
    elif without is False:
        yield Finding("kept", id, row.id, f"{kind} {id} is kept for server {row.id}, whose row lacks it; its guest has "
                      f"{of} that the row does not know")


def _attached(row: Any) -> list[str]:
    return [one["attachment_id"] for one in orjson.loads(row.volumes) if one.get("attachment_id")]


def move(state: AuditState) -> Found:
    """A migration that neither goes on nor waits for confirm or revert."""
    for id, moves in state.moves.items():
        row = state.servers.get(id)
        for one in moves:
            waits = row is not None and row.vm_state == RESIZED and one.status in migrations.KEPT
            if not waits and (row is None or not row.busy) and id not in state.unknown:
                yield Finding("move", one.uuid, id, f"migration {one.uuid} of server {id} is {one.status}, and nobody "
                              "goes on with it")


def left(state: AuditState) -> Found:
    """A guest whose server is deleted, unknown, or on another host."""
    for host, found in state.there.items():
        for id in found:
            row = state.servers.get(id)
            if row is None and id not in state.unknown:
                kind = "left" if id in state.deleted else "stranger"
                yield Finding(kind, id, host, f"host {host} has server {id}, which "
                              + ("is deleted" if kind == "left" else "no database knows"))
            elif row is not None and not row.busy and row.host != host:
                yield Finding("double", id, host, f"host {host} has server {id}, which is on {row.host}")


def absent(state: AuditState) -> Found:
    """A server that its host does not have, or has with other volumes, NICs or power state."""
    for id, row in state.servers.items():
        if row.busy or row.host not in state.there or row.vm_state == ERROR:
            continue
        resource = state.there[row.host].get(id)
        if resource is None:
            yield Finding("absent", id, row.host, f"server {id} is {row.vm_state}, and {row.host} does not have it")
            continue
        for kind, (noted, there) in parts(row, resource).items():
            if noted != there:
                yield Finding(kind, id, row.host, f"server {id} is to have the {kind} {sorted(noted)}, and has "
                              f"{sorted(there)}")
        power, may = resource["power_state"], VM_STATES[row.vm_state].powers if row.vm_state in VM_STATES else ()
        if (may and power not in may) or number(power) != row.power_state:
            yield Finding("power", id, row.host, f"server {id} is {row.vm_state} ({row.power_state}), not {power}")


def network(state: AuditState) -> Found:
    """A deleted network that is still on a host and that no guest uses."""
    for host, nets in state.nets.items():
        used = {nic.get(name) for one in state.there[host].values() for nic in one.get("networks") or ()
                for name in ("network", "network_id")}
        for net in nets:
            ours = OF_THE_CLOUD.fullmatch(net["name"])
            if ours and net["name"] not in state.networks | used and net["id"] not in used:
                yield Finding("network", net["name"], host, f"host {host} has network {net['name']}, which is deleted")


CHECKS: tuple[Callable[[AuditState], Found], ...] = (
    stuck, copy, counter, lost, orphan, unclaimed, port, attachment, move, left, absent, network)


def findings(state: AuditState) -> list[Finding]:
    """The findings of one reading."""
    return [found for one in CHECKS for found in one(state)]


def run(store: Store, agents: Agents, services: Services, pause: float = 2.0) -> list[Finding]:
    """The findings that two readings, *pause* seconds apart, have in common."""
    return run_with_state(store, agents, services, pause)[0]


def run_with_state(store: Store, agents: Agents, services: Services,
                   pause: float = 2.0) -> tuple[list[Finding], AuditState]:
    """As ``run``, with the last reading, which says who did not answer."""
    state = read_state(store, agents, services)
    before = set(findings(state))
    if not before:
        return [], state
    time.sleep(pause)
    state = read_state(store, agents, services)
    return [one for one in findings(state) if one in before], state
