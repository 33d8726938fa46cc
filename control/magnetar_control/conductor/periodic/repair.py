# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs of the audit's findings. Each may run twice, and in several conductors at the same time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.steps.migration import remove_server_from_host
from magnetar_control.scheduler.request_spec import amounts_held_by
from magnetar_control.store.claims import allocations, host_counters
from magnetar_control.store.claims.nic_bandwidth import BandwidthRequest
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import actions, servers
from magnetar_control.store.servers import cell_moves, migrations
from magnetar_control.store.servers import servers as rows
from magnetar_control.store.servers.deleted_servers import deleted_servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.store import CELL0
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.power import BUILDING, ERROR

from .audit_reader import BUSY, GOES_ON
from .audit_state import AuditState, Finding, volumes_and_nics

log = logging.getLogger(__name__)
FAULT = ("The control plane lost track of what was done to the server. See its actions; reboot it hard, reset its "
         "state, or delete it.")


def repair_finding(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Repair one *finding* of the audit (an inconsistency between databases, services and hosts), if ``REPAIRS`` has a
    function for its kind. Log the result; errors are not raised."""
    done = REPAIRS.get(finding.kind)
    if done is None:
        return
    try:
        done(watch, state, finding)
    except (MagnetarError, DBAPIError) as error:
        log.warning("not repaired now (%s): %s", finding.text, error)
    else:
        log.warning("repaired: %s", finding.text)


def _busy(connection: Connection, id: str) -> bool:
    """Return whether an action of the server *id* is queued or running."""
    return connection.execute(select(actions.c.id).where(
        actions.c.server_id == id, GOES_ON).limit(1)).first() is not None


def _quiet(watch: HostWatch, state: AuditState, id: str) -> bool:
    """Return whether no action of the server *id* is queued or running. Also return ``True`` for a server without a row
    in any cell."""
    cell = state.cells.get(id)
    if cell is None:
        return True
    with watch.conductor.store.cell(cell).read() as connection:
        return not _busy(connection, id)


def _stuck(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """Repair a finding of the audit about a server that was left in the middle of an action: set its vm_state to error,
    and clear its task_state. Do nothing if an action of the server is queued or running."""
    database = watch.conductor.store.cell(finding.place)
    fault = rows.json_text({"code": 500, "message": FAULT, "created": utc_now(), "details": finding.text})
    with database.write() as connection:
        connection.execute(update(servers).where(
            servers.c.id == finding.id, servers.c.leaving.is_(None), ~BUSY,
            servers.c.task_state.is_not(None) | (servers.c.vm_state == BUILDING)
            ).values(vm_state=ERROR, task_state=None, fault=fault, updated_at=utc_now()))
        database.notify(connection, rows.SERVERS_CHANGED)


def _copy(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    store = watch.conductor.store
    with store.cell(finding.place).write() as connection:
        if not _busy(connection, finding.id):
            if finding.place == CELL0:
                rows.remove_scheduled_servers(connection, [finding.id])
            else:
                cell_moves.remove_moved_rows(connection, finding.id)


def _counter(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    with watch.conductor.store.api.write() as connection:
        host_counters.audit_host_counters(connection, repair=True, host_ids=[state.hosts[finding.place].id])
    watch.conductor.read_host(finding.place)


def _claim(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    if _quiet(watch, state, finding.server):
        with watch.conductor.store.api.write() as connection:
            allocations.release_consumer_claims(connection, finding.id, state.hosts[finding.place].id)
        watch.conductor.read_host(finding.place)


def _unclaimed(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Repair a finding of the audit about a server whose claim on its host is missing or wrong: claim the resources
    that the server uses there. Raises ``Conflict`` if the host does not exist or has too few resources left, if the
    server is no longer on it, or if an action of the server is queued or running."""
    conductor, host = watch.conductor, state.hosts.get(finding.place)
    if host is None:
        raise Conflict(f"There is no host {finding.place}.")
    with conductor.store.cell(state.cells[finding.id]).read() as connection:
        row = rows.fetch_server_row(connection, finding.id)
        busy = _busy(connection, finding.id)
    if busy or row is None or row.host != finding.place:
        raise Conflict(f"Something is done to server {finding.id} again.")
    amounts, resources = amounts_held_by(row)
    nics = _nics_with_cards(watch, row, resources.nics)
    with conductor.store.api.write() as connection:
        if not allocations.claim_host_resources(connection, finding.id, finding.id, host.id, amounts,
                                                devices=resources.devices, resources=resources.resources, nics=nics):
            raise Conflict(f"Host {finding.place} has not that much left. Move servers away from it.")
    conductor.read_host(finding.place)


def _nics_with_cards(watch: HostWatch, row: ServerRow, nics: Sequence[BandwidthRequest]) -> list[BandwidthRequest]:
    """Return the bandwidth requests *nics* with the field ``place`` set: the name of the physical network or, for a
    virtual function, PHYSICAL_NETWORK/CARD. The agent of the server's host reports CARD, the network card of the
    virtual function. If no NIC is a virtual function, return *nics* unchanged."""
    if not any(nic.devices for nic in nics):
        return [*nics]
    with watch.conductor.client(row.host) as client:
        cards = {nic["mac"]: nic.get("card") for nic in client.get("server", row.id)["networks"]}
    cards_by_port = {nic["port_id"]: cards.get(nic["mac"]) for nic in row.nics}
    return [nic._replace(place=f"{nic.network}/{cards_by_port[nic.id]}" if cards_by_port.get(nic.id) else nic.network)
            for nic in nics]


def _free_unused(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Release a port or volume attachment that its server does not use, as the audit has found, unless an action of the
    server is queued or running. First ask the hosts that the audit did not ask, because the guest may be on a host that
    neither the server's row nor a claim names. Raises ``Conflict`` if a guest on these hosts has NICs or volumes that
    the server's row lacks."""
    services, row = watch.conductor.services, state.servers.get(finding.place)
    kind = "nics" if finding.kind == "port" else "volumes"
    if row:
        for guest in _guests_elsewhere(watch, state, finding.place):
            noted, present = volumes_and_nics(row, guest)[kind]
            if not present <= noted:
                raise Conflict(f"Another host has server {finding.place}, with more {kind} than its row.")
    if _quiet(watch, state, finding.place):
        if finding.kind == "port":
            services.network.release(finding.place, finding.id)
        else:
            services.volume.detached(finding.id)


def _guests_elsewhere(watch: HostWatch, state: AuditState, id: str) -> Iterator[Document]:
    """Look for guests of the server *id* on the hosts of this cell that the audit did not ask and that are up. Yield
    the server as the agent of each such host reports it; skip hosts that do not have the server or do not answer."""
    conductor = watch.conductor
    for name, host in list(conductor.states.hosts.items()):
        if name not in state.guests and host.profile.up and host.profile.cell_id == conductor.cell.id:
            with contextlib.suppress(MagnetarError), conductor.client(name) as client:
                yield client.get("server", id)


def _move(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """Set the status of a migration to error: the audit has found that it is open, although no action continues it. Do
    nothing if an action of the server is queued or running. The migration may still have claims; the next audit finds
    these claims."""
    for _cell, database in watch.conductor.store.databases():
        with database.write() as connection:
            migration = migrations.fetch_migration_row(connection, finding.id)
            if migration is not None and not _busy(connection, finding.place):
                migrations.update_migration_row(connection, finding.id, status="error")


def _remove_deleted_guest(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """Delete the finding's guest, and the data of the guest's migrations, from the host. First check again that the
    server is recorded as deleted, because a removed guest cannot be restored; raises ``Conflict`` if the server is not
    deleted."""
    if finding.id not in deleted_servers(watch.conductor.store, [finding.id])[0]:
        raise Conflict(f"Nothing says any more that server {finding.id} was deleted.")
    _remove(watch, finding)


def _remove(watch: HostWatch, finding: Finding) -> None:
    with watch.conductor.client(finding.place) as client:
        remove_server_from_host(client, finding.id)


def _discard_migrations(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Discard the data of ended migrations of a server on a host that does not have this server. The data of migrations
    that have begun since the audit is not discarded. Raises ``Conflict`` if an action of the server is queued or
    running."""
    if not _quiet(watch, state, finding.id):
        raise Conflict(f"Something is done to server {finding.id} again.")
    with watch.conductor.client(finding.place) as client:
        for migration_id in state.open_migrations[finding.place][finding.id]:
            with contextlib.suppress(NotFound):
                client.event("migration", migration_id, "discard")


def _remove_failed_build(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Delete the guest of a failed build from the host that *finding* (a result of the audit) names, or release the
    libvirt domain there whose adoption (takeover as a server) has failed. Raises ``Conflict`` if an action of the
    server is queued or running, or if the server's row, a claim or an open migration now names this host."""
    conductor = watch.conductor
    with conductor.store.cell(state.cells[finding.id]).read() as connection:
        row = rows.fetch_server_row(connection, finding.id)
        busy = _busy(connection, finding.id) or migrations.any_migration_at(
            migrations.fetch_open_migrations(connection, finding.id), finding.place)
    with conductor.store.api.read() as connection:
        claimed_hosts = {claim.host for claim in allocations.fetch_server_claims(connection, finding.id)}
    if busy or row is None or row.host == finding.place or finding.place in claimed_hosts:
        raise Conflict(f"Something is done to server {finding.id} again.")
    if state.guests[finding.place][finding.id].get("adopted"):
        with watch.conductor.client(finding.place) as client:
            client.delete("adoption", finding.id)
    else:
        _remove(watch, finding)


def _power(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """Set the vm_state and power state of a server to those of its guest, because the audit has found that they differ
    (*finding*)."""
    with watch.conductor.client(finding.place) as client:
        watch.follow(finding.place, [client.get("server", finding.id)])


def _network(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    if finding.id not in watch.conductor.services.network.names():
        with watch.conductor.client(finding.place) as client:
            client.delete("network", finding.id)


#: Repairs by kind of finding. Other kinds are only logged: an operator has to decide.
REPAIRS: Mapping[str, Callable[[HostWatch, AuditState, Finding], None]] = {
    "stuck": _stuck, "copy": _copy, "counter": _counter, "orphan": _claim, "elsewhere": _claim, "unclaimed": _unclaimed,
    "port": _free_unused, "attachment": _free_unused, "move": _move, "left": _remove_deleted_guest,
    "half": _remove_deleted_guest, "rest": _discard_migrations, "spare": _remove_failed_build,
    "power": _power, "network": _network}
