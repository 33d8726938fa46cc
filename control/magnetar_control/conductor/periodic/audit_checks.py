# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of the audit: pure functions of one page (``AuditState``).

A missing row proves nothing: the database may be an older backup. A server counts as deleted if its row or its mapping
says so. A port or volume counts as free if the host says that the guest does not have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from magnetar_control.documents import attachment_ids
from magnetar_control.scheduler.request_spec import amounts_held_by
from magnetar_control.store.claims import allocations, nic_bandwidth
from magnetar_control.store.servers.migrations import UNCONFIRMED, any_migration_at
from magnetar_control.store.store import CELL0
from magnetar_core.power import BUILDING, ERROR, RESIZED, VM_STATES, power_number

from .audit_state import AuditedClaim, AuditedServer, AuditState, Finding, volumes_and_nics

#: Names of networks that the cloud makes on hosts; operators' networks have other names.
OF_THE_CLOUD = re.compile("mag-[0-9a-f]{8}")
Findings = Iterator[Finding]


def find_stuck_servers(state: AuditState) -> Findings:
    """Yield findings about servers that have a task_state or the vm_state building, but no action."""
    for id, row in state.servers.items():
        if not row.busy and (row.task_state is not None or row.vm_state == BUILDING):
            yield Finding("stuck", id, state.cells[id], f"server {id} is {row.vm_state}, {row.task_state}; no action "
                          "does anything to it")


def find_server_copies(state: AuditState) -> Findings:
    """Yield findings about servers with rows in two cells. The kind is *copy* if a conductor crashed while it moved the
    server to another cell and left the old row behind, *twin* if the cause of the second row is unknown."""
    for id, cell in state.copies.items():
        yield Finding("copy", id, cell, f"server {id} is in its cell, and still in "
                      f"{'cell0' if cell == CELL0 else f'cell {cell}'}, which it has left")
    for id, cell in state.twins.items():
        yield Finding("twin", id, cell, f"server {id} has rows in the cells {state.cells[id]} and {cell}, and has left "
                      "neither (an older backup?): remove those of the cell to which it is not mapped")


def find_wrong_counters(state: AuditState) -> Findings:
    """Yield findings about hosts whose counters of used resources differ from the sum of the claims on them."""
    for difference in state.counters:
        yield Finding("counter", difference.host, difference.host, difference.text)


def find_wrong_quota_usage(state: AuditState) -> Findings:
    """Yield findings about projects in which the stored quota usage of a user differs from the resources of this user's
    servers."""
    for cell, comparison in state.usage:
        yield Finding("usage", comparison.project_id, cell, comparison.text)


def find_lost_servers(state: AuditState) -> Findings:
    """Yield findings about servers that are mapped to a cell that has no row for them, and that are not known to be
    deleted."""
    for id, cell in state.lost.items():
        names = sorted(name for name, guests in state.guests.items() if id in guests)
        yield Finding("lost", id, cell, f"server {id} is mapped to cell {cell}, whose database has no row of it (an "
                      f"older backup, or another database?); hosts that have it: "
                      f"{', '.join(names) or 'none that answers'}; nothing of it is touched")


def find_orphan_claims(state: AuditState) -> Findings:
    """Yield findings about claims whose server is deleted, or no longer on the host of the claim."""
    claims = (claim for server_claims in state.claims.values() for claim in server_claims)
    for claim in filter(allocations.is_server_claim, claims):  # other claims are removed by their owner
        row, name = state.servers.get(claim.server_id), claim.host
        free = name in state.guests and claim.server_id not in state.guests[name]
        if row is None:
            if claim.server_id in state.deleted or (free and claim.server_id not in state.unknown):
                yield _claim("orphan", claim, "is of a server that is gone")
            continue
        moving = {move.uuid for move in state.moves.get(row.id, ())}
        if row.busy or claim.consumer_id in moving or (row.vm_state == ERROR and row.host):
            continue  # after a failed move both hosts stay claimed until an operator decides
        if (free and name != row.host) or (name == row.host and claim.consumer_id != row.id):
            yield _claim("elsewhere", claim, f"is held while the server is on {row.host}")


def _claim(kind: str, claim: AuditedClaim, why: str) -> Finding:
    return Finding(kind, claim.consumer_id, claim.host, f"the claim of {claim.consumer_id} (server {claim.server_id}) "
                   f"on {claim.host} {why}", claim.server_id)


