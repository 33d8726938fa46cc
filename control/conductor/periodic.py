# SPDX-License-Identifier: GPL-3.0-or-later
"""What a conductor does from time to time: repairs what the audit finds, confirms resizes, keeps hosts tidy.

By design there is nothing to repair; what there is nevertheless (a crash between two databases, an operator's hand) is
put right here, and told. Everything may be done twice, and by several conductors at once.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, exists, func, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.store import allocations, migrations
from magnetar_control.store import servers as rows
from magnetar_control.store.database import now
from magnetar_control.store.tables import actions, conductors, servers
from magnetar_core.actions import BUILDING, ERROR
from magnetar_core.errors import Conflict, InUse, MagnetarError, NotFound

from . import resize, snapshot
from .audit import Finding, Seen, findings, former, look
from .conductor import Conductor
from .watch import Watch

log = logging.getLogger(__name__)
#: Seconds between two looks at what is due.
TICK = 1.0
#: Seconds that an image lies on a host without a server there that needs it.
UNUSED = 24 * 3600.0
#: Seconds without a heartbeat after which a conductor does no periodic work for its cell.
SILENT = 15.0
#: How hosts call copies of servers.
OF_A_SERVER = re.compile(re.escape(snapshot.COPY) + "[0-9a-f-]{36}")
FAULT = ("The control plane lost track of what was done to the server. See its actions; reboot it hard, reset its "
         "state, or delete it.")


@dataclass(frozen=True)
class Task:
    """*every*: seconds. *alone*: one conductor of the cell does it."""

    name: str
    every: float
    run: Callable[[Periodic], Any]
    alone: bool = True


class Periodic:
    """The periodic work of one conductor: ``run`` in a thread of its own."""

    def __init__(self, conductor: Conductor, watch: Watch | None = None) -> None:
        self.conductor, self.watch = conductor, watch or Watch(conductor)
        self._due: dict[str, float] = {}
        #: What the audit found last time; only what is found twice is repaired.
        self._before: set[Finding] = set()
        self._told: set[Finding] = set()

    def run(self) -> None:
        """Until the conductor ends."""
        began = time.monotonic()
        self._due = {task.name: began + task.every for task in TASKS}
        while not self.conductor.over.wait(TICK):
            for task in TASKS:
                if self._due[task.name] <= time.monotonic() and not self.conductor.over.is_set():
                    self._due[task.name] = time.monotonic() + task.every
                    self._once(task)

    def _once(self, task: Task) -> None:
        try:
            if not task.alone or self.first():
                task.run(self)
        except DBAPIError as error:
            log.warning("%s: %s", task.name, error.orig)
        except Exception:
            log.exception("%s failed; it is done again in %g s", task.name, task.every)

    def first(self) -> bool:
        """Whether this is the conductor that works for its cell: of those that live, the first."""
        database = self.conductor.database
        with database.read() as connection:
            name = connection.execute(select(func.min(conductors.c.holder)).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar()
        return name in (None, self.conductor.holder)

    # Audit and repair

    def audit(self) -> list[Finding]:
        """Look, and repair what was there at the last look too; returns what that was."""
        conductor = self.conductor
        mine = [name for name, host in conductor.states.hosts.items() if host.profile.cell_id == conductor.cell.id
                and host.profile.up]
        seen = look(conductor.store, conductor.agents, conductor.services, mine)
        found = findings(seen)
        lasting = [one for one in found if one in self._before]
        self._before = set(found)
        for one in lasting:
            if one not in self._told:
                log.warning("%s", one.text, extra={"host": one.place})
            repair = REPAIRS.get(one.kind)
            if repair is not None:
                self._repair(repair, seen, one)
        self._told = set(lasting)
        return lasting

    def _repair(self, repair: Repair, seen: Seen, one: Finding) -> None:
        try:
            repair(self, seen, one)
        except (MagnetarError, DBAPIError) as error:
            log.warning("not repaired now (%s): %s", one.text, error)
        else:
            log.warning("repaired: %s", one.text)

    def endpoint(self, host: str) -> Any:
        """A client of a host's agent, to be used in a ``with``."""
        return self.conductor.agents.client(self.conductor.endpoint(host))

    def quiet(self, seen: Seen, id: str) -> bool:
        """Nothing is done to the server at this moment."""
        cell = seen.cells.get(id)
        if cell is None:
            return True
        with self.conductor.store.cell(cell).read() as connection:
            return connection.execute(select(actions.c.id).where(
                actions.c.server_id == id, actions.c.state.in_(("queued", "running"))).limit(1)).first() is None


# Repairs ----------------------------------------------------------------------------------------------------------
Repair = Callable[[Periodic, Seen, Finding], None]


def _stuck(periodic: Periodic, _seen: Seen, one: Finding) -> None:
    """The last resort: an error that says so is better than a task that never ends."""
    database = periodic.conductor.store.cell(one.place)
    work = exists().where(actions.c.server_id == servers.c.id, actions.c.state.in_(("queued", "running")))
    fault = rows.text({"code": 500, "message": FAULT, "created": now(), "details": one.text})
    with database.write() as connection:
        connection.execute(update(servers).where(
            servers.c.id == one.id, ~work, servers.c.task_state.is_not(None) | (servers.c.vm_state == BUILDING)).values(
            vm_state=ERROR, task_state=None, fault=fault, updated_at=now()))
        database.ring(connection, rows.SERVERS_BELL)


def _copy(periodic: Periodic, _seen: Seen, one: Finding) -> None:
    database = periodic.conductor.store.cell0
    with database.write() as connection:
        if not _busy(connection, one.id):
            rows.leave(connection, [one.id])


