# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes to the engine what has changed. Each process of the control plane has a worker; the one that leads writes.

A note goes when the engine has what it says, so a crash loses nothing: the note is there again for the next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from magnetar_control.store.database import Database
from magnetar_core.errors import MagnetarError, Unavailable

from . import changes
from .engine import EngineDifference, Incomplete, NetworkEngine
from .wanted import read

log = logging.getLogger(__name__)
#: Seconds between two looks for notes: of what this process writes a bell tells.
LOOK = 0.5
#: Seconds between two comparisons of everything.
ALL = 300.0
#: Seconds before the engine is asked again after it did not answer.
AGAIN = 2.0


class Wait(NamedTuple):
    """Seconds that the start of a guest waits: for the engine to have its ports, then for hosts to follow."""

    engine: float = 30.0
    hosts: float = 5.0


class EngineWorker:
    """A thread, and those who wait for it. *gateways*: hosts through which routers go out."""

    def __init__(self, database: Database, engine: NetworkEngine, wait: Wait = Wait(),  # noqa: B008 - it is frozen
                 gateways: Sequence[str] = ()) -> None:
        self.database, self.engine, self.wait, self.gateways = database, engine, wait, gateways
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._whole = -ALL  # when everything was compared
        self._silent = False

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
        """Write all that has changed; everything, where the engine does not know it from this process."""
        if not self.engine.leads():
            return
        if not self.engine.knows_all() or time.monotonic() - self._whole > ALL:
            self.whole()
        while not self._over.is_set():
            with self.database.read() as connection:
                noted = changes.read(connection)
                wanted = read(connection, noted.values(), self.gateways)
            if not noted:
                return
            try:
                number = self.engine.repair(wanted)
            except Incomplete as why:
                log.info("everything is written to the engine: %s", why)
                self.whole()
            else:
                changes.done(self.database, noted, number)

    def whole(self) -> None:
        """Compare everything, and write what differs."""
        with self.database.read() as connection:
            noted = changes.read(connection)
            wanted = read(connection, gateways=self.gateways)
        number = self.engine.repair(wanted)
        changes.done(self.database, noted, number)
        self._whole = time.monotonic()

    def is_settled(self, units: Collection[str]) -> bool:
        """Whether the engine has *units*, and all hosts have followed."""
        if not units:
            return True
        with self.database.read() as connection:
            if changes.waits(connection, units):
                return False
            number = changes.number(connection)
        return self.engine.reached(number, 0.0)

    def settle(self, units: Collection[str]) -> None:
        """Wait until the engine has *units*, and a while until hosts have followed. Raises ``Unavailable``."""
        deadline = time.monotonic() + self.wait.engine
        while units:
            seen = self.database.bell.count(changes.WRITTEN)
            with self.database.read() as connection:
                if not changes.waits(connection, units):
                    number = changes.number(connection)
                    break
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unavailable(f"OVN did not take the server's ports within {self.wait.engine:g} s. See whether its "
                                  "northbound database answers (`magnetar audit`).", everywhere=True)
            self.database.bell.wait(changes.WRITTEN, seen, min(left, LOOK))
        else:
            return
        if not self.engine.reached(number, self.wait.hosts):
            log.warning("not all hosts have followed OVN within %g s; the guest starts all the same", self.wait.hosts)

    def differences(self) -> list[EngineDifference]:
        """What the engine has otherwise than the rows say, and is not noted to be written."""
        with self.database.read() as connection:
            wanted = read(connection, gateways=self.gateways)
        found = self.engine.differences(wanted)
        with self.database.read() as connection:
            noted = changes.noted_units(connection)
        return [one for one in found if one.unit not in noted]
