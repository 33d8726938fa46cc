# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done on hosts: taken from the rows' ``task``, done by the agents, and noted.

Each task may be done twice, since it says what shall be (``ensure``); so one whose process died is begun again when its
lease has ended. A host that does not answer is asked again for a while.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Delete, RowMapping, Table, Update, and_, delete, or_, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import PATIENCE, AgentClient, Agents, plain
from magnetar_control.services import Context, Document, Images, KeyManager
from magnetar_control.store.engine.database import Database, now
from magnetar_core.errors import Conflict, HypervisorDown, MagnetarError, TimedOut, Unavailable, Unreachable

from .rows import document
from .tables import snapshots, volumes

log = logging.getLogger(__name__)
BELL = "volumes"
#: Seconds that a task belongs to who took it; renewed as long as somebody is at it.
LEASE = 15.0
#: How often a host that does not answer is asked, and the seconds between, which double up to the last.
ATTEMPTS, PAUSE, LONGEST = 6, 2.0, 60.0
#: Seconds between looks at the tables when nothing rings: of the first thread, and of the others.
LOOK, SELDOM = 1.0, 5.0
#: Seconds that one task may take.
LIMIT = 6 * 3600.0
#: Prefix of the names of images on hosts that are made of volumes; our image's uuid follows.
COPY = "volume-image-"
ABROAD = (Unreachable, TimedOut, HypervisorDown, Unavailable)

Hosts = Callable[[], Iterable[Mapping[str, Any]]]
Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Reach:
    """How hosts are reached: *hosts* gives [{name, endpoint, disk_gb, disk_gb_free, up}]; *ensure_image* has a host
    have an image. *images*: where images of volumes go; *keys*: those of encrypted volumes."""

    hosts: Hosts
    agents: Agents
    ensure_image: Callable[[str, str], None]
    images: Images | None = None
    keys: KeyManager | None = None

    def client(self, name: str) -> AbstractContextManager[AgentClient]:
        """A client of the agent of a host, which gets an answer soon where that counts as down: its volumes are not to
        keep those of others waiting. Raises ``Unreachable``."""
        for host in self.hosts():
            if host["name"] == name:
                return self.agents.client(host["endpoint"], None if host["up"] else PATIENCE)
        raise Unreachable(f"There is no host {name!r} in this cloud now.")

    def roomiest(self, fits: Callable[[str], bool] | None = None) -> str | None:
        """The host that answers and has the most free disk; of those that *fits* says yes of."""
        up = [host for host in self.hosts() if host["up"] and (fits is None or fits(host["name"]))]
        return max(up, key=lambda host: (host["disk_gb_free"], host["name"]))["name"] if up else None