def find_unclaimed_servers(state: AuditState) -> Findings:
    """Yield findings about servers whose claim on their host is missing, or differs from the resources that their
    flavor needs."""
    for id, row in state.servers.items():
        if row.busy or not row.host or row.vm_state == ERROR:
            continue
        claim = next((claim for claim in state.claims.get(id, ()) if (claim.consumer_id, claim.host)
                      == (id, row.host)), None)
        amounts, resources = amounts_held_by(row.undecoded())
        needed = amounts, *nic_bandwidth.apply_bandwidth_places(resources, claim.places if claim else {})
        had = claim and (allocations.Amounts(*(int(getattr(claim, name)) for name in allocations.RESOURCES)),
                         claim.resources, claim.devices)
        if had != needed:
            yield Finding("unclaimed", id, row.host, f"server {id} needs {_claim_text(needed)}, and holds "
                                                     f"{_claim_text(had) if had else 'nothing'}")


def _claim_text(claimed: tuple[Sequence[int], Mapping[str, int], Mapping[str, int]]) -> str:
    amounts, *counts = claimed
    return ", ".join([str(tuple(amounts)), *(f"{n} {name}" for amounts_by_name in counts for name,
                                             n in sorted(amounts_by_name.items()))])


def find_orphan_ports(state: AuditState) -> Findings:
    """Yield findings about ports that belong to a deleted server, or that are missing in the row of their server."""
    return _find_unused("port", state, state.ports, "nics",
                        lambda row: [nic["port_id"] for nic in row.undecoded().nics])


def find_orphan_attachments(state: AuditState) -> Findings:
    """Yield findings about volume attachments whose server is deleted, or whose server's row does not list them. Also
    yield findings about attachments in a server's row that the volume service does not have."""
    yield from _find_unused("attachment", state, state.attachments, "volumes", _attachment_ids)
    for server, row in state.servers.items():
        for id in [] if row.busy else _attachment_ids(row):
            if state.attachments.get(id) != server:
                yield Finding("detached", id, server, f"server {server} has attachment {id}, which nobody keeps for it",
                              server)


def _find_unused(kind: str, state: AuditState, servers_by_id: Mapping[str, str], of: str,
                 ids_in_row: Callable[[Any], list[str]]) -> Findings:
    """Yield findings about ports or volume attachments whose server is deleted, or whose server's row does not list
    them.

    *kind*: the kind of the findings, ``port`` or ``attachment``. *servers_by_id*: the server's uuid by id of the port
    or attachment. *ids_in_row*: a function that returns the ids of the ports or attachments in a server's row. *of*:
    ``nics`` or ``volumes``. If the guest has NICs or volumes that the server's row does not list, the row is wrong;
    then the finding's kind is ``kept``, which is never repaired.
    """
    for id, server in servers_by_id.items():
        row = state.servers.get(server)
        if row is None and server in state.deleted:
            yield Finding(kind, id, server, f"{kind} {id} is of server {server}, which is gone", server)
        elif row is not None and not row.busy and id not in ids_in_row(row):
            if row_is_complete := state.has_all_of_guests(row, of):
                yield Finding(kind, id, row.id, f"{kind} {id} is kept for server {row.id}, which does not have it",
                              server)
            elif row_is_complete is False:
                yield Finding("kept", id, row.id, f"{kind} {id} is kept for server {row.id}, whose row lacks it; its "
                              f"guest has {of} that the row does not know", server)


def _attachment_ids(row: AuditedServer) -> list[str]:
    """Return the ids of the volume attachments in a server's row, including those of new volumes in a running
    ``swap_volume``."""
    return [id for attachment in row.undecoded().volumes for id in attachment_ids(attachment)]


def find_stalled_migrations(state: AuditState) -> Findings:
    """Yield findings about open migrations that have no running action, and do not wait for confirm or revert."""
    for id, moves in state.moves.items():
        row = state.servers.get(id)
        for migration in moves:
            waits = row is not None and row.vm_state == RESIZED and migration.status in UNCONFIRMED
            if not waits and (row is None or not row.busy) and id not in state.unknown:
                yield Finding("move", migration.uuid, id,
                              f"migration {migration.uuid} of server {id} is {migration.status}, and nobody "
                              "goes on with it", id)