def _busy(connection: Connection, id: str) -> bool:
    return connection.execute(select(actions.c.id).where(
        actions.c.server_id == id, actions.c.state.in_(("queued", "running"))).limit(1)).first() is not None


def _counter(periodic: Periodic, _seen: Seen, _one: Finding) -> None:
    with periodic.conductor.store.api.write() as connection:
        allocations.audit(connection, repair=True)
    periodic.conductor.look(aggregates=False)


def _claim(periodic: Periodic, seen: Seen, one: Finding) -> None:
    claim = next(claim for claim in seen.claims if claim.consumer_id == one.id
                 and seen.hosts[claim.host_id].name == one.place)
    if periodic.quiet(seen, claim.server_id):
        with periodic.conductor.store.api.write() as connection:
            allocations.release(connection, one.id, claim.host_id)
        periodic.conductor.changed(one.place)


def _port(periodic: Periodic, seen: Seen, one: Finding) -> None:
    if periodic.quiet(seen, one.place):
        periodic.conductor.services.network.release(one.place, one.id)


def _attachment(periodic: Periodic, seen: Seen, one: Finding) -> None:
    if periodic.quiet(seen, one.place):
        periodic.conductor.services.volume.detached(one.id)


def _move(periodic: Periodic, _seen: Seen, one: Finding) -> None:
    """It ends; what it has claimed is found at the next look."""
    for _cell, database in periodic.conductor.store.databases():
        with database.write() as connection:
            found = migrations.find(connection, one.id)
            if found is not None and not _busy(connection, one.place):
                migrations.change(connection, one.id, status="error")


def _left(periodic: Periodic, _seen: Seen, one: Finding) -> None:
    """It is deleted, which is read again: nothing brings a guest back."""
    if one.id not in former(periodic.conductor.store, [one.id])[0]:
        raise Conflict(f"Nothing says any more that server {one.id} was deleted.")
    with periodic.endpoint(one.place) as client:
        client.delete("server", one.id)


def _power(periodic: Periodic, _seen: Seen, one: Finding) -> None:
    """What a guest did while something was done to its server is followed now."""
    with periodic.endpoint(one.place) as client:
        periodic.watch.follow(one.place, [client.get("server", one.id)])


def _network(periodic: Periodic, _seen: Seen, one: Finding) -> None:
    if one.id not in periodic.conductor.services.network.names():
        with periodic.endpoint(one.place) as client:
            client.delete("network", one.id)


#: What is not here is told only: nobody can know what is right.
REPAIRS: Mapping[str, Repair] = {
    "stuck": _stuck, "copy": _copy, "counter": _counter, "orphan": _claim, "elsewhere": _claim, "port": _port,
    "attachment": _attachment, "move": _move, "left": _left, "power": _power, "network": _network}


# Images on hosts --------------------------------------------------------------------------------------------------
def images(periodic: Periodic) -> int:
    """Images that no server of a host has needed for a day go from there; how many. A build brings them again. So do
    copies of servers that ``createImage`` could not remove when it had ended."""
    conductor, count = periodic.conductor, 0
    for name, host in list(conductor.states.hosts.items()):
        if host.profile.cell_id != conductor.cell.id or not host.profile.up:
            continue
        try:
            with periodic.endpoint(name) as client:
                used = _needed(conductor, name)
                for image in client.list("image"):
                    # Those that were brought have their uuid for a name; others are the host's own.
                    brought = image["name"] == image["id"]
                    if not (brought and image["id"] not in used and _old(image)) and not _spent(
                            conductor, image["name"]):
                        continue
                    try:
                        client.delete("image", image["id"])
                        count += 1
                    except (InUse, NotFound):
                        continue
        except MagnetarError as error:
            log.info("images of host %s: %s", name, error.message)
        else:
            conductor.delivery.forget(name)
    return count


def _spent(conductor: Conductor, name: str) -> bool:
    """Whether an image of a host is a copy that was made for a ``createImage``, and that has ended."""
    if not OF_A_SERVER.fullmatch(name):
        return False
    with conductor.database.read() as connection:
        states = set(connection.execute(select(actions.c.state).where(
            actions.c.action == "createImage",
            actions.c.args.contains(name.removeprefix(snapshot.COPY), autoescape=True))).scalars())
    return bool(states) and not states & {"queued", "running"}


def _old(image: Mapping[str, Any]) -> bool:
    before = datetime.fromisoformat(now()) - timedelta(seconds=UNUSED)
    moment = datetime.fromisoformat(str(image["updated_at"] or image["created_at"]).rstrip("Z").partition("+")[0])
    return moment < before


def _needed(conductor: Conductor, host: str) -> set[str]:
    """Images of servers that are there, or were a day ago: another conductor may believe that they are there still."""
    before = (datetime.fromisoformat(now()) - timedelta(seconds=UNUSED)).isoformat(timespec="microseconds")
    with conductor.database.read() as connection:
        return set(connection.execute(select(servers.c.image_id).distinct().where(
            servers.c.host == host, servers.c.image_id.is_not(None),
            servers.c.deleted_at.is_(None) | (servers.c.deleted_at > before))).scalars())


def _unlearn(periodic: Periodic) -> None:
    """What is believed to be on hosts is looked at again."""
    periodic.conductor.delivery.known = set()


TASKS = (
    Task("confirming resizes", resize.LOOK, lambda periodic: resize.confirm_late(periodic.conductor)),
    Task("audit", 120.0, Periodic.audit),
    Task("looking at hosts again", 3600.0, _unlearn, alone=False),
    Task("removing images from hosts", 3600.0, images))
