# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``create`` in cell0: find a host for a new server, and move its row into the host's cell.

One transaction of the API database chooses and claims a host, and maps the server to the host's cell. Then the row is
moved: the cell commits before cell0 does. Both steps can be repeated; a claim shows that the first is done. Servers
that were taken from the queue together are moved together.

If the cell is this conductor's own and the host's limit allows one more build, this conductor holds the action in the
cell from the start and continues it. Otherwise the action waits in the cell's queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import Continuation, RunningAction, admin_message, leased_database
from magnetar_control.documents import FlavorOfServer
from magnetar_control.notifications import START, Initiator, ServerEvent, action_key, selection_events
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place_server, place_servers
from magnetar_control.scheduler.request_spec import RequestSpec, spec_of_server
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import server_group_members
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers

from . import block_devices, nics

EVENT = "schedule_instances"
#: Seconds for each statement of a cell while cell0's transaction waits for it.
PATIENCE = actions.LEASE / 4
RANDOM = Random()  # noqa: S311 - which of equals
#: Seconds between two searches for a host while a server waits for one to come back: at first, and at most.
AGAIN, SELDOM = 1.0, 5.0


def spec_of(work: RunningAction, flavor: FlavorOfServer | None = None, **over: Any) -> RequestSpec:
    """Return the scheduler's request for the server of the action *work*. If the server's scheduler hints name a server
    group, first add the server to the group. *flavor*, *over*: passed to ``request_spec.spec_of_server``."""
    conductor = work.conductor
    if group := work.server.hints.get("group"):  # it becomes a member from now on
        with suppress(IntegrityError), conductor.store.api.write() as connection:  # it is one, or the group was deleted
            connection.execute(insert(server_group_members).values(group_id=group, server_id=work.id))
    return spec_of_server(conductor.store.api, conductor.services.volume, work.context(), work.server, flavor, **over)


def host_search_pause(work: RunningAction) -> float:
    """Return the seconds to wait before the action searches for a host again. The pause grows with each attempt, up to
    a maximum."""
    return min(AGAIN * float(work.action.attempts), SELDOM)


class Placed(NamedTuple):
    """A new server for which a host was chosen and claimed. ``work``: the action that builds the server. ``cell_id``:
    the uuid of the host's cell."""

    work: RunningAction
    host: str
    cell_id: str


def run_scheduling(work: RunningAction) -> None:
    """Find a host for the new server of *work*, and move the server's row into the host's cell. Until then the row of
    every new server is in cell0. If no host is found, put the action back into the queue or set the server to error."""
    began = utc_now()
    again = work.action.attempts > 1
    if again and (cell_database := _cell_with_server(work)):
        with work.database.write() as source:
            for scheduled_server in servers.remove_scheduled_servers(source, [work.id]):
                with statement_timeout(PATIENCE), cell_database.write() as connection:
                    servers.insert_late_actions(connection, scheduled_server)
                    cell_database.notify(connection, servers.ACTIONS_CHANGED)
        return
    placed = None
    if again:
        with work.conductor.store.api.read() as connection:  # the host that was claimed before a crash
            claims = allocations.fetch_server_claims(connection, work.id)
        placed = next((Placed(work, claim.host, claim.cell_id) for claim in claims), None)
    if placed is None:
        spec, settling = spec_of(work, keeps_reserve=True), work.conductor.settling()
        try:
            placed = _place(work, spec)
        except NoValidHost as error:
            if settling or work.conductor.awaits_host(spec):
                work.put_back(host_search_pause(work))
                return
            block_devices.free_reserved_volumes(work)
            nics.free_reserved_ports(work)
            why = admin_message(error)
            work.end_writes.append(lambda connection: actions.insert_ended_event(
                connection, work.action.id, EVENT, work.conductor.name, began, "Error", why))
            work.error(error)
            return
    _move_to_cell([placed], began)


def run_joint_scheduling(works: Sequence[RunningAction]) -> list[RunningAction]:
    """Schedule several new servers of cell0 together, at the first attempt of their actions (*works*). Each step is one
    transaction for all of them.

    Return the elements of *works* whose server was not scheduled: the caller passes each to ``run_scheduling``. If this
    raises an error, some servers may already have claims or have been moved to their cell.
    """
    began, conductor = utc_now(), works[0].conductor

    def sure() -> None:
        for work in works:
            work.confirm_old_lease()

    plain = {work.id: work for work in works if not work.server.hints}  # those with hints may depend on one another
    candidates = place_servers(leased_database(sure, conductor.store.api), conductor.current_states(),
                               [spec_of(work, keeps_reserve=True) for work in plain.values()], random=RANDOM)
    of_cell: dict[str, list[Placed]] = {}
    for id, candidate in candidates.items():
        of_cell.setdefault(candidate.cell_id, []).append(Placed(plain[id], candidate.host, candidate.cell_id))
    for placed in of_cell.values():
        _move_to_cell(placed, began)
    return [work for work in works if work.id not in candidates]


