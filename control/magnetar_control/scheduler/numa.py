# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of hosts, as their agents tell them, and whether a server fits. The agent chooses, and refuses what does
not fit; here it is foreseen, so that seldom a host is chosen in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any

import orjson

from magnetar_core.hardware.numa import HostCell, Needs, NoFit, left, place, told

#: Of so many wishes it is remembered whether free cells suit them.
KNOWN = 8
#: Seconds after which an agent's word is surely heard: two heartbeats, and the look at the database.
LATE = 15.0


class _Free:
    """Free cells, and what they lack for servers that were asked for lately. *why*: what they lack for any."""

    __slots__ = ("_known", "cells", "why")

    def __init__(self, cells: Sequence[HostCell], why: str = "") -> None:
        self.cells, self.why = cells, why
        self._known: dict[Needs, str] = {}

    def lacks(self, asked: Needs) -> str:
        """"" where a server fits."""
        if self.why:
            return self.why
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            found = self._known[asked] = self._looked(asked)
        return found

    def _looked(self, asked: Needs) -> str:
        try:
            place(self.cells, asked)
        except NoFit as why:
            return str(why)
        return ""

    def beside(self, coming: Sequence[Needs]) -> _Free:
        """What is free beside servers that are *coming*."""
        if self.why or not coming:
            return self
        cells = self.cells
        try:
            for one in coming:
                cells = left(cells, [place(cells, one)])
        except NoFit as why:
            return _Free((), str(why))
        return _Free(cells)


class HostNuma:
    """The cells of one host. *free*, *whole*: JSON of what is free of them, and of all there is. Something that has
    gone from there is not in *free* for ``LATE`` seconds."""

    __slots__ = ("_beside", "_coming", "_freed", "_placed", "free", "whole")

    def __init__(self) -> None:
        self.free = self.whole = b"[]"
        self._coming: tuple[Needs, ...] = ()
        self._beside: tuple[tuple[Needs, ...], _Free] | None = None  # what was coming at the last look, and the rest
        self._freed = self._placed = -LATE

    @property
    def coming(self) -> tuple[Needs, ...]:
        """What was placed there and is not in *free* yet. ``LATE`` seconds after the last was placed it is, or has gone
        again before the agent told of it."""
        return self._coming if self._coming and monotonic() < self._placed + LATE else ()

    def hear(self, info: Mapping[str, Any]) -> None:
        """What the agent tells: the field ``numa_cells`` of ``kinds.Host``."""
        cells = info.get("numa_cells") or ()
        whole = orjson.dumps([{name: value for name, value in cell.items() if name != "free"} for cell in cells])
        free = orjson.dumps([{**cell, **cell["free"], "free": None} for cell in cells])
        if (whole, free) != (self.whole, self.free):
            self.whole, self.free, self._coming, self._beside = whole, free, (), None

    def freed(self) -> None:
        """Something has gone from there."""
        self._coming, self._freed = (), monotonic()

    def placed(self, asked: Needs | None) -> None:
        """A server was placed there, which needs so much of its cells."""
        if asked is not None:
            self._coming, self._placed = (*self.coming, asked), monotonic()

    def unplaced(self, asked: Needs | None) -> None:
        """A server that was coming is not: nothing was claimed."""
        if asked in self._coming:
            at = self._coming.index(asked)
            self._coming = self._coming[:at] + self._coming[at + 1:]

    def lacks(self, asked: Needs) -> str:
        """What it lacks for a server: "" where it fits."""
        why = self._rest().lacks(asked)
        return _free(self.whole).lacks(asked) if why and monotonic() < self._freed + LATE else why

    def _rest(self) -> _Free:
        """What is free beside what is coming; of that what was there at the last look is not looked at again."""
        coming = self.coming
        had, found = self._beside or ((), _free(self.free))
        if coming[:len(had)] != had:
            had, found = (), _free(self.free)
        found = found.beside(coming[len(had):])
        self._beside = (coming, found) if coming else None
        return found

    def chosen(self, asked: Needs, worth: Mapping[int, int]) -> frozenset[int]:
        """The cells that the agent would choose; none where it does not fit."""
        try:
            return frozenset(one["host"] for one in place(_free(self.free).cells, asked, worth)["cells"])
        except NoFit:
            return frozenset()

    def sockets(self) -> dict[int, frozenset[int]]:
        """The sockets of each cell."""
        return {cell.id: cell.sockets for cell in _free(self.whole).cells}


@lru_cache(maxsize=10_000)
def _free(text: bytes) -> _Free:
    cells = tuple(told(orjson.loads(text)))
    return _Free(cells, "" if cells else "its agent tells no NUMA cells")