class Worker:
    """Does tasks, by itself in *threads*, or when asked."""

    def __init__(self, database: Database, reach: Reach, pause: float = PAUSE) -> None:
        self.database, self.reach, self.pause = database, reach, pause
        self.id = str(uuid.uuid4())
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, threads: int = 4) -> None:
        """Work from now on; what a process that died has left is gone on with."""
        self._threads = [threading.Thread(target=self._run, args=(SELDOM if number else LOOK,), daemon=True,
                                          name=f"volumes {number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take nothing more; what is at work goes on until its end, or with another process."""
        self._over.set()
        self.database.bell.ring(BELL)
        for thread in self._threads:
            thread.join(5)

    def rest(self, seen: int, limit: float) -> None:
        """Wait until something rings again, *limit* seconds at most; the tables are not looked at."""
        deadline = time.monotonic() + limit
        while self.database.bell.count(BELL) == seen and not self._over.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.database.bell.wait(BELL, seen, left)

    def _run(self, look: float) -> None:
        while not self._over.is_set():
            seen = self.database.bell.count(BELL)
            try:
                if not self.step():
                    self.rest(seen, look)
            except Exception:
                log.exception("volumes: the work failed; it goes on in a second")
                self._over.wait(1.0)

    def step(self, id: str | None = None) -> bool:
        """Do one task (that of the volume *id*, where given); whether there was one."""
        for table in (volumes,) if id else (volumes, snapshots):
            row = self._take(table, id)
            if row is not None:
                self._do(table, row)
                return True
        return False

    def _take(self, table: Table, id: str | None) -> RowMapping | None:
        ready = _ready(self.database, table, id)
        with self.database.read() as connection:
            query = select(table.c.id).where(ready).order_by(table.c.created_at).limit(8)
            ids = connection.execute(query).scalars().all()
        for one in ids:
            with self.database.write() as connection:
                mine = update(table).where(ready, table.c.id == one).values(
                    holder=self.id, lease_until=self.database.clock(LEASE)).returning(table)
                if row := connection.execute(mine).mappings().first():
                    return row
        return None

    def _do(self, table: Table, row: Row) -> None:
        try:
            with self._kept(table, row):
                found = TASKS[table.name, row["task"]](self, row)
        except ABROAD as error:
            self._again(table, row, error)
        except MagnetarError as error:
            self._failed(table, row, error)
        except Exception:
            log.exception("%s of %s %s", row["task"], table.name, row["id"])
            self._again(table, row, MagnetarError("The service failed at it; the operator's log says why."))
        else:
            if not self._finish(table, row, found) and row["task"] == "create":
                # It was deleted while it was made, by who found the lease ended: what has come since goes too.
                with self.database.read() as connection:
                    left = connection.execute(select(table.c.id).where(table.c.id == row["id"])).first()
                if left is None:
                    TASKS[table.name, "delete"](self, {**row, "host": (found or {}).get("host") or row["host"]})

    @contextlib.contextmanager
    def _kept(self, table: Table, row: Row) -> Iterator[None]:
        """Renew the lease until the block ends, also where a deletion was asked meanwhile, which waits for that."""
        over, held = threading.Event(), and_(table.c.id == row["id"], table.c.holder == row["holder"],
                                             table.c.task.in_((row["task"], "delete")))

        def renew() -> None:
            while not over.wait(LEASE / 3):
                with contextlib.suppress(DBAPIError), self.database.write() as connection:
                    connection.execute(update(table).where(held).values(lease_until=self.database.clock(LEASE)))

        thread = threading.Thread(target=renew, name="volumes lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _finish(self, table: Table, row: Row, values: Document | None) -> bool:
        """Note the end: *values* of the row, or ``None`` when it is gone; whether the task was still this one."""
        statement = delete(table) if values is None else update(table).values(
            task=None, lease_until=None, holder=None, not_before=None, attempts=0, updated_at=now(),
            **{"fault": None, **values})
        return self._note(table, row, statement)

    def _note(self, table: Table, row: Row, statement: Update | Delete) -> bool:
        """Execute it if the task is still the one that was taken; if not, the deletion that was asked meanwhile may
        begin (see ``rows.asked``), and begins again where somebody is at it: he may have come before there was
        anything to delete."""
        with self.database.write() as connection:
            done = connection.execute(statement.where(_mine(table, row))).rowcount > 0
            if not done and row["task"] != "delete":
                connection.execute(update(table).where(table.c.id == row["id"], table.c.task == "delete").values(
                    holder=None, lease_until=None))
            self.database.ring(connection, BELL)
            return done

    def _again(self, table: Table, row: Row, error: MagnetarError) -> None:
        """Later. A deletion waits for its host as long as it takes, so that nothing is left there."""
        if row["attempts"] + 1 >= ATTEMPTS and row["task"] != "delete":
            self._failed(table, row, error)
            return
        log.warning("%s of %s %s: %s; trying again", row["task"], table.name, row["id"], error.message)
        self._note(table, row, update(table).values(
            lease_until=None, holder=None, attempts=row["attempts"] + 1, fault=plain(error),
            not_before=self.database.clock(min(self.pause * 2 ** min(row["attempts"], ATTEMPTS), LONGEST))))

    def _failed(self, table: Table, row: Row, error: MagnetarError) -> None:
        log.error("%s of %s %s failed: %s", row["task"], table.name, row["id"], error.message)
        status: Any = {"delete": "error_deleting", "extend": "error_extending"}.get(row["task"], "error")
        if row["task"] == "upload" or (row["task"] in ("extend", "reimage") and isinstance(error, Conflict)):
            status = table.c.previous_status  # refused, or only read: it is as it was
        if row["task"] == "upload":
            self._give_up_image(row, error)
        self._finish(table, row, {"status": status, "fault": plain(error), **(
            {row["task"]: None} if row["task"] in ("reimage", "upload") else {})})

    def _give_up_image(self, row: Row, error: MagnetarError) -> None:
        """An image of a volume will not come. What the host has of it goes, or is removed by the conductors later."""
        id = document(row["upload"])["image_id"]
        try:
            if self.reach.images:
                self.reach.images.fail(id, plain(error))
            with self.reach.client(row["host"]) as client:
                client.delete("image", COPY + id)
        except MagnetarError as why:
            log.warning("image %s of volume %s is removed from host %s later: %s", id, row["id"], row["host"],
                        why.message)

    def ensure(self, row: Row, noun: str, want: Document) -> Document:
        """Have the host's agent make it so; the resource."""
        with self.reach.client(row["host"]) as client:
            found: Document = client.ensure(noun, row["id"], want, timeout=LIMIT)["resource"]
        return found

    def place(self, row: Row) -> str:
        """The host that the volume lies on; chosen and noted before it is used."""
        if row["host"]:
            return str(row["host"])
        host = self.reach.roomiest()
        if host is None:
            raise Unreachable("No compute host is up that could hold the volume.")
        with self.database.write() as connection:
            if not connection.execute(update(volumes).where(_mine(volumes, row)).values(host=host)).rowcount:
                raise Conflict(f"Volume {row['id']} was deleted before it was made.")
        return host


def _ready(database: Database, table: Table, id: str | None) -> ColumnElement[bool]:
    """Tasks that nobody is at and whose time has come; by the database's clock, for those of machines may differ."""
    moment = database.clock()
    found = and_(table.c.task.is_not(None), or_(table.c.lease_until.is_(None), table.c.lease_until < moment),
                 or_(table.c.not_before.is_(None), table.c.not_before <= moment))
    return and_(found, table.c.id == id) if id else found


def _mine(table: Table, row: Row) -> ColumnElement[bool]:
    """The row, as long as its task is the one that was taken, by who took it."""
    return and_(table.c.id == row["id"], table.c.task == row["task"], table.c.holder == row["holder"])


def _create_volume(worker: Worker, row: Row) -> Document:
    row = {**row, "host": worker.place(row)}
    want: Document = {"name": f"volume-{row['id']}", "size": row["size"],
                      "pool": row["pool"] or row["volume_type"],
                      "multiattach": row["multiattach"]}
    if row["image_id"]:
        worker.reach.ensure_image(row["host"], row["image_id"])
        want["image"] = row["image_id"]
    elif row["snapshot_id"]:
        want["snapshot"] = row["snapshot_id"]
    elif row["source_volid"]:
        want["source_volume"] = row["source_volid"]
    if row["encryption_key_id"]:
        want.update(format="luks", key=_key(worker, row))
    worker.ensure(row, "volume", want)
    return {"status": "available", "host": row["host"]}


def _key(worker: Worker, row: Row) -> str:
    """The key of a volume, which is made once. That of a copy is the key of its source."""
    if worker.reach.keys is None:
        raise Conflict("There is no key manager here, so no volume can be encrypted.")
    with worker.database.read() as connection:
        origin = row["source_volid"] or connection.execute(select(snapshots.c.volume_id).where(
            snapshots.c.id == row["snapshot_id"])).scalar()
        like = connection.execute(select(volumes.c.encryption_key_id).where(volumes.c.id == origin)).scalar()
    return worker.reach.keys.create_key(row["encryption_key_id"], like)


def _extend_volume(worker: Worker, row: Row) -> Document:
    worker.ensure(row, "volume", {"size": row["new_size"]})
    # Of the row as it is by then: a server may have let go of it.
    return {"status": volumes.c.previous_status, "size": row["new_size"], "new_size": None, "previous_status": None}


def _reimage_volume(worker: Worker, row: Row) -> Document:
    told = document(row["reimage"])
    worker.reach.ensure_image(row["host"], told["image_id"])
    worker.ensure(row, "volume", {"reimage": {"image": told["image_id"], "request": told["request"]}})
    # Of the row as it is by then, as above.
    return {"status": volumes.c.previous_status, "previous_status": None, "bootable": True,
            "image_id": told["image_id"], "image_metadata": told["image_metadata"],
            "reimage": orjson.dumps({**told, "done": True}).decode()}


def _upload_volume(worker: Worker, row: Row) -> Document:
    """The host makes an image of its own of the volume, of which the image service gets the content."""
    images, id = worker.reach.images, document(row["upload"])["image_id"]
    there = images.show(Context(row["user_id"], row["project_id"], frozenset(("admin",))), id) if images else None
    if images is None or there is None:
        raise Conflict(f"Image {id} was deleted before it had its content.")
    key = f"{COPY}{id}"
    with worker.reach.client(row["host"]) as client:
        if there["status"] != "active":
            client.ensure("image", key, {"name": key, "source": {"volume": row["id"]},
                                         "disk_format": there["disk_format"]}, timeout=LIMIT)
            pieces, size = client.receive("image", key)
            images.upload(id, pieces, size=size)
        client.delete("image", key)
    return {"status": volumes.c.previous_status, "previous_status": None, "upload": None}


def _create_snapshot(worker: Worker, row: Row) -> Document:
    found = worker.ensure(row, "volume_snapshot", {"name": f"snapshot-{row['id']}", "volume": row["volume_id"]})
    return {"status": "available", "size": found.get("size") or row["size"]}


def _delete(noun: str, worker: Worker, row: Row) -> None:
    # A host that the cloud has no more took its content with it.
    if row["host"] and any(host["name"] == row["host"] for host in worker.reach.hosts()):
        with worker.reach.client(row["host"]) as client:
            client.delete(noun, row["id"], timeout=LIMIT)
    if row.get("encryption_key_id") and worker.reach.keys:
        worker.reach.keys.delete_key(row["encryption_key_id"])


TASKS: Mapping[tuple[str, str], Callable[[Worker, Row], Document | None]] = {
    ("volumes", "create"): _create_volume, ("volumes", "extend"): _extend_volume,
    ("volumes", "reimage"): _reimage_volume, ("volumes", "upload"): _upload_volume,
    ("volumes", "delete"): partial(_delete, "volume"),
    ("volume_snapshots", "create"): _create_snapshot,
    ("volume_snapshots", "delete"): partial(_delete, "volume_snapshot")}
