# SPDX-License-Identifier: GPL-3.0-or-later
"""A new server finds its host: the flow of ``create`` in cell0.

Choose and claim (one transaction of the API database, which also says in which cell the server is), then move the
server into its cell: what cell0 loses is settled after what the cell gains. Each step may be done twice; the claim says
whether the first was done already.
Where this conductor works for that cell and the host bears one more, it has the creation there in hand and begun at
once, and goes on with it; else whoever takes it from the cell's queue does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, cast

import orjson
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from magnetar_control.scheduler.choose import NO_VALID_HOST, NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.scheduler.request import Request, amounts_of, hint, hinted
from magnetar_control.store import actions, allocations, hosts, servers
from magnetar_control.store.database import Database, now
from magnetar_control.store.hanging import limited
from magnetar_control.store.tables import server_group_members, server_mappings
from magnetar_core.errors import Conflict

from . import volumes
from .work import Claims, Onward, Work, told

EVENT = "schedule_instances"
#: Seconds that each statement of a cell has while cell0 waits for it.
PATIENCE = actions.LEASE / 4
RANDOM = Random()  # noqa: S311 - which of equals


class NoHost(Conflict):
    """No valid host was found. There are not enough hosts available."""

    code = "no-valid-host"
    status = 500


def schedule(work: Work) -> None:
    """``create`` of a server in cell0."""
    began = now()
    again = work.action.attempts > 1
    if again and (there := _arrived(work)):
        with work.database.write() as source:
            left = servers.leave(source, work.id)
            if left:
                with limited(PATIENCE), there.write() as connection:
                    servers.follow(connection, left)
                    there.ring(connection, servers.ACTIONS_BELL)
        return
    found = _held(work) if again else None
    if found is None:
        settling = work.conductor.settling()
        try:
            found = _place(work)
        except NoHost as error:
            if settling:
                work.later(1.0)
                return
            why = told(error)
            work.also.append(lambda connection: actions.happened(
                connection, work.action.id, EVENT, work.conductor.name, began, "Error", why))
            work.error(error)
            return
    host, cell_id = found
    target = work.conductor.store.cell(cell_id)
    with work.database.write() as source:
        left = servers.leave(source, work.id)
        if left:
            with limited(PATIENCE):  # leases of cell0 are not kept while this waits
                work.onward = _arrive(work, left, host, target, began)


def _arrive(work: Work, left: servers.Left, host: str, target: Database, began: str) -> Onward | None:
    """The server in its cell; what this conductor goes on with there, if it does."""
    onward = None
    with target.write() as connection:
        goes_on = work.conductor.goes_on(target, connection, host, work.action.kind)
        carried = servers.arrive(connection, left, host, partial(
            actions.begun, target, connection, work.conductor.holder) if goes_on else None)
        chosen = {"event": EVENT, "host": work.conductor.name, "start_time": began}
        if carried and goes_on:
            event = actions.went_on(connection, carried.creation.id, chosen, work.rule.event, host)
            onward = Onward(target, carried.creation, carried.server, event)
        elif carried:
            actions.happened(connection, carried.creation.id, **chosen)
        if not (onward and carried and carried.alone):
            target.ring(connection, servers.ACTIONS_BELL)
    return onward


def _arrived(work: Work) -> Database | None:
    """The cell's database, where a crash came after the server had arrived there: it lives there, or has been deleted
    there since."""
    store = work.conductor.store
    with store.api.read() as connection:
        cell = connection.execute(select(server_mappings.c.cell_id).where(
            server_mappings.c.server_id == work.id)).scalar()
    if cell is None:
        return None
    there = store.cell(cell)
    with there.read() as connection:
        return there if servers.row(connection, work.id) is not None else None


def _held(work: Work) -> tuple[str, str] | None:
    """Host and cell that were claimed before a crash."""
    with work.conductor.store.api.read() as connection:
        for row in allocations.held(connection, work.id):
            return row["host"], row["cell_id"]
    return None


def _place(work: Work) -> tuple[str, str]:
    request, claims = wanted(work), Claims(work.sure, work.conductor.store.api)
    try:
        found = place(cast(Database, claims), work.conductor.states, request, random=RANDOM)
    except NoValidHost as error:
        raise NoHost(NO_VALID_HOST, explanation=error.explanation.text()) from error
    return found.host, found.cell_id


def wanted(work: Work, **over: Any) -> Request:
    """What the scheduler is asked for *work*'s server."""
    server, hints = work.server, orjson.loads(work.server.hints)
    request = work.request
    flavor = over.pop("flavor", None) or work.flavor
    image: Mapping[str, Any] = orjson.loads(server.image)
    names = hint(hints, "different_host") + hint(hints, "same_host")
    _join(work, hints.get("group"))
    group, where = None, {}
    if hints.get("group") or names:
        with work.conductor.store.api.read() as connection:
            group = hosts.group_of(connection, server.id)
            where = hosts.of_servers(connection, names) if names else {}
    volume_backed = any(block["boot_index"] == 0 and block["destination_type"] == "volume"
                        for block in request.get("blocks") or ())
    values = {
        "server_id": server.id, "project_id": server.project_id, "amounts": amounts_of(flavor, volume_backed),
        "flavor_name": flavor["name"], "extra_specs": flavor.get("extra_specs") or {},
        "image": image.get("properties") or {}, "availability_zone": server.pinned_availability_zone
        or server.availability_zone, "host": request.get("host") or request.get("hypervisor_hostname"), "hints": hints,
        "group": group, "volume_hosts": volumes.hosts(work), **hinted(hints, where)}
    return Request(**{**values, **over})


def _join(work: Work, group: str | None) -> None:
    """The server is a member of the group that its hint names."""
    if not group:
        return
    try:
        with work.conductor.store.api.write() as connection:
            connection.execute(insert(server_group_members).values(group_id=group, server_id=work.id))
    except IntegrityError:
        pass  # it is, or the group was deleted meanwhile
