# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker of volume tasks. It takes a task from the column ``task`` of a volume, snapshot or backup, has the host's
agent do the work, and stores the result.

A task may run twice without harm, because it states the result (``ensure``). A task whose process died starts again
when its lease has ended. If a host does not answer, the task is retried for a while.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    RowMapping,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import user_message
from magnetar_control.services import Context
from magnetar_control.store.engine.database import ChangeCheck, Database, utc_now
from magnetar_control.store.hosts.host_removals import mark_removals_due
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, MagnetarError, Unreachable

from . import backup_tasks
from .homes import VolumeHomes
from .managing_worker import MANAGE, UNMANAGE, leave_content, take_content_over
from .migration_rows import MIGRATE, cancelled_values
from .migration_worker import StillMoving, drop_migration, migrate_volume
from .pools import find_pool_on_host
from .reach import ABROAD, Reach
from .reimage_data import reimage_metadata
from .removal_rows import RECORD
from .tables import backups, snapshots, volumes

log = logging.getLogger(__name__)
VOLUMES_CHANGED = "volumes"
#: Seconds that a task belongs to the worker that took it; renewed while the worker is busy with it.
LEASE = 15.0
#: Maximum number of attempts while a host does not answer; seconds between them, which double, and their maximum.
ATTEMPTS, PAUSE, LONGEST = 6, 2.0, 60.0
#: Seconds between reads of the tables without a signal: by the first thread, and by each other one.
POLL_INTERVAL, SELDOM = 1.0, 5.0
#: Seconds between reads of the tables while there are no tasks and the database seems unchanged.
QUIET = 15.0
#: Seconds that one task may take.
LIMIT = 6 * 3600.0
#: Prefix of the names of images that hosts make from volumes. The uuid in the image service follows.
COPY = "volume-image-"
#: The tables with tasks, in the order in which their tasks are taken.
_TABLES = (volumes, snapshots, backups)
_HAS_TASKS = select(or_(*(exists().where(table.c.task.is_not(None)) for table in _TABLES)))
#: Statuses of volumes after a task has failed; ``error`` after others.
FAILED = {"delete": "error_deleting", "extend": "error_extending", MANAGE: "error_managing",
          UNMANAGE: "error_unmanaging"}

Row = Mapping[Any, Any]


