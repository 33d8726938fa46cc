# SPDX-License-Identifier: GPL-3.0-or-later
"""Periodic tasks of a conductor: audit and repair, automatic evacuation, confirming resizes, offloading shelved
servers, deleting soft-deleted ones, removing unused images, and sending changes to guests and hosts.

By design there is nothing to repair. Exceptions (after a crash between two databases, or an operator's change) are
repaired and logged. Every task may run twice, and in several conductors at the same time."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from magnetar_control import memory
from magnetar_control.conductor.availability.incident_work import POLL_INTERVAL as AVAILABILITY_INTERVAL
from magnetar_control.conductor.availability.incident_work import AvailabilityWatch
from magnetar_control.conductor.flows import (
    server_confirm_resize,
    server_create_image,
    server_shelve,
    server_soft_delete,
)
from magnetar_control.conductor.hosts.guest_updates import GuestUpdateSender
from magnetar_control.conductor.hosts.host_removals import HostRemovals
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.hosts.image_cache import POLL_INTERVAL, ImageCache
from magnetar_control.conductor.steps.host_groups import GroupUpdateSender
from magnetar_control.conductor.steps.host_updates import QUIET, HostUpdateSender
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.data_migrations import BATCH, DataMigrator
from magnetar_control.services.image.boot_parts import named_parts
from magnetar_control.services.volume.worker import COPY as VOLUME_COPY
from magnetar_control.store.engine.database import ChangeCheck, parse_moment, utc_now
from magnetar_control.store.engine.sqlite import empty_log
from magnetar_control.store.engine.tables import actions, conductors, servers
from magnetar_control.store.hosts import old_incidents
from magnetar_control.store.hosts.capability_marks import KnownCapabilities
from magnetar_control.store.servers.deleted_servers import purge_deleted_servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.store import CELL0
from magnetar_core.errors import InUse, MagnetarError, NotFound

from .audit_state import Finding
from .cell_audit import CellAudit
from .fencing_requests import POLL_INTERVAL as FENCING_INTERVAL
from .fencing_requests import FencingRequests
from .host_drains import POLL_INTERVAL as DRAIN_INTERVAL
from .host_drains import work_on_drains
from .notification_sender import drop_old
from .repair import repair_finding
from .room_check import POLL_INTERVAL as ROOM_INTERVAL
from .room_check import check_cell_room
from .usage_audit import POLL_INTERVAL as USAGE_INTERVAL
from .usage_audit import tell_usage
from .usage_check import POLL_INTERVAL as USAGE_CHECK_INTERVAL
from .usage_check import UsageCheck

log = logging.getLogger(__name__)
#: Seconds between two checks for news of guests and hosts. Times of tasks are rounded to this, so that tasks share
#: wake-ups.
TICK = 1.0
#: Seconds for which the result of ``Periodic.first`` is kept.
HOLDS = 3.5
#: Seconds between two checks for free memory.
FREED = 30.0
#: Seconds without a heartbeat after which a conductor is down.
SILENT = 15.0
#: Seconds of rest after a second of the audit, and the most.
REST, LONGEST_REST = 9.0, 10.0
#: Seconds between two looks for data to migrate.
MIGRATING_INTERVAL = 300.0
#: Seconds that an unused image stays on a host.
UNUSED = 24 * 3600.0
#: Seconds for which SQLite's log may keep deleted data, such as passwords of actions.
EMPTIED = 15.0
#: Names of copies of root disks and volumes on hosts.
OF_A_SERVER = re.compile(re.escape(server_create_image.COPY) + "[0-9a-f-]{36}")
OF_A_VOLUME = re.compile(re.escape(VOLUME_COPY) + "([0-9a-f-]{36})")


class PeriodicTask(NamedTuple):
    """A periodic task of the conductors. *every*: seconds between two runs. *one_conductor*: only one conductor of the
    cell runs it. *own_thread*: run it in a thread of its own, because it takes long and would delay other tasks."""

    name: str
    every: float
    run: Callable[[Periodic], Any]
    one_conductor: bool = True
    own_thread: bool = False


class Periodic:
    """The periodic tasks of one conductor. ``run`` must run in its own thread."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self.watch = HostWatch(conductor)
        self.image_cache = ImageCache(conductor, conductor.over)
        self.guest_updates = GuestUpdateSender(conductor, conductor.over)
        self.group_updates = GroupUpdateSender(conductor, conductor.over)
        self.usage_check = UsageCheck(conductor)
        self.host_removals = HostRemovals(conductor, conductor.over)
        self.availability_watch = AvailabilityWatch(conductor)
        self._cell_audit = CellAudit(conductor, partial(repair_finding, self.watch))
        self._drain_changes = ChangeCheck(conductor.store.api, QUIET)
        #: Whether the cell may have drains of hosts.
        self._has_drains = True
        self.data_migrator = DataMigrator(conductor.store, KnownCapabilities(
            conductor.store, lambda: conductor.settings.host_down_after, lambda: conductor.settings.hold_upgrade))
        self.fencing_requests = FencingRequests(conductor)
        self._fencing_changes = ChangeCheck(conductor.store.api, QUIET)
        #: Whether the cell may have open requests to fence or unfence hosts.
        self._has_fencing_requests = True
        #: Whether this conductor runs the tasks of the cell, and until when this answer is cached.
        self._is_first, self._holds_until = False, 0.0

    def run(self) -> None:
        """Run each periodic task at its interval until the conductor ends."""
        for task in TASKS:
            if task.own_thread:
                threading.Thread(target=self._run_tasks, args=([task],), name=task.name, daemon=True).start()
        self._run_tasks([task for task in TASKS if not task.own_thread])

    def _run_tasks(self, tasks: Sequence[PeriodicTask]) -> None:
        due = {task.name: time.monotonic() + task.every for task in tasks}
        while not self.conductor.over.wait(max(TICK, min(due.values()) - time.monotonic())):
            for task in tasks:
                if due[task.name] <= time.monotonic() and not self.conductor.over.is_set():
                    due[task.name] = time.monotonic() + task.every
                    self._run_task(task)

    def _run_task(self, task: PeriodicTask) -> None:
        try:
            if not task.one_conductor or self._runs_alone():
                task.run(self)
        except DBAPIError as error:
            log.warning("%s: %s", task.name, error.orig)
        except Exception:
            log.exception("%s failed; it is done again in %g s", task.name, task.every)

    def _runs_alone(self) -> bool:
        """Return whether this conductor runs the tasks that only one conductor of the cell may run. The answer is the
        result of ``first``, cached for ``HOLDS`` seconds."""
        if time.monotonic() >= self._holds_until:
            self._is_first, self._holds_until = self.first(), time.monotonic() + HOLDS
        return self._is_first

    def first(self) -> bool:
        """Return whether this conductor runs the tasks that only one conductor of the cell may run. Among the cell's
        conductors that are up, this is the conductor whose unique name in the database (``holder``) sorts first."""
        database = self.conductor.database
        with database.read() as connection:
            name = connection.execute(select(func.min(conductors.c.holder)).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar()
        return name in (None, self.conductor.holder)

    def send_updates(self, sender: HostUpdateSender) -> None:
        """Start a task that sends changes of one type, such as deletions of networks, to the agents of the cell's
        hosts. *sender*: the object that sends them. Do nothing if no changes are pending, or if another conductor runs
        the tasks of the cell."""
        if sender.is_due() and self._runs_alone():
            sender.start_senders()

    def audit(self, rest: Callable[[float], object] = lambda _seconds: None) -> list[Finding]:
        """Run the next part of the audit, which compares the cell's database with services and hosts. Return the
        findings that the previous run had too. *rest*: a function that is called after each page (batch of servers and
        hosts) with the seconds that the page took, and may pause."""
        return self._cell_audit.run_next_part(rest)

    def drain_hosts(self) -> None:
        """Continue the drains of hosts (``host_drains``). While the cell has no drains, send no query until the API
        database has changed."""
        if self._drain_changes.may_have_changed() or self._has_drains:
            self._has_drains = True  # also when the work fails
            self._has_drains = work_on_drains(self.conductor)

    def fence_hosts(self) -> None:
        """Process the requests to fence and unfence hosts. While the cell has no requests, send no query until the API
        database has changed."""
        if self._fencing_changes.may_have_changed() or self._has_fencing_requests:
            self._has_fencing_requests = True  # also when the query fails
            self._has_fencing_requests = self.fencing_requests.serve_requests()

    def migrate_data(self) -> None:
        """Run the pending data migrations of earlier releases in the conductor's databases, in small batches with
        pauses, until nothing is left or a batch migrates nothing."""
        conductor = self.conductor
        databases = [("cell", conductor.cell.name, conductor.database)]
        if conductor.schedules:
            databases += [("api", "api", conductor.store.api), ("cell", "cell0", conductor.store.cell0)]
        while not conductor.over.is_set():
            started = time.monotonic()
            results = list(self.data_migrator.run_batch(BATCH, databases))
            for result in results:
                log.info("data migration %s in %s: %d of %d rows are migrated%s", result.migration.name,
                         result.database, result.migrated, result.found, result.problem and f"; {result.problem}")
            if not any(result.migrated for result in results):
                return
            self.rest_after(time.monotonic() - started)

    def rest_after(self, seconds: float) -> None:
        """Pause in proportion to the *seconds* that a part of a background task took, so that the task does not slow
        down API requests."""
        self.conductor.over.wait(min(REST * seconds, LONGEST_REST))


def empty_logs(conductor: Conductor) -> None:
    """Truncate the write-ahead logs of SQLite databases (the cell's and cell0's), because the logs may contain deleted
    passwords. If a database is busy, its log is truncated at the next run."""
    for database in (conductor.database, conductor.store.cell(CELL0)):
        if database.kind == "sqlite":
            with database.read() as connection:
                empty_log(connection)


def remove_unused_images(conductor: Conductor) -> int:
    """Delete from hosts the cached images that no server has needed for a day, and the disk copies that ``createImage``
    and similar actions have left behind. Return the number of deleted images and copies. A later build downloads a
    deleted image again."""
    count, unused_since = 0, utc_now(-UNUSED)
    for name, host in list(conductor.states.hosts.items()):
        if host.profile.cell_id != conductor.cell.id or not host.profile.up:
            continue
        try:
            with conductor.client(name) as client:
                used = _needed_images(conductor, name, unused_since)
                for image in client.list("image"):
                    # Images that were brought are named by their uuid; others are the host's own.
                    if (image["name"] == image["id"] and image["id"] not in used and _since(image) < unused_since) or (
                            _is_spent_copy(conductor, image["name"])):
                        with contextlib.suppress(InUse, NotFound):
                            client.delete("image", image["id"])
                            count += 1
        except MagnetarError as error:
            log.info("images of host %s: %s", name, error.message)
        else:
            conductor.delivery.forget(name)
    return count


def _is_spent_copy(conductor: Conductor, name: str) -> bool:
    """Return whether the cached image *name* is a temporary disk copy that is no longer needed, because the upload of
    the copy to the image service has ended."""
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
    """Return the time when *image* was last changed, in the format of ``utc_now``."""
    return parse_moment(str(image["updated_at"] or image["created_at"]))


def _needed_images(conductor: Conductor, host: str, deleted_since: str) -> set[str]:
    """Return the uuids of the images, kernels and ramdisks of the servers on *host*. Servers that were deleted after
    *deleted_since* count too, because other conductors may still assume that the host has their images."""
    with conductor.database.read() as connection:  # live and deleted servers have an index each
        rows = [row for condition in (servers.c.deleted_at.is_(None), servers.c.deleted_at > deleted_since)
                for row in connection.execute(select(servers.c.image_id, servers.c.image).distinct().where(
                    servers.c.host == host, servers.c.image_id.is_not(None), condition))]
    return {image for row in map(ServerRow, rows) for image in (row.image_id, *named_parts(row.image).values())}


def _forget_deliveries(periodic: Periodic) -> None:
    """Clear the conductor's cache of which hosts have which images, so that the next builds check the hosts again."""
    periodic.conductor.delivery.known = set()


def _purge(periodic: Periodic) -> None:
    """Delete the rows of servers in the cell and in cell0 that were deleted more than ``purge_deleted_after`` days ago,
    and the rows of incidents and fencing requests that ended before then."""
    conductor = periodic.conductor
    days = conductor.settings.purge_deleted_after
    for database in (conductor.database, conductor.store.cell(CELL0)) if days else ():
        count = purge_deleted_servers(conductor.store, database, utc_now(-86400 * days), over=conductor.over.is_set)
        if count:
            log.info("%d servers that were deleted %g days ago are removed for good", count, days)
    if days:
        cutoff, over = utc_now(-86400 * days), conductor.over.is_set
        incidents = old_incidents.purge_incidents(conductor.database, cutoff, over=over)
        requests = old_incidents.purge_fencing_requests(conductor.store.api, cutoff, over=over)
        if incidents or requests:
            log.info("%d incidents and %d fencing requests that ended %g days ago are removed", incidents, requests,
                     days)


TASKS = (
    PeriodicTask("telling guests", TICK, lambda periodic: periodic.send_updates(periodic.guest_updates),
                 one_conductor=False),
    PeriodicTask("telling hosts of security groups", TICK,
                 lambda periodic: periodic.send_updates(periodic.group_updates),
                 one_conductor=False),
    PeriodicTask("removing deleted things from hosts", TICK, lambda periodic: periodic.send_updates(
        periodic.host_removals), one_conductor=False),
    PeriodicTask("confirming resizes", server_confirm_resize.POLL_INTERVAL,
                 lambda periodic: server_confirm_resize.confirm_expired(periodic.conductor)),
    PeriodicTask("offloading shelved servers", server_shelve.POLL_INTERVAL,
                 lambda periodic: server_shelve.offload_expired(periodic.conductor)),
    PeriodicTask("reclaiming soft-deleted servers", server_soft_delete.POLL_INTERVAL,
                 lambda periodic: server_soft_delete.reclaim_expired(periodic.conductor)),
    PeriodicTask("draining hosts", DRAIN_INTERVAL, Periodic.drain_hosts),
    PeriodicTask("watching for dead hosts", AVAILABILITY_INTERVAL,
                 lambda periodic: periodic.availability_watch.check_hosts(),
                 own_thread=True),
    PeriodicTask("fencing hosts", FENCING_INTERVAL, Periodic.fence_hosts),
    PeriodicTask("bringing images to hosts", POLL_INTERVAL, lambda periodic: periodic.image_cache.start_if_due()),
    PeriodicTask("giving up images for hosts", 3600.0, lambda periodic: periodic.image_cache.forget()),
    PeriodicTask("audit", 120.0, lambda periodic: periodic.audit(periodic.rest_after), own_thread=True),
    PeriodicTask("checking room to fail", ROOM_INTERVAL,
                 lambda periodic: check_cell_room(periodic.conductor, periodic.rest_after), own_thread=True),
    PeriodicTask("checking quota usage", USAGE_CHECK_INTERVAL, lambda periodic: periodic.usage_check.check_next()),
    PeriodicTask("purge", 3600.0, _purge),
    PeriodicTask("migrating data", MIGRATING_INTERVAL, Periodic.migrate_data, own_thread=True),
    PeriodicTask("closing idle connections to agents", 30.0,
                 lambda periodic: periodic.conductor.agents.close_idle(), one_conductor=False),
    PeriodicTask("returning free memory", FREED, lambda _periodic: memory.return_free_memory(), one_conductor=False),
    PeriodicTask("emptying logs of databases", EMPTIED, lambda periodic: empty_logs(periodic.conductor)),
    PeriodicTask("telling usage", USAGE_INTERVAL, lambda periodic: tell_usage(periodic.conductor)),
    PeriodicTask("looking at hosts again", 3600.0, _forget_deliveries, one_conductor=False),
    # In each conductor: only scheduling conductors send from the shared databases, and the first may be none of them.
    PeriodicTask("dropping notifications", 60.0, lambda periodic: drop_old(periodic.conductor), one_conductor=False),
    PeriodicTask("removing images from hosts", 3600.0, lambda periodic: remove_unused_images(periodic.conductor)))
