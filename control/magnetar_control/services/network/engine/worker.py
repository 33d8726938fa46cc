# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker that writes changes to the engine. Each process of the control plane has one; only the worker of the
leading process writes.

Changes are read from notes (rows of ``changes``). A note is removed when the engine has the change. A crash loses
nothing: the next leading worker finds the note.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine.database import Database
from magnetar_core.errors import MagnetarError, Unavailable

from . import changes
from .engine import EngineDifference, Incomplete, NetworkEngine
from .wanted import knows_nothing, read_desired_units

log = logging.getLogger(__name__)
#: Seconds between two reads of the notes. A signal announces new notes of this process immediately.
POLL_INTERVAL = 0.5
#: Seconds between two comparisons of everything.
ALL = 300.0
#: Seconds until the worker tries again after the engine did not answer.
AGAIN = 2.0
#: Seconds that the start of a guest waits for the hosts if they were too slow the last time. A host that is down
#: applies no change until it is back or removed from OVN.
BEHIND = 0.5


class Wait(NamedTuple):
    """How long the start of a guest waits for the network engine (OVN), in seconds. *engine*: until the engine has the
    guest's ports. *hosts*: after that, until the hosts have applied the change."""

    engine: float = 30.0
    hosts: float = 5.0


class WriteWatch:
    """The progress that one waiting caller observes: the ids of the queued changes that this process has written to the
    engine since the wait began (``notes``), and the number that the engine gave to the last change (``number``). The
    event ``signalled`` is set after each write."""

    def __init__(self) -> None:
        self.notes: set[str] = set()
        self.number, self.signalled = 0, threading.Event()


