# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of hosts, as their agents tell them, and whether a server fits. The agent chooses, and refuses what does
not fit; here it is foreseen, so that seldom a host is chosen in vain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from time import monotonic
from typing import Any

import orjson

from magnetar_core.hardware.numa import HostCell, Needs, NoFit, left, place, told

#: Seconds after which an agent's word is surely heard: two heartbeats, and the look at the database.
LATE = 15.0


class HostNuma:
    """The cells of one host. *free*, *whole*: JSON of what is free of them, and of all there is. Something that has
    gone from there is not in *free* for ``LATE`` seconds."""

    __slots__ = ("_coming", "_freed", "_placed", "free", "whole")

    def __init__(self) -> None:
        self.free = self.whole = b"[]"
        self._coming: tuple[Needs, ...] = ()
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
            self.whole, self.free, self._coming = whole, free, ()

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
        why = _lacks(self.free, self.coming, asked)
        return _lacks(self.whole, (), asked) if why and monotonic() < self._freed + LATE else why

    def chosen(self, asked: Needs, worth: Mapping[int, int]) -> frozenset[int]:
        """The cells that the agent would choose; none where it does not fit."""
        try:
            return frozenset(one["host"] for one in place(_cells(self.free), asked, worth)["cells"])
        except NoFit:
            return frozenset()

    def sockets(self) -> dict[int, frozenset[int]]:
        """The sockets of each cell."""
        return {cell.id: cell.sockets for cell in _cells(self.whole)}


@lru_cache(maxsize=10_000)
def _cells(text: bytes) -> tuple[HostCell, ...]:
    return tuple(told(orjson.loads(text)))


@lru_cache(maxsize=20_000)
def _lacks(text: bytes, coming: tuple[Needs, ...], asked: Needs) -> str:
    cells = list(_cells(text))
    if not cells:
        return "its agent tells no NUMA cells"
    try:
        for one in coming:
            cells = left(cells, [place(cells, one)])
        place(cells, asked)
    except NoFit as why:
        return str(why)
    return ""
