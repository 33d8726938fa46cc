# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes to the engine what has changed. Each process of the control plane has a worker; the one that leads writes.

A note goes when the engine has what it says, so a crash loses nothing: the note is there again for the next.
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
from .wanted import read, unknown

log = logging.getLogger(__name__)
#: Seconds between two looks for notes: of what this process writes a bell tells.
LOOK = 0.5
#: Seconds between two comparisons of everything.
ALL = 300.0
#: Seconds before the engine is asked again after it did not answer.
AGAIN = 2.0
#: Seconds that the start of a guest waits for hosts where these did not follow the last time: one that is down never
#: does, until it is back or taken out of OVN.
BEHIND = 0.5


class Wait(NamedTuple):
    """Seconds that the start of a guest waits: for the engine to have its ports, then for hosts to follow."""

    engine: float = 30.0
    hosts: float = 5.0


class Hearing:
    """Somebody who waits, and the notes that this process has written since it began to."""

    def __init__(self) -> None:
        self.notes: set[str] = set()
        self.number, self.rung = 0, threading.Event()


class EngineWorker:
    """A thread, and those who wait for it. *gateways*: hosts through which routers go out."""

    def __init__(self, database: Database, engine: NetworkEngine, wait: Wait = Wait(),  # noqa: B008 - it is frozen
                 gateways: Sequence[str] = ()) -> None:
        self.database, self.engine, self.wait, self.gateways = database, engine, wait, gateways
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._whole = -ALL  # when everything was compared
        self._silent = False
        self._behind = False
        #: Whether this process writes what is noted.
        self.leads = False
        self._lock = threading.Lock()
        self._hearing: set[Hearing] = set()

    def start(self) -> None:
        """Begin, once."""
        if self._thread is None:
            self.engine.claim()
            self._thread = threading.Thread(target=self._run, name="network engine", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, when what is written now is written."""
        self._over.set()
        self.database.bell.ring(changes.BELL)
        if self._thread is not None:
            self._thread.join()
        self.engine.close()

    def _run(self) -> None:
        while not self._over.is_set():
            seen, failed = self.database.bell.count(changes.BELL), True
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
                self._over.wait(AGAIN)  # whatever is rung meanwhile
            else:
                self.database.bell.wait(changes.BELL, seen, LOOK)

    def _tell(self, error: Exception) -> None:
        """Once, until it works again."""
        if not self._silent:
            log.warning("networks are not written to the engine: %s",
                        error.message if isinstance(error, MagnetarError) else error)
        self._silent = True

    def round(self) -> None:
        """Write all that has changed; everything, where the engine does not know it from this process. Notes of ports
        whose place the engine cannot know yet stay for the next round; so do those that come before them meanwhile."""
        self.leads = self.engine.leads()
        if not self.leads:
            return
        if not self.engine.knows_all() or time.monotonic() - self._whole > ALL:
            self.whole()
        after = ""
        while not self._over.is_set():
            with self.database.read() as connection:
                noted = changes.read(connection, after)
                # What is not noted the engine has as it is, where all notes are seen.
                there = self.engine.has if len(noted) < changes.MANY and not after else unknown
                wanted = read(connection, noted.values(), self.gateways, there)
            if not noted:
                return
            ready = _without(noted, self.engine.unplaced(wanted))
            try:
                number = self.engine.repair(wanted)
            except Incomplete as why:
                log.info("everything is written to the engine: %s", why)
                self.whole()
            else:
                if ready:
                    self._done(ready, number)
            if len(noted) < changes.MANY:
                return  # of what came meanwhile the bell tells
            if after or len(ready) < len(noted):  # else who comes before them would wait as long as others come
                after = next(reversed(noted))

    def whole(self) -> None:
        """Compare everything, and write what differs."""
        with self.database.read() as connection:
            noted = changes.read(connection)
            wanted = read(connection, gateways=self.gateways)
        later = self.engine.unplaced(wanted)
        number = self.engine.repair(wanted)
        self._done(_without(noted, later), number)
        self._whole = time.monotonic()

    def _done(self, noted: Collection[str], number: int) -> None:
        """The engine has these notes, which those who wait hear at once: notes that a crash keeps are written again."""
        self._tell_hearing(noted, number)
        changes.done(self.database, noted, number)
        self._tell_hearing(noted, number)  # also who has seen them in the database since

    def _tell_hearing(self, noted: Collection[str], number: int) -> None:
        with self._lock:
            for one in self._hearing:
                one.notes.update(noted)
                one.number = number
                one.rung.set()

    def settle(self, units: Collection[str]) -> None:
        """Wait until the engine has *units*, and a while until hosts have followed. Raises ``Unavailable``."""
        if units:
            with self.hears() as hearing:
                self.follow(units, hearing)

    @contextlib.contextmanager
    def hears(self) -> Iterator[Hearing]:
        """Within, somebody hears what is written."""
        hearing = Hearing()
        with self._lock:
            self._hearing.add(hearing)
        try:
            yield hearing
        finally:
            with self._lock:
                self._hearing.discard(hearing)

    def follow(self, units: Collection[str], hearing: Hearing, number: int | None = None) -> None:
        """As ``settle``. *number*: that of the engine's last change, which has *units*, where that is known."""
        if number is None:
            number = self._written(units, hearing)
        if self.wait.hosts <= 0:
            return
        patience = min(self.wait.hosts, BEHIND) if self._behind else self.wait.hosts
        behind = not self.engine.reached(number, patience)
        if behind and not self._behind:
            log.warning("not all hosts have followed OVN within %g s; guests start all the same", patience)
        self._behind = behind

    def _written(self, units: Collection[str], hearing: Hearing) -> int:
        """Wait until the engine has *units*, and return the number of its change."""
        deadline = time.monotonic() + self.wait.engine
        while True:
            seen = self.database.bell.count(changes.WRITTEN)
            with self.database.read() as connection:
                pending = changes.pending(connection, units)
            if not pending.notes:
                return pending.number
            look = time.monotonic() + LOOK
            while self.leads and time.monotonic() < min(look, deadline):  # then nobody else writes them
                with self._lock:
                    if pending.notes <= hearing.notes:
                        return hearing.number
                    hearing.rung.clear()
                hearing.rung.wait(min(look, deadline) - time.monotonic())
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unavailable(f"OVN did not take the server's ports within {self.wait.engine:g} s. See whether its "
                                  "northbound database answers (`magnetar audit`).", everywhere=True)
            if not self.leads:
                self.database.bell.wait(changes.WRITTEN, seen, min(left, LOOK))

    def differences(self) -> list[EngineDifference]:
        """What the engine has otherwise than the rows say, and is not noted to be written."""
        with self.database.read() as connection:
            wanted = read(connection, gateways=self.gateways)
        found = self.engine.differences(wanted)
        with self.database.read() as connection:
            noted = changes.noted_units(connection)
        return [one for one in found if one.unit not in noted]


def _without(noted: Mapping[str, str], later: Collection[str]) -> dict[str, str]:
    """The notes but those of units that have to be asked for again."""
    return {id: unit for id, unit in noted.items() if unit not in later}