class Worker:
    """The executor of the queued tasks of volumes, snapshots and backups: in background threads (``start``), or one
    task per call (``step``). *reach*: access to the hosts. *pause*: seconds before the first retry of a failed task."""

    def __init__(self, database: Database, reach: Reach, pause: float = PAUSE) -> None:
        self.database, self.reach, self.pause = database, reach, pause
        self.homes = VolumeHomes(database, reach)
        self.id = str(uuid.uuid4())
        #: The query for tasks, built once, by table.
        self._waiting = {table.name: _waiting_query(table, database.clock() if database.kind == "postgresql" else
                                                    bindparam("moment")) for table in _TABLES}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, threads: int = 4, backup_threads: int = 2) -> None:
        """Start *threads* threads for the tasks of volumes and snapshots, and *backup_threads* threads for the tasks of
        backups, which may take hours. The threads also continue the tasks of processes that died."""
        self._threads = [threading.Thread(target=self._run, args=(SELDOM if number else POLL_INTERVAL, tables),
                                          daemon=True,
                                          name=f"{name} {number}")
                         for name, count, tables in (("volumes", threads, (volumes, snapshots)),
                                                     ("backups", backup_threads, (backups,)))
                         for number in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop taking new tasks, and wait up to 5 seconds for each thread. Another process continues tasks that are
        still running after that."""
        self._over.set()
        self.database.signals.notify(VOLUMES_CHANGED)
        for thread in self._threads:
            thread.join(5)

    def rest(self, signal_count: int, limit: float) -> None:
        """Wait at most *limit* seconds for the notification of a new task. *signal_count*: how many notifications of
        volume tasks the caller has seen (``database.signals.count``); if there are more already, return immediately.
        Does not read the tables."""
        if not self._over.is_set():
            self.database.signals.wait_for_signal(VOLUMES_CHANGED, signal_count, limit)

    def _run(self, look: float, tables: Sequence[Table]) -> None:
        changes, has_tasks = ChangeCheck(self.database, QUIET), True
        while not self._over.is_set():
            signal_count = self.database.signals.count(VOLUMES_CHANGED)
            try:
                if not (changes.may_have_changed() or has_tasks):
                    self.rest(signal_count, look)
                elif not self.step(tables=tables):
                    has_tasks = self._has_tasks()
                    self.rest(signal_count, look)
                else:
                    has_tasks = True
            except Exception:
                log.exception("volumes: the work failed; it goes on in a second")
                self._over.wait(1.0)

    def _has_tasks(self) -> bool:
        """Return whether any tasks are queued or running, including tasks of other workers and tasks that wait for a
        retry."""
        with self.database.read() as connection:
            return bool(connection.execute(_HAS_TASKS).scalar())

    def step(self, id: str | None = None, tables: Sequence[Table] = _TABLES) -> bool:
        """Execute one task that is ready in one of *tables*. *id*: only a task of this volume. Return whether there was
        such a task."""
        for table in (volumes,) if id else tables:
            row = self._take(table, id)
            if row is not None:
                self._do(table, row)
                return True
        return False

    def _take(self, table: Table, id: str | None) -> RowMapping | None:
        with self.database.read() as connection:
            if id is None:
                ids = connection.execute(self._waiting[table.name], {"moment": utc_now()}).scalars().all()
            else:
                ids = connection.execute(_waiting_query(table, self.database.clock(), id)).scalars().all()
        for row_id in ids:
            with self.database.write() as connection:
                ready = _ready(table, self.database.clock(), row_id)
                mine = update(table).where(ready).values(
                    holder=self.id, lease_until=self.database.clock(LEASE)).returning(table)
                if row := connection.execute(mine).mappings().first():
                    return row
        return None

    def _do(self, table: Table, row: Row) -> None:
        try:
            with self._renewed_lease(table, row):
                row = self._on_living_host(table, row)
                new_values = TASKS[table.name, row["task"]](self, row)
        except StillMoving:
            self._note(table, row, update(table).values(lease_until=None, holder=None,
                                                        not_before=self.database.clock(self.pause)))
        except ABROAD as error:
            self._again(table, row, error)
        except MagnetarError as error:
            self._failed(table, row, error)
        except Exception:
            log.exception("%s of %s %s", row["task"], table.name, row["id"])
            self._again(table, row, MagnetarError("The service failed at it; the operator's log says why."))
        else:
            if not self._finish(table, row, new_values) and row["task"] == "create":
                # The volume was deleted while it was made, by a worker that found the lease ended. Delete what was made
                # since.
                with self.database.read() as connection:
                    remaining_row = connection.execute(select(table.c.id).where(table.c.id == row["id"])).first()
                if remaining_row is None:
                    TASKS[table.name, "delete"](self, {**row, "host": (new_values or {}).get("host") or row["host"]})

    @contextlib.contextmanager
    def _renewed_lease(self, table: Table, row: Row) -> Iterator[None]:
        """Renew this worker's lease (its right to execute the task of *row*) until the ``with`` block ends. The lease
        is renewed even if the deletion of the volume is requested meanwhile, because the deletion must wait for the end
        of the running task."""
        over, own_task = threading.Event(), and_(table.c.id == row["id"], table.c.holder == row["holder"],
                                                 table.c.task.in_((row["task"], "delete")))

        def renew() -> None:
            while not over.wait(LEASE / 3):
                with contextlib.suppress(DBAPIError), self.database.write() as connection:
                    connection.execute(update(table).where(own_task).values(lease_until=self.database.clock(LEASE)))

        thread = threading.Thread(target=renew, name="volumes lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _finish(self, table: Table, row: Row, values: Document | None, error: MagnetarError | None = None) -> bool:
        """Record that the task of *row* has ended. *values*: the new column values; ``None``: delete the row. *error*:
        why the task failed. Return false if the row no longer had this task."""
        statement = delete(table) if values is None else update(table).values(
            task=None, lease_until=None, holder=None, not_before=None, attempts=0, updated_at=utc_now(),
            **{"fault": None, **values})
        return self._note(table, row, statement, lambda connection: backup_tasks.complete_backup_task(
            connection, row, error) if table is backups else None)

    def _note(self, table: Table, row: Row, statement: Update | Delete,
              complete: Callable[[Connection], None] = lambda _connection: None) -> bool:
        """Execute *statement* and call *complete*, and return true, if the row in the database still has the task and
        the worker in *row*. Otherwise return false. If the deletion of the object was requested meanwhile (see
        ``rows.queue_volume_task``), also clear the lease in the database, so that the deletion can start. A deletion
        that is already running starts again, because it may have run before the task of *row* created content."""
        with self.database.write() as connection:
            done = connection.execute(statement.where(_own_task_condition(table, row))).rowcount > 0
            if done:
                complete(connection)
            if not done and row["task"] != "delete":
                connection.execute(update(table).where(table.c.id == row["id"], table.c.task == "delete").values(
                    holder=None, lease_until=None))
            self.database.notify(connection, VOLUMES_CHANGED)
            return done

    def _again(self, table: Table, row: Row, error: MagnetarError) -> None:
        """Queue the task of *row* for a retry after a delay. After ``ATTEMPTS`` attempts, record instead that the task
        failed with *error*. A deletion, or the undoing of a migration, is retried without limit, so that no content
        remains on a host."""
        cancelled = row["task"] == MIGRATE and row["migration"] and row["migration"]["cancelled"]
        if row["attempts"] + 1 >= ATTEMPTS and row["task"] != "delete" and not cancelled:
            self._failed(table, row, error)
            return
        log.warning("%s of %s %s: %s; trying again", row["task"], table.name, row["id"], error.message)
        self._note(table, row, update(table).values(
            lease_until=None, holder=None, attempts=row["attempts"] + 1, fault=user_message(error),
            not_before=self.database.clock(min(self.pause * 2 ** min(row["attempts"], ATTEMPTS), LONGEST))))

    def _failed(self, table: Table, row: Row, error: MagnetarError) -> None:
        log.error("%s of %s %s failed: %s", row["task"], table.name, row["id"], error.message)
        if row["task"] == MIGRATE and row["migration"] and not row["migration"]["cancelled"]:
            self._note(table, row, update(table).values(**cancelled_values(row), fault=user_message(error)))
            return  # the next task undoes it
        status: Any = FAILED.get(row["task"], "error")
        if row["task"] == "upload" or (row["task"] in ("extend", "reimage") and isinstance(error, Conflict)):
            status = table.c.previous_status  # refused, or only read: nothing has changed
        elif table is backups:
            status = "available" if row["task"] == "restore" else "error"
        if row["task"] == "upload":
            self._give_up_image(row, error)
        self._finish(table, row, {"status": status, "fault": user_message(error), **(
            {row["task"]: None} if row["task"] in ("reimage", "upload", "restore") else {})}, error)

    def _give_up_image(self, row: Row, error: MagnetarError) -> None:
        """Set the image of a failed upload to failed because of *error*, and delete its local copy on the volume's
        host. *row*: the volume. If the host does not answer, conductors delete the copy later."""
        id = row["upload"]["image_id"]
        try:
            if self.reach.images:
                self.reach.images.fail(id, user_message(error))
            with self.reach.client(row["host"]) as client:
                client.delete("image", COPY + id)
        except MagnetarError as why:
            log.warning("image %s of volume %s is removed from host %s later: %s", id, row["id"], row["host"],
                        why.message)

    def ensure(self, row: Row, resource_type: str, want: Document) -> Document:
        """Have the agent of the host in *row* create or change a resource. *resource_type*: the type of the resource
        (volume, volume_snapshot, volume_backup); the key of the resource is the id of *row*. *want*: the fields to set.
        Return the resource as the agent reports it."""
        with self.reach.client(row["host"]) as client:
            resource: Document = client.ensure(resource_type, row["id"], want, timeout=LIMIT)["resource"]
        return resource

    def _on_living_host(self, table: Table, row: Row) -> Row:
        """Return the volume *row* with a host that is up and reaches the volume's pool. If its host is down, or has
        lost the pool, give the volume another host that reaches the pool. While a server has the volume, only the
        server's host is possible. If there is no such host, return *row* unchanged: the task then waits for the
        volume's host. *table*: the table of *row*; rows of other tables than volumes are returned unchanged."""
        if table is not volumes or not row["host"] or row["task"] in ("create", MIGRATE, MANAGE):
            return row
        up = {host["name"] for host in self.reach.hosts() if host["up"]}
        try:
            server_id, hosts = self.homes.next_hosts(row["id"], is_up=row["host"] in up)
            for host in sorted(hosts & up):
                self.homes.move(row["id"], host, server_id, holder=self.id)
                log.warning("volume %s: host %s does not reach it, so host %s has it now", row["id"], row["host"], host)
                return {**row, "host": host}
        except MagnetarError as error:
            log.warning("volume %s stays on host %s, which does not reach it: %s", row["id"], row["host"],
                        error.message)
        return row

    def remove(self, row: Row, resource_type: str) -> None:
        """Have the agent of the host in *row* remove a resource. *resource_type*: the type of the resource (volume,
        volume_snapshot, volume_backup); the key of the resource is the id of *row*."""
        with self.reach.client(row["host"]) as client:
            client.delete(resource_type, row["id"], timeout=LIMIT)

    def new_volume(self, row: Row) -> Document:
        """Return the request body that makes the agent create the volume *row*, without the volume's source. For an
        encrypted volume, also create the encryption key."""
        want: Document = {"name": f"volume-{row['id']}", "size": row["size"],
                          "pool": row["pool"] or row["volume_type"], "multiattach": row["multiattach"]}
        return {**want, "format": "luks", "key": _key(self, row)} if row["encryption_key_id"] else want

    def choose_host(self, row: Row) -> str:
        """Return the host of the volume *row*. If it has none, choose one, and save the choice before anything is
        created on the host. Raises ``Unreachable`` if no host is suitable, ``Conflict`` if the volume was deleted."""
        if row["host"]:
            return str(row["host"])
        host = self.reach.roomiest(row["pool"] or row["volume_type"])
        if host is None:
            raise Unreachable("No compute host is up that has the volume's pool.")
        with self.database.write() as connection:
            if not connection.execute(update(volumes).where(_own_task_condition(volumes,
                                                                                row)).values(host=host)).rowcount:
                raise Conflict(f"Volume {row['id']} was deleted before it was made.")
        return host


def _waiting_query(table: Table, moment: Any, id: str | None = None) -> Select[Any]:
    """Return the SQL query for the ids of the rows of *table* whose tasks a worker may start at *moment* (a time or an
    SQL parameter), the oldest first. *id*: only of this row."""
    return select(table.c.id).where(_ready(table, moment, id)).order_by(table.c.created_at).limit(8)


def _ready(table: Table, moment: Any, id: str | None) -> ColumnElement[bool]:
    """Return the SQL condition for rows of *table* with a task that no worker executes and that may start at *moment*.
    *moment*: a time by the clock of the database, because the clocks of machines may differ. *id*: only this row."""
    is_ready = and_(table.c.task.is_not(None), or_(table.c.lease_until.is_(None), table.c.lease_until < moment),
                    or_(table.c.not_before.is_(None), table.c.not_before <= moment))
    return and_(is_ready, table.c.id == id) if id else is_ready


def _own_task_condition(table: Table, row: Row) -> ColumnElement[bool]:
    """Return the SQL condition that is true while the row of *table* still has the task and the worker in *row*, which
    was read when the worker took the task."""
    return and_(table.c.id == row["id"], table.c.task == row["task"], table.c.holder == row["holder"])


def _create_volume(worker: Worker, row: Row) -> Document:
    row = {**row, "host": worker.choose_host(row)}
    want = worker.new_volume(row)
    if row["image_id"]:
        worker.reach.ensure_image(row["host"], row["image_id"])
        want["image"] = row["image_id"]
    elif row["snapshot_id"]:
        want["snapshot"] = row["snapshot_id"]
    elif row["source_volid"]:
        want["source_volume"] = row["source_volid"]
    worker.ensure(row, "volume", want)
    with worker.database.read() as connection:
        pool = find_pool_on_host(connection, row["host"], want["pool"])
    return {"status": "available", "host": row["host"], "pool_id": pool.id if pool else None}


def _key(worker: Worker, row: Row) -> str:
    """Return the encryption key of the volume *row*; create the key if it does not exist. A volume that is a copy gets
    the same key as its source."""
    if worker.reach.keys is None:
        raise Conflict("There is no key manager here, so no volume can be encrypted.")
    with worker.database.read() as connection:
        origin = row["source_volid"] or connection.execute(select(snapshots.c.volume_id).where(
            snapshots.c.id == row["snapshot_id"])).scalar()
        like = connection.execute(select(volumes.c.encryption_key_id).where(volumes.c.id == origin)).scalar()
    return worker.reach.keys.create_key(row["encryption_key_id"], like)


def _extend_volume(worker: Worker, row: Row) -> Document:
    worker.ensure(row, "volume", {"size": row["new_size"]})
    # The column, not its old value: a server may have detached the volume meanwhile.
    return {"status": volumes.c.previous_status, "size": row["new_size"], "new_size": None, "previous_status": None}


def _reimage_volume(worker: Worker, row: Row) -> Document:
    reimage_task = row["reimage"]
    worker.reach.ensure_image(row["host"], reimage_task["image_id"])
    worker.ensure(row, "volume", {"reimage": {"image": reimage_task["image_id"], "request": reimage_task["request"]}})
    # The column, as above.
    return {"status": volumes.c.previous_status, "previous_status": None, "bootable": True,
            "image_id": reimage_task["image_id"], "image_metadata": reimage_metadata(reimage_task),
            "reimage": {**reimage_task, "done": True}}


def _upload_volume(worker: Worker, row: Row) -> Document:
    """Execute the task "upload": the agent of the volume's host converts the volume *row* to a local image, and this
    process uploads it to the image service. Return the new column values of the volume."""
    images, id = worker.reach.images, row["upload"]["image_id"]
    image = images.show(Context(row["user_id"], row["project_id"], frozenset(("admin",))), id) if images else None
    if images is None or image is None:
        raise Conflict(f"Image {id} was deleted before it had its content.")
    key = f"{COPY}{id}"
    with worker.reach.client(row["host"]) as client:
        if image["status"] != "active":
            client.ensure("image", key, {"name": key, "source": {"volume": row["id"]},
                                         "disk_format": image["disk_format"]}, timeout=LIMIT)
            pieces, size = client.receive("image", key)
            images.upload(id, pieces, size=size)
        client.delete("image", key)
    return {"status": volumes.c.previous_status, "previous_status": None, "upload": None}


def _migrate_volume(worker: Worker, row: Row) -> Document:
    return migrate_volume(worker.database, worker.reach, row)


def _manage_volume(worker: Worker, row: Row) -> Document:
    return take_content_over(worker.reach, row)


def _unmanage_volume(worker: Worker, row: Row) -> None:
    leave_content(worker.reach, row)


def _create_snapshot(worker: Worker, row: Row) -> Document:
    resource = worker.ensure(row, "volume_snapshot", {"name": f"snapshot-{row['id']}", "volume": row["volume_id"]})
    return {"status": "available", "size": resource.get("size") or row["size"]}


def _delete(resource_type: str, worker: Worker, row: Row) -> None:
    if row.get("migration"):
        drop_migration(worker.database, worker.reach, row)
    # The content of a host that was removed from the cloud is lost already.
    if row["host"] and any(host["name"] == row["host"] for host in worker.reach.hosts()):
        worker.remove(row, resource_type)
    if row.get("encryption_key_id") and worker.reach.keys:
        worker.reach.keys.delete_key(row["encryption_key_id"])
    with worker.database.write() as connection:  # a move of the volume may have been broken off
        mark_removals_due(connection, RECORD, row["id"])


TASKS: Mapping[tuple[str, str], Callable[[Worker, Row], Document | None]] = {
    ("volumes", "create"): _create_volume, ("volumes", "extend"): _extend_volume,
    ("volumes", "reimage"): _reimage_volume, ("volumes", "upload"): _upload_volume,
    ("volumes", MIGRATE): _migrate_volume, ("volumes", MANAGE): _manage_volume,
    ("volumes", UNMANAGE): _unmanage_volume, ("volumes", "delete"): partial(_delete, "volume"),
    ("volume_snapshots", "create"): _create_snapshot,
    ("volume_snapshots", "delete"): partial(_delete, "volume_snapshot"),
    **{("volume_backups", task): function for task, function in backup_tasks.TASKS.items()}}