class EngineWorker:
    """The thread that writes queued changes to the network engine (OVN), and the methods that wait for these writes.
    *wait*: the maximum time that callers wait. *gateways*: the hosts that may have the gateways of routers."""

    def __init__(self, database: Database, engine: NetworkEngine, wait: Wait = Wait(),  # noqa: B008 - it is frozen
                 gateways: Sequence[str] = ()) -> None:
        self.database, self.engine, self.wait, self.gateways = database, engine, wait, gateways
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._whole = -ALL  # the time of the last comparison of everything
        self._silent = False
        self._behind = False
        #: Whether this process writes the noted changes to the engine.
        self.leads = False
        self._lock = threading.Lock()
        self._write_watches: set[WriteWatch] = set()

    def start(self) -> None:
        """Request the right to write to the engine, and start the thread, if it is not running."""
        if self._thread is None:
            self.engine.claim()
            self._thread = threading.Thread(target=self._run, name="network engine", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current writes, and close the engine."""
        self._over.set()
        self.database.signals.notify(changes.NETWORK_CHANGED)
        if self._thread is not None:
            self._thread.join()
        self.engine.close()

    def _run(self) -> None:
        while not self._over.is_set():
            signal_count, failed = self.database.signals.count(changes.NETWORK_CHANGED), True
            try:
                self.round()
            except (MagnetarError, DBAPIError) as error:
                self._tell(error)
            except Exception:
                log.exception("the engine of networks: a round failed; it is done again")
            else:
                failed = self._silent = False
            if failed:
                self.leads = False  # as far as this process knows
                self._over.wait(AGAIN)  # even if there is a signal
            else:
                self.database.signals.wait(changes.NETWORK_CHANGED, signal_count, POLL_INTERVAL)

    def _tell(self, error: Exception) -> None:
        """Log a warning about *error*, unless a warning was already logged since the engine last worked."""
        if not self._silent:
            log.warning("networks are not written to the engine: %s",
                        error.message if isinstance(error, MagnetarError) else error)
        self._silent = True

    def round(self) -> None:
        """Write all queued changes to the engine, if this process has the right to write. First compare the whole
        content (``whole``) if this process did not write it last, or if the last comparison is older than ``ALL``
        seconds. Changes of ports with an unknown chassis remain in the queue for the next round."""
        self.leads = self.engine.leads()
        if not self.leads:
            return
        if not self.engine.knows_all() or time.monotonic() - self._whole > ALL:
            self.whole()
        last_id = ""
        while not self._over.is_set():
            with self.database.read() as connection:
                noted = changes.read_change_notes(connection, last_id)
                # A unit without a note is up to date in the engine, provided that all notes were read.
                engine_has = self.engine.has if len(noted) < changes.MANY and not last_id else knows_nothing
                desired = read_desired_units(connection, noted.values(), self.gateways, engine_has)
            if not noted:
                return
            ready = _without(noted, self.engine.unplaced(desired))
            try:
                number = self.engine.repair(desired)
            except Incomplete as why:
                log.info("everything is written to the engine: %s", why)
                self.whole()
            else:
                if ready:
                    self._done(ready, number)
            if len(noted) < changes.MANY:
                return  # a signal announces later notes
            if last_id or len(ready) < len(noted):  # otherwise read from the start: new notes may sort before
                last_id = next(reversed(noted))

    def whole(self) -> None:
        """Compare the whole content of the engine with the database, and correct all differences."""
        with self.database.read() as connection:
            noted = changes.read_change_notes(connection)
            desired = read_desired_units(connection, gateways=self.gateways)
        later = self.engine.unplaced(desired)
        number = self.engine.repair(desired)
        self._done(_without(noted, later), number)
        self._whole = time.monotonic()

    def _done(self, noted: Collection[str], number: int) -> None:
        """Remove *noted* (ids of rows) from the queue, because these changes are written to the engine. *number*: the
        number that the engine gave to the last change. Waiting callers are notified first, so that they do not wait for
        the removal. If the process crashes before the removal, the changes are written again, which is harmless."""
        self._tell_waiting(noted, number)
        changes.finish_change_notes(self.database, noted, number)
        self._tell_waiting(noted, number)  # again, for callers that read the notes since

    def _tell_waiting(self, noted: Collection[str], number: int) -> None:
        with self._lock:
            for write_watch in self._write_watches:
                write_watch.notes.update(noted)
                write_watch.number = number
                write_watch.signalled.set()

    def wait_until_applied(self, units: Collection[str]) -> None:
        """Wait until *units* (keys such as ``port/UUID``) are written to the engine, and then a few seconds until the
        hosts have applied the change. Raises ``Unavailable`` if *units* are not written in time."""
        if units:
            with self.watch_writes() as write_watch:
                self.follow(units, write_watch)

    @contextlib.contextmanager
    def watch_writes(self) -> Iterator[WriteWatch]:
        """Yield a ``WriteWatch`` that is updated after each write to the engine, until the ``with`` block ends."""
        write_watch = WriteWatch()
        with self._lock:
            self._write_watches.add(write_watch)
        try:
            yield write_watch
        finally:
            with self._lock:
                self._write_watches.discard(write_watch)

    def follow(self, units: Collection[str], write_watch: WriteWatch, number: int | None = None) -> None:
        """Wait until *units* (keys such as ``port/UUID``) are written to the engine, and then a few seconds until the
        hosts have applied the change. *write_watch*: from ``watch_writes``. *number*: the number of the engine's last
        change, if the caller knows that *units* are written already; then wait only for the hosts."""
        if number is None:
            number = self._written(units, write_watch)
        if self.wait.hosts <= 0:
            return
        patience = min(self.wait.hosts, BEHIND) if self._behind else self.wait.hosts
        behind = not self.engine.reached(number, patience)
        if behind and not self._behind:
            log.warning("not all hosts have followed OVN within %g s; guests start all the same", patience)
        self._behind = behind

    def _written(self, units: Collection[str], write_watch: WriteWatch) -> int:
        """Wait until *units* (keys such as ``port/UUID``) are written to the engine, and return the number of the
        engine's last change. *write_watch*: from ``watch_writes``. Raises ``Unavailable`` after a timeout."""
        deadline = time.monotonic() + self.wait.engine
        while True:
            signal_count = self.database.signals.count(changes.WRITTEN)
            with self.database.read() as connection:
                pending = changes.pending_changes(connection, units)
            if not pending.notes:
                return pending.number
            look = time.monotonic() + POLL_INTERVAL
            while self.leads and time.monotonic() < min(look, deadline):  # no other process writes then
                with self._lock:
                    if pending.notes <= write_watch.notes:
                        return write_watch.number
                    write_watch.signalled.clear()
                write_watch.signalled.wait(min(look, deadline) - time.monotonic())
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise Unavailable(f"OVN did not take the server's ports within {self.wait.engine:g} s. See whether its "
                                  "northbound database answers (`magnetar audit`).", everywhere=True)
            if not self.leads:
                self.database.signals.wait(changes.WRITTEN, signal_count, min(remaining, POLL_INTERVAL))

    def differences(self) -> list[EngineDifference]:
        """Return the differences between the engine's content and the database, without objects whose changes are still
        in the queue."""
        with self.database.read() as connection:
            desired = read_desired_units(connection, gateways=self.gateways)
        differences = self.engine.differences(desired)
        with self.database.read() as connection:
            noted = changes.noted_units(connection)
        return [difference for difference in differences if difference.unit not in noted]


def _without(noted: Mapping[str, str], later: Collection[str]) -> dict[str, str]:
    """Return *noted* ({id of the note: key of the changed object}) without the notes of the objects *later*, which a
    later round must write again."""
    return {id: unit for id, unit in noted.items() if unit not in later}
