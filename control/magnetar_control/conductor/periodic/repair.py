# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs of what the audit finds. Each may run twice, and in several conductors at once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.steps.migration_halves import remove
from magnetar_control.scheduler.request_spec import held_by
from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.nic_bandwidth import Asking
from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import actions, servers
from magnetar_control.store.servers import cell_moves, migrations
from magnetar_control.store.servers import servers as rows
from magnetar_control.store.servers.deleted_servers import deleted_servers
from magnetar_control.store.store import CELL0
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.power import BUILDING, ERROR

from .audit import BUSY, GOES_ON, AuditState, Finding

log = logging.getLogger(__name__)
FAULT = ("The control plane lost track of what was done to the server. See its actions; reboot it hard, reset its "
         "state, or delete it.")


def repair(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Repair a finding, where there is a repair for its kind."""
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
    """Whether an action of the server waits or runs."""
    return connection.execute(select(actions.c.id).where(
        actions.c.server_id == id, GOES_ON).limit(1)).first() is not None


def _quiet(watch: HostWatch, state: AuditState, id: str) -> bool:
    """Whether no action of the server waits or runs."""
    cell = state.cells.get(id)
    if cell is None:
        return True
    with watch.conductor.store.cell(cell).read() as connection:
        return not _busy(connection, id)


def _stuck(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """The server goes to error: better than a task_state that never ends."""
    database = watch.conductor.store.cell(finding.place)
    fault = rows.text({"code": 500, "message": FAULT, "created": now(), "details": finding.text})
    with database.write() as connection:
        connection.execute(update(servers).where(
            servers.c.id == finding.id, servers.c.leaving.is_(None), ~BUSY,
            servers.c.task_state.is_not(None) | (servers.c.vm_state == BUILDING)
            ).values(vm_state=ERROR, task_state=None, fault=fault, updated_at=now()))
        database.ring(connection, rows.SERVERS_BELL)


def _copy(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    store = watch.conductor.store
    with store.cell(finding.place).write() as connection:
        if not _busy(connection, finding.id):
            if finding.place == CELL0:
                rows.leave(connection, [finding.id])
            else:
                cell_moves.forget(connection, finding.id)


def _counter(watch: HostWatch, _state: AuditState, _finding: Finding) -> None:
    with watch.conductor.store.api.write() as connection:
        allocations.audit(connection, repair=True)
    watch.conductor.read_hosts()


def _claim(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    claim = next(claim for claim in state.claims if claim.consumer_id == finding.id
                 and state.hosts[claim.host_id].name == finding.place)
    if _quiet(watch, state, claim.server_id):
        with watch.conductor.store.api.write() as connection:
            allocations.release(connection, finding.id, claim.host_id)
        watch.conductor.read_host(finding.place)


def _unclaimed(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """The server claims what its flavor needs, where its host has that left."""
    conductor, host = watch.conductor, next(one for one in state.hosts.values() if one.name == finding.place)
    with conductor.store.cell(state.cells[finding.id]).read() as connection:
        row = rows.row(connection, finding.id)
        busy = _busy(connection, finding.id)
    if busy or row is None or row.host != finding.place:
        raise Conflict(f"Something is done to server {finding.id} again.")
    amounts, wanted = held_by(row)
    nics = _on_cards(watch, row, wanted.nics)
    with conductor.store.api.write() as connection:
        if not allocations.claim(connection, finding.id, finding.id, host.id, amounts, devices=wanted.devices,
                                 resources=wanted.resources, nics=nics):
            raise Conflict(f"Host {finding.place} has not that much left. Move servers away from it.")
    conductor.read_host(finding.place)


def _on_cards(watch: HostWatch, row: Any, nics: Sequence[Asking]) -> list[Asking]:
    """The NICs of a server that ask for bandwidth, with the cards of which they are virtual functions, as its host
    tells: the guest has those."""
    if not any(one.devices for one in nics):
        return [*nics]
    with watch.conductor.client(row.host) as client:
        cards = {nic["mac"]: nic.get("card") for nic in client.get("server", row.id)["networks"]}
    found = {nic["port_id"]: cards.get(nic["mac"]) for nic in orjson.loads(row.interfaces)}
    return [one._replace(place=f"{one.network}/{found[one.id]}" if found.get(one.id) else one.network) for one in nics]


def _kept(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    services = watch.conductor.services
    if _quiet(watch, state, finding.place):
        if finding.kind == "port":
            services.network.release(finding.place, finding.id)
        else:
            services.volume.detached(finding.id)


def _move(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """The migration ends in error. The next audit finds its claims."""
    for _cell, database in watch.conductor.store.databases():
        with database.write() as connection:
            found = migrations.find(connection, finding.id)
            if found is not None and not _busy(connection, finding.place):
                migrations.change(connection, finding.id, status="error")


def _left(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """Delete the guest, or what is left of its move, from a host, after reading again that the server is deleted: no
    guest comes back."""
    if finding.id not in deleted_servers(watch.conductor.store, [finding.id])[0]:
        raise Conflict(f"Nothing says any more that server {finding.id} was deleted.")
    _remove(watch, finding)


def _remove(watch: HostWatch, finding: Finding) -> None:
    with watch.conductor.client(finding.place) as client:
        remove(client, finding.id)


def _rest(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """What a host has of a move that has ended, of a server that is elsewhere. Moves that begin now have other ids."""
    if not _quiet(watch, state, finding.id):
        raise Conflict(f"Something is done to server {finding.id} again.")
    with watch.conductor.client(finding.place) as client:
        for half in state.halves[finding.place][finding.id]:
            with contextlib.suppress(NotFound):
                client.event("migration", half, "discard")


def _spare(watch: HostWatch, state: AuditState, finding: Finding) -> None:
    """Delete the guest from its host, after reading again that nothing leads to it."""
    conductor = watch.conductor
    with conductor.store.cell(state.cells[finding.id]).read() as connection:
        row = rows.row(connection, finding.id)
        busy = _busy(connection, finding.id) or migrations.any_at(
            migrations.open_ones(connection, finding.id), finding.place)
    with conductor.store.api.read() as connection:
        held = {one["host"] for one in allocations.held(connection, finding.id)}
    if busy or row is None or row.host == finding.place or finding.place in held:
        raise Conflict(f"Something is done to server {finding.id} again.")
    _remove(watch, finding)


def _power(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    """The server takes the state that its guest has."""
    with watch.conductor.client(finding.place) as client:
        watch.follow(finding.place, [client.get("server", finding.id)])


def _network(watch: HostWatch, _state: AuditState, finding: Finding) -> None:
    if finding.id not in watch.conductor.services.network.names():
        with watch.conductor.client(finding.place) as client:
            client.delete("network", finding.id)


#: By kind of finding. Other kinds are only logged: an operator has to decide.
REPAIRS: Mapping[str, Callable[[HostWatch, AuditState, Finding], None]] = {
    "stuck": _stuck, "copy": _copy, "counter": _counter, "orphan": _claim, "elsewhere": _claim, "unclaimed": _unclaimed,
    "port": _kept, "attachment": _kept, "move": _move, "left": _left, "half": _left, "rest": _rest, "spare": _spare,
    "power": _power, "network": _network}
