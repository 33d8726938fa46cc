# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of hosts, as their agents report them, and whether a server fits.

The agent chooses the cells, and refuses a server that does not fit. The forecast here makes it rare that the scheduler
chooses such a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any

import orjson

from magnetar_core.hardware.numa import HostCell, Needs, NoFit, parse_cells, place_guest, remaining_cells

#: Number of requests for which a set of free cells remembers the answer.
KNOWN = 8
#: Seconds after which an agent's report has certainly arrived: two heartbeats, and one read of the database.
LATE = 15.0


class _Free:
    """Free cells, and what they lack for recent requests. *why*: what they lack for every server."""

    __slots__ = ("_known", "cells", "why")

    def __init__(self, cells: Sequence[HostCell], why: str = "") -> None:
        self.cells, self.why = cells, why
        self._known: dict[Needs, str] = {}

    def lacks(self, needs: Needs) -> str:
        """Return what the cells lack for a server; an empty text if it fits."""
        if self.why:
            return self.why
        lack = self._known.get(needs)
        if lack is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            lack = self._known[needs] = self._looked(needs)
        return lack

    def _looked(self, needs: Needs) -> str:
        try:
            place_guest(self.cells, needs)
        except NoFit as why:
            return str(why)
        return ""

    def beside(self, coming: Sequence[Needs]) -> _Free:
        """Return the free cells that are left after the servers *coming*."""
        if self.why or not coming:
            return self
        cells = self.cells
        try:
            for needs in coming:
                cells = remaining_cells(cells, [place_guest(cells, needs)])
        except NoFit as why:
            return _Free((), str(why))
        return _Free(cells)


@lru_cache(10_000)
def _shared_form(form: bytes) -> bytes:
    """Return a form of NUMA cells as the first host had it: hosts of a make share one text."""
    return form


class HostNuma:
    """The NUMA cells of one host. *free*, *whole*: JSON of the free part, and of everything. Cells that a server has
    left may be missing in *free* for ``LATE`` seconds."""

    __slots__ = ("_beside", "_coming", "_freed", "_placed", "free", "whole")

    def __init__(self) -> None:
        self.free = self.whole = b"[]"
        self._coming: tuple[Needs, ...] = ()
        self._beside: tuple[tuple[Needs, ...], _Free] | None = None  # what was coming at the last check, and the rest
        self._freed = self._placed = -LATE

    @property
    def coming(self) -> tuple[Needs, ...]:
        """Needs of servers that were placed on the host and are not in ``free`` yet. ``LATE`` seconds after the last
        placement they are, or the server has left before the agent reported it."""
        return self._coming if self._coming and monotonic() < self._placed + LATE else ()

    def hear(self, info: Mapping[str, Any]) -> None:
        """Save an agent's report: the field ``numa_cells`` of ``kinds.Host``."""
        cells = info.get("numa_cells") or ()
        whole = orjson.dumps([{name: value for name, value in cell.items() if name != "free"} for cell in cells])
        free = orjson.dumps([{**cell, **cell["free"], "free": None} for cell in cells])
        if (whole, free) != (self.whole, self.free):
            self.whole, self.free, self._coming, self._beside = _shared_form(whole), _shared_form(free), (), None

    def freed(self) -> None:
        """Note that a server has left the host."""
        self._coming, self._freed = (), monotonic()

    def placed(self, needs: Needs | None) -> None:
        """Note that a server with these needs was placed on the host."""
        if needs is not None:
            self._coming, self._placed = (*self.coming, needs), monotonic()

    def unplaced(self, needs: Needs | None) -> None:
        """Note that a coming server does not come: nothing was claimed."""
        if needs in self._coming:
            at = self._coming.index(needs)
            self._coming = self._coming[:at] + self._coming[at + 1:]

    def lacks(self, needs: Needs) -> str:
        """Return what the host lacks for a server; an empty text if it fits."""
        why = self._rest().lacks(needs)
        return _free(self.whole).lacks(needs) if why and monotonic() < self._freed + LATE else why

    def _rest(self) -> _Free:
        """Return the free cells without the coming servers. Servers that the last check counted are not placed again.
        """
        coming = self.coming
        had, free = self._beside or ((), _free(self.free))
        if coming[:len(had)] != had:
            had, free = (), _free(self.free)
        free = free.beside(coming[len(had):])
        self._beside = (coming, free) if coming else None
        return free

    def chosen(self, needs: Needs, worth: Mapping[int, int]) -> frozenset[int]:
        """Return the cells that the agent would choose; none if the server does not fit."""
        try:
            return frozenset(cell["host"] for cell in place_guest(_free(self.free).cells, needs, worth)["cells"])
        except NoFit:
            return frozenset()

    def sockets(self) -> dict[int, frozenset[int]]:
        """Return the sockets of each cell."""
        return {cell.id: cell.sockets for cell in _free(self.whole).cells}


@lru_cache(maxsize=10_000)
def _free(text: bytes) -> _Free:
    cells = tuple(parse_cells(orjson.loads(text)))
    return _Free(cells, "" if cells else "its agent tells no NUMA cells")
