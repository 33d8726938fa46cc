# SPDX-License-Identifier: GPL-3.0-or-later
"""The capabilities that the cloud uses.

A process that wants to use a capability first writes a mark, then checks again that all processes know it, and only
then declares the mark used. A process that starts first announces itself and then reads the marks; it ends if it lacks
a marked capability. So either the mark is withdrawn, or the process does not start, whatever their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, select, update

from magnetar_control.store.engine.database import INSERT, Database
from magnetar_control.store.engine.tables import capability_marks
from magnetar_control.store.store import Store
from magnetar_core.capabilities import CAPABILITIES, Capability
from magnetar_core.version import installed_version

from .processes import ProcessRow, fetch_processes

#: Seconds for which the answer "not all processes know it" is cached.
FRESH = 10.0


class CapabilityMark(NamedTuple):
    """A database row that says that the cloud uses a capability (an ability that all processes must have first), or is
    about to use it. *kinds*: the kinds of processes that need the capability. *version*: the release of the process
    that inserted the row, at *marked_at*. *used_since*: empty until it is certain that no process lacks the capability.
    """

    name: str
    kinds: Sequence[str]
    version: str
    marked_at: str
    used_since: str


def fetch_capability_marks(connection: Connection) -> list[CapabilityMark]:
    """Return the rows of the table ``capability_marks``, ordered by name."""
    rows = connection.execute(select(capability_marks).order_by(capability_marks.c.name))
    return [CapabilityMark(row.name, row.kinds.split(","), row.version or "", row.marked_at,
                           row.used_since or "") for row in rows]


class KnownCapabilities:
    """The capabilities (features that older releases lack) that all processes of the cloud have, cached for one
    process. *silence*: returns the seconds without a heartbeat after which a host is down. *is_held*: returns the
    setting ``hold_upgrade``; while it is true, no further capability comes into use."""

    def __init__(self, store: Store, silence: Callable[[], float], is_held: Callable[[], bool] = lambda: False) -> None:
        self._store, self._silence, self._is_held = store, silence, is_held
        self._lock = threading.Lock()
        self._used: set[str] = set()
        #: When a capability that some process lacks is looked at again.
        self._again: dict[str, float] = {}

    def all_processes_know(self, name: str) -> bool:
        """Return whether all processes that need the capability *name* have it, so that this process may use it.

        True is permanent, because a process without the capability then refuses to start. False is cached for ``FRESH``
        seconds. Raises ``LookupError`` for a name that is not in ``CAPABILITIES``, and the database's errors.
        """
        if name in self._used:
            return True
        capability = capability_named(name)
        with self._lock:
            if name not in self._used and time.monotonic() >= self._again.get(name, 0.0):
                if self._begin_use(capability):
                    self._used.add(name)
                self._again[name] = time.monotonic() + FRESH
            return name in self._used

    def _begin_use(self, capability: Capability) -> bool:
        """Return whether the cloud may use *capability*, a feature that older releases lack. Return true if the cloud
        uses it already. If all processes have it and the setting ``hold_upgrade`` is false, record the use, and return
        whether this succeeded. Otherwise delete the mark (the row that announces the use), and return false."""
        api = self._store.api
        mark = _find_mark(api, capability)
        if mark is not None and mark.used_since:
            return True
        if self._is_held() or self._is_lacking(capability):
            _withdraw_mark(api, mark)
            return False
        mark = mark or _write_mark(api, capability)
        if self._is_lacking(capability):
            _withdraw_mark(api, mark)
            return False
        return mark is not None and _declare_used(api, mark)

    def _is_lacking(self, capability: Capability) -> bool:
        live_processes = fetch_processes(self._store, self._silence(), agents="agent" in capability.kinds)
        return bool(live_processes.silent_cells or processes_without(capability, live_processes.processes))


def capability_named(name: str) -> Capability:
    """Return the capability (a feature that older releases may lack) with this name from ``CAPABILITIES``. Raises
    ``LookupError``."""
    for capability in CAPABILITIES:
        if capability.name == name:
            return capability
    raise LookupError(f"There is no capability {name} in magnetar_core.capabilities.")


def processes_without(capability: Capability, processes: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Return those of *processes* that need *capability* and lack it. Processes that do not count (``counts``), such as
    stopped ones, are skipped."""
    return [process for process in processes if process.kind in capability.kinds and process.counts
            and capability.name not in process.capabilities]


def _find_mark(database: Database, capability: Capability) -> CapabilityMark | None:
    with database.read() as connection:
        return next((mark for mark in fetch_capability_marks(connection) if mark.name == capability.name), None)


def _write_mark(database: Database, capability: Capability) -> CapabilityMark | None:
    """Insert the row that announces the use of *capability*, unless it exists, and return it. Return ``None`` if
    another process has deleted the row again."""
    with database.write() as connection:
        connection.execute(INSERT[database.kind](capability_marks).values(
            name=capability.name, kinds=",".join(capability.kinds), version=installed_version(),
            marked_at=database.clock()).on_conflict_do_nothing())
    return _find_mark(database, capability)


def _withdraw_mark(database: Database, mark: CapabilityMark | None) -> None:
    """Delete the row *mark* unless its capability is already used. Does nothing for ``None``."""
    if mark is not None:
        with database.write() as connection:
            connection.execute(delete(capability_marks).where(*_is_unused(mark)))


def _declare_used(database: Database, mark: CapabilityMark) -> bool:
    """Record that the cloud uses the capability of *mark*. Return ``False``, with nothing changed, if another process
    has deleted the row or recorded the use already: the next check then reads the new state."""
    with database.write() as connection:
        return connection.execute(update(capability_marks).where(*_is_unused(mark)).values(
            used_since=database.clock())).rowcount == 1


def _is_unused(mark: CapabilityMark) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions that the row of *mark* has not changed since it was read, and that its capability is
    not used yet."""
    table = capability_marks.c
    return table.name == mark.name, table.marked_at == mark.marked_at, table.used_since.is_(None)