def find_leftover_guests(state: AuditState) -> Findings:
    """Yield findings about guests whose server is deleted, unknown, or on another host."""
    for host, guests in state.guests.items():
        for id in guests:
            row = state.servers.get(id)
            if row is None and id not in state.unknown:
                kind = "left" if id in state.deleted else "stranger"
                yield Finding(kind, id, host, f"host {host} has server {id}, which "
                              + ("is deleted" if kind == "left" else "no database knows"))
            elif row is not None and not row.busy and row.host != host:
                kind = "spare" if _is_failed_build(state, row, host) else "double"
                yield Finding(kind, id, host, f"host {host} has server {id}, which is on {row.host}")


def find_leftover_migrations(state: AuditState) -> Findings:
    """Yield findings about hosts that still have parts of a migration, such as copied disks, although the server is
    deleted or the migration has ended."""
    for host, open_migrations in state.open_migrations.items():
        for id in open_migrations.keys() - state.guests[host].keys():
            text, row = f"host {host} has a part of a migration of server {id}, ", state.servers.get(id)
            if id in state.deleted:
                yield Finding("half", id, host, f"{text}which is deleted")
            elif row and not row.busy and row.vm_state != ERROR and row.host != host and id not in state.moves:
                yield Finding("rest", id, host, f"{text}and nobody goes on with it")


def _is_failed_build(state: AuditState, row: AuditedServer, host: str) -> bool:
    """Return whether the server's guest on *host* remains from a failed build: the server has no claim and no migration
    on *host*, and it has either no host, or a guest on its own host."""
    claimed = any(claim.host == host for claim in state.claims.get(row.id, ()))
    is_surplus = row.host is None or (row.vm_state != ERROR and row.id in state.guests.get(row.host, ()))
    return is_surplus and not claimed and not any_migration_at(state.moves.get(row.id, ()), host)


def find_absent_guests(state: AuditState) -> Findings:
    """Yield findings about servers whose guest is missing on their host, or has other volumes, other NICs or another
    power state than the server's row says."""
    for id, row in state.servers.items():
        if row.busy or row.host not in state.guests or row.vm_state == ERROR:
            continue
        resource = state.guests[row.host].get(id)
        if resource is None:
            yield Finding("absent", id, row.host, f"server {id} is {row.vm_state}, and {row.host} does not have it")
            continue
        for kind, (noted, present) in volumes_and_nics(row, resource).items():
            if noted != present:
                yield Finding(kind, id, row.host, f"server {id} is to have the {kind} {sorted(noted)}, and has "
                              f"{sorted(present)}")
        power, may = resource["power_state"], VM_STATES[row.vm_state].powers if row.vm_state in VM_STATES else ()
        if (may and power not in may) or power_number(power) != row.power_state:
            yield Finding("power", id, row.host, f"server {id} is {row.vm_state} ({row.power_state}), not {power}")


def find_leftover_networks(state: AuditState) -> Findings:
    """Yield findings about deleted networks that are still on a host and that no guest uses."""
    for host, nets in state.nets.items():
        used = {nic.get(name) for guest in state.guests[host].values() for nic in guest.get("networks") or ()
                for name in ("network", "network_id")}
        for net in nets:
            ours = OF_THE_CLOUD.fullmatch(net["name"])
            if ours and net["name"] not in state.networks | used and net["id"] not in used:
                yield Finding("network", net["name"], host, f"host {host} has network {net['name']}, which is deleted")


def find_engine_differences(state: AuditState) -> Findings:
    """Yield findings about differences between the databases of OVN and of the network service."""
    for unit, text in state.engine:
        yield Finding("engine", unit, "", f"OVN: {text}")


CHECKS: tuple[Callable[[AuditState], Findings], ...] = (
    find_stuck_servers, find_server_copies, find_wrong_counters, find_wrong_quota_usage, find_lost_servers,
    find_orphan_claims, find_unclaimed_servers, find_orphan_ports, find_orphan_attachments, find_stalled_migrations,
    find_leftover_guests, find_leftover_migrations, find_absent_guests, find_leftover_networks, find_engine_differences)


def findings_of_checks(state: AuditState) -> list[Finding]:
    """Return the findings of all checks for *state*, one page (batch of servers and hosts) of the audit."""
    return [finding for check in CHECKS for finding in check(state)]
