# SPDX-License-Identifier: GPL-3.0-or-later
"""Periodic tasks of a conductor: audit and repair, confirming resizes, offloading shelved servers, reclaiming
soft-deleted ones, removing unused images, telling guests and hosts what has changed.

By design there is nothing to repair. What there is nevertheless (after a crash between two databases, or an operator's
change) is repaired and logged. Every task may run twice, and in several conductors at once.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.flows import (
    server_confirm_resize,
    server_create_image,
    server_shelve,
    server_soft_delete,
)
from magnetar_control.conductor.hosts.guest_news import GuestNews
from magnetar_control.conductor.hosts.host_removals import HostRemovals
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.hosts.image_cache import LOOK, ImageCache
from magnetar_control.conductor.steps.host_groups import GroupNews
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.services.image.boot_parts import named_parts
from magnetar_control.services.volume.worker import COPY as VOLUME_COPY
from magnetar_control.store.engine.database import moment, now
from magnetar_control.store.engine.sqlite import empty_log
from magnetar_control.store.engine.tables import actions, conductors, servers
from magnetar_control.store.servers.purge import purge
from magnetar_control.store.store import CELL0
from magnetar_core.errors import InUse, MagnetarError, NotFound

from .audit import Finding, findings, read_state
from .notification_sender import drop_old
from .repair import repair
from .usage_audit import LOOK as USAGE_LOOK
from .usage_audit import tell_usage

log = logging.getLogger(__name__)
#: Seconds between two checks of what is due.
TICK = 1.0
#: Seconds without a heartbeat after which a conductor is down.
SILENT = 15.0
#: Seconds that an unused image stays on a host.
UNUSED = 24 * 3600.0
#: Seconds for which a log of SQLite may have what was deleted, such as passwords of actions.
EMPTIED = 15.0
#: Names of the copies on hosts.
OF_A_SERVER = re.compile(re.escape(server_create_image.COPY) + "[0-9a-f-]{36}")
OF_A_VOLUME = re.compile(re.escape(VOLUME_COPY) + "([0-9a-f-]{36})")


class PeriodicTask(NamedTuple):
    """*every*: seconds. *alone*: only one conductor of the cell runs it."""

    name: str
    every: float
    run: Callable[[Periodic], Any]
    alone: bool = True


class Periodic:
    """The periodic tasks of one conductor; ``run`` in a thread of its own."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self.watch = HostWatch(conductor)
        self.image_cache = ImageCache(conductor, conductor.over)
        self.guest_news = GuestNews(conductor, conductor.over)
        self.group_news = GroupNews(conductor, conductor.over)
        self.host_removals = HostRemovals(conductor, conductor.over)
        self._before: set[Finding] = set()  # what the audit found last time; only what is found twice is repaired
        self._reported: set[Finding] = set()

    def run(self) -> None:
        """Until the conductor ends."""
        due = {task.name: time.monotonic() + task.every for task in TASKS}
        while not self.conductor.over.wait(TICK):
            for task in TASKS:
                if due[task.name] <= time.monotonic() and not self.conductor.over.is_set():
                    due[task.name] = time.monotonic() + task.every
                    self._run_task(task)

    def _run_task(self, task: PeriodicTask) -> None:
        try:
            if not task.alone or self.first():
                task.run(self)
        except DBAPIError as error:
            log.warning("%s: %s", task.name, error.orig)
        except Exception:
            log.exception("%s failed; it is done again in %g s", task.name, task.every)

    def first(self) -> bool:
        """Whether this conductor runs the tasks of its cell: it is the first by name of those that are up."""
        database = self.conductor.database
        with database.read() as connection:
            name = connection.execute(select(func.min(conductors.c.holder)).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar()
        return name in (None, self.conductor.holder)

    def audit(self) -> list[Finding]:
        """Run the audit, and repair what the last audit found too; returns these findings."""
        conductor = self.conductor
        mine = [name for name, host in conductor.states.hosts.items() if host.profile.cell_id == conductor.cell.id
                and host.profile.up]
        state = read_state(conductor.store, conductor.agents, conductor.services, mine)
        found = findings(state)
        lasting = [one for one in found if one in self._before]
        self._before = set(found)
        for one in lasting:
            if one not in self._reported:
                log.warning("%s", one.text, extra={"host": one.place})
            repair(self.watch, state, one)
        self._reported = set(lasting)
        return lasting


def empty_logs(conductor: Environment) -> None:
    """Empty the logs of the databases in which passwords wait: those of the own cell and of cell0. One that is busy has
    its turn again."""
    for database in (conductor.database, conductor.store.cell(CELL0)):
        if database.kind == "sqlite":
            with database.read() as connection:
                empty_log(connection)


def remove_unused(conductor: Environment) -> int:
    """Remove images from hosts where no server has needed them for a day, and copies of servers that
    ``createImage`` and the like have left; returns how many. A build brings images again."""
    count, before = 0, now(-UNUSED)
    for name, host in list(conductor.states.hosts.items()):
        if host.profile.cell_id != conductor.cell.id or not host.profile.up:
            continue
        try:
            with conductor.client(name) as client:
                used = _needed_images(conductor, name, before)
                for image in client.list("image"):
                    # Those that were brought have their uuid for a name; others are the host's own.
                    if (image["name"] == image["id"] and image["id"] not in used and _since(image) < before) or (
                            _is_spent_copy(conductor, image["name"])):
                        with contextlib.suppress(InUse, NotFound):
                            client.delete("image", image["id"])
                            count += 1
        except MagnetarError as error:
            log.info("images of host %s: %s", name, error.message)
        else:
            conductor.delivery.forget(name)
    return count


def _is_spent_copy(conductor: Environment, name: str) -> bool:
    """Whether an image on a host is the copy of an action that has ended."""
    if of_volume := OF_A_VOLUME.fullmatch(name):
        return not conductor.services.volume.is_uploading(of_volume[1])
    if not OF_A_SERVER.fullmatch(name):
        return False
    with conductor.database.read() as connection:
        states = set(connection.execute(select(actions.c.state).where(
            actions.c.action.in_(("createImage", "createBackup", "shelve")),
            actions.c.args.contains(name.removeprefix(server_create_image.COPY), autoescape=True))).scalars())
    return bool(states) and not states & {"queued", "running"}


def _since(image: Mapping[str, Any]) -> str:
    """The moment of the last change, as ``now`` writes moments."""
    return moment(str(image["updated_at"] or image["created_at"]))


def _needed_images(conductor: Environment, host: str, before: str) -> set[str]:
    """Return the images of servers that are on the host or were *before*, with their kernels and ramdisks: other
    conductors may believe them delivered."""
    with conductor.database.read() as connection:
        rows = connection.execute(select(servers.c.image_id, servers.c.image).distinct().where(
            servers.c.host == host, servers.c.image_id.is_not(None),
            servers.c.deleted_at.is_(None) | (servers.c.deleted_at > before))).all()
    return {image for row in rows for image in (row.image_id, *named_parts(orjson.loads(row.image)).values())}


def _forget_deliveries(periodic: Periodic) -> None:
    """Forget what was delivered to hosts: it is checked again."""
    periodic.conductor.delivery.known = set()


def _purge(periodic: Periodic) -> None:
    """Remove servers of the cell, and of cell0, that were deleted long ago."""
    conductor = periodic.conductor
    days = conductor.settings.purge_deleted_after
    for database in (conductor.database, conductor.store.cell(CELL0)) if days else ():
        count = purge(conductor.store, database, now(-86400 * days), over=conductor.over.is_set)
        if count:
            log.info("%d servers that were deleted %g days ago are removed for good", count, days)


TASKS = (
    PeriodicTask("telling guests", TICK, lambda periodic: periodic.guest_news.look()),
    PeriodicTask("telling hosts of security groups", TICK, lambda periodic: periodic.group_news.look()),
    PeriodicTask("removing deleted things from hosts", TICK, lambda periodic: periodic.host_removals.look()),
    PeriodicTask("confirming resizes", server_confirm_resize.LOOK,
                 lambda periodic: server_confirm_resize.confirm_expired(periodic.conductor)),
    PeriodicTask("offloading shelved servers", server_shelve.LOOK,
                 lambda periodic: server_shelve.offload_expired(periodic.conductor)),
    PeriodicTask("reclaiming soft-deleted servers", server_soft_delete.LOOK,
                 lambda periodic: server_soft_delete.reclaim_expired(periodic.conductor)),
    PeriodicTask("bringing images to hosts", LOOK, lambda periodic: periodic.image_cache.look()),
    PeriodicTask("giving up images for hosts", 3600.0, lambda periodic: periodic.image_cache.forget()),
    PeriodicTask("audit", 120.0, Periodic.audit),
    PeriodicTask("purge", 3600.0, _purge),
    PeriodicTask("emptying logs of databases", EMPTIED, lambda periodic: empty_logs(periodic.conductor)),
    PeriodicTask("telling usage", USAGE_LOOK, lambda periodic: tell_usage(periodic.conductor)),
    PeriodicTask("looking at hosts again", 3600.0, _forget_deliveries, alone=False),
    # Each conductor: the first one may be none of those that schedule, which send what the shared databases have.
    PeriodicTask("dropping notifications", 60.0, lambda periodic: drop_old(periodic.conductor), alone=False),
    PeriodicTask("removing images from hosts", 3600.0, lambda periodic: remove_unused(periodic.conductor)))