def _move_to_cell(placed: Sequence[Placed], began: str) -> None:
    """Move the rows of the new servers *placed* from cell0 into the cell of their hosts, which must be the same cell
    for all servers. For each build that begins immediately, set ``continuation`` of the server's ``RunningAction``, so
    that this conductor runs the build next. *began*: the time when the scheduling of the servers began."""
    work, going = placed[0].work, {placement.work.id: placement for placement in placed}
    target = work.conductor.store.cell(placed[0].cell_id)
    with work.database.write() as source:
        scheduled = [(scheduled_server, going[scheduled_server.server["id"]])
                     for scheduled_server in servers.remove_scheduled_servers(source, going)]
        if scheduled:
            with statement_timeout(PATIENCE):  # leases of cell0 are not renewed while this waits
                _write_to_cell(target, scheduled, began)


def _write_to_cell(target: Database, scheduled: Sequence[tuple[servers.ScheduledServer, Placed]], began: str) -> None:
    """Insert the rows of the *scheduled* servers of cell0 into the cell *target*. For each build that begins
    immediately, count the build as an action of its host. Also set ``continuation`` of the server's ``RunningAction``,
    so that this conductor runs the build next. *began*: the time when the scheduling of the servers began."""
    conductor = scheduled[0][1].work.conductor
    works = {placed.work.id: placed.work for _left, placed in scheduled}
    with conductor.choosing(target) as mine:
        arrived, events = _write_servers(target, scheduled, began, mine)
        for arrived_server in arrived:
            conductor.leased_actions.begin((target.name, arrived_server.creation.id), arrived_server.creation.host)
    for arrived_server in arrived:
        works[arrived_server.server.id].continuation = Continuation(
            target, arrived_server.creation, arrived_server.server, events[arrived_server.creation.id])


def _write_servers(target: Database, scheduled: Sequence[tuple[servers.ScheduledServer, Placed]], began: str,
                   begins: bool) -> tuple[Sequence[servers.ArrivedServer], dict[int, int]]:
    """Insert the rows of the *scheduled* servers of cell0 into the cell *target*. *began*: the time when the scheduling
    of the servers began. *begins*: whether builds may begin now. If true, as many builds begin on each host as the
    host's limit allows. The other builds wait in the cell's queue.

    Return the servers whose builds begin, and a mapping of the action's id to the id of its first event.
    """
    work = scheduled[0][1].work
    conductor, chosen = work.conductor, {"event": EVENT, "host": work.conductor.name, "start_time": began}
    begun: list[tuple[servers.ScheduledServer, str]] = []
    queued: list[tuple[servers.ScheduledServer, str]] = []
    hosts = {placed.host for _left, placed in scheduled}
    with target.write() as connection:
        room = conductor.room(target, connection, hosts, work.action.kind) if begins else Counter[str]()
        for scheduled_server, placed in scheduled:
            (begun if room[placed.host] > 0 else queued).append((scheduled_server, placed.host))
            room[placed.host] -= 1
        begin = partial(actions.insert_running_actions, target, connection, conductor.holder)
        arrived = servers.insert_scheduled_servers(connection, begun, begin) if begun else []
        events = actions.advance_event_rows(
            connection, {arrived_server.creation.id: arrived_server.creation.host for arrived_server in arrived},
            chosen, work.rule.event)
        waiting = servers.insert_scheduled_servers(connection, queued) if queued else []
        for arrived_server in waiting:
            actions.insert_ended_event(connection, arrived_server.creation.id, **chosen)
        if conductor.notifications:
            _notify_selected(conductor, connection, arrived, begun=True)
            _notify_selected(conductor, connection, waiting, begun=False)
        if len(arrived) < len(scheduled) or not all(arrived_server.no_other_action for arrived_server in arrived):
            target.notify(connection, servers.ACTIONS_CHANGED)
    return arrived, events


def _notify_selected(conductor: Conductor, connection: Connection, arrived: Sequence[servers.ArrivedServer], *,
                     begun: bool) -> None:
    """Write the notifications that the scheduler has found a host, for each of the servers *arrived* in the cell.
    *begun*: also write the notifications that their builds have begun."""
    for arrived_server in arrived:
        made, host = arrived_server.creation, arrived_server.creation.host
        who, key = Initiator.of(made), action_key(made)
        events = selection_events(who, {}, conductor.name, f"{key}.{host}")
        if begun:
            events.append(ServerEvent("create", START, who, {}, host=host, key=key))
        conductor.notifications.add_server(connection, arrived_server.server, *events)


def _cell_with_server(work: RunningAction) -> Database | None:
    """Return the database of the cell to which the server was already moved before a crash; ``None`` if it was not
    moved. The server may have been deleted in that cell since then."""
    store = work.conductor.store
    mapping = servers.fetch_server_mapping(store, work.id)
    if mapping is None:
        return None
    cell_database = store.cell(mapping.cell_id)
    with cell_database.read() as connection:
        return cell_database if servers.fetch_server_row(connection, work.id) is not None else None


def _place(work: RunningAction, spec: RequestSpec) -> Placed:
    api = leased_database(work.confirm_old_lease, work.conductor.store.api)
    candidate = place_server(api, work.conductor.current_states(), spec, random=RANDOM)
    return Placed(work, candidate.host, candidate.cell_id)
