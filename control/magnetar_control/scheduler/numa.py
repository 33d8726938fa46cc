# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of hosts, as their agents report them, and whether a server fits.

The agent chooses the cells, and refuses a server that does not fit. This module only predicts the agent's answer, so
that the scheduler seldom chooses a host that refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any

import orjson

from magnetar_core.hardware.numa import HostCell, Needs, NoFit, parse_cells, place_guest, remaining_cells

#: Most requests for which a set of free cells caches the answer.
KNOWN = 8
#: Seconds after which an agent's report has certainly arrived: two heartbeats, and one read of the database.
LATE = 15.0


class _Free:
    """The free resources of a host's NUMA cells, with cached results of ``lacks``. *why*: the reason why no server at
    all fits; "" if a server may fit."""

    __slots__ = ("_known", "cells", "why")

    def __init__(self, cells: Sequence[HostCell], why: str = "") -> None:
        self.cells, self.why = cells, why
        self._known: dict[Needs, str] = {}

    def lacks(self, needs: Needs) -> str:
        """Return, as a text, what the cells lack for a server with these *needs*; an empty text if the server fits."""
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
        """Return the cells that remain free when the servers with the needs *coming*, which were placed on the host,
        have got their resources."""
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
    """Return an object equal to *form*, the JSON of NUMA cells, from the cache of this function. Hosts with the same
    hardware thus share one object, which saves memory."""
    return form


class HostNuma:
    """The NUMA cells of one host. *free*: JSON of the free resources of its cells. *whole*: JSON of all resources of
    its cells. For up to ``LATE`` seconds after a server has left the host, *free* may not yet include the resources
    that the server has released."""

    __slots__ = ("_beside", "_coming", "_freed", "_placed", "free", "whole")

    def __init__(self) -> None:
        self.free = self.whole = b"[]"
        self._coming: tuple[Needs, ...] = ()
        self._beside: tuple[tuple[Needs, ...], _Free] | None = None  # what was coming at the last check, and the rest
        self._freed = self._placed = -LATE

    @property
    def coming(self) -> tuple[Needs, ...]:
        """The needs of servers that were placed on the host, but are not yet subtracted in ``free``. These needs are
        dropped when the agent's report changes or a server leaves the host. They are also dropped ``LATE`` seconds
        after the last placement: by then the agent has reported the servers, or the servers are gone."""
        return self._coming if self._coming and monotonic() < self._placed + LATE else ()

    def save_report(self, info: Mapping[str, Any]) -> None:
        """Save the NUMA cells in the agent's report *info*: the field ``numa_cells`` of ``kinds.Host``."""
        cells = info.get("numa_cells") or ()
        whole = orjson.dumps([{name: value for name, value in cell.items() if name != "free"} for cell in cells])
        free = orjson.dumps([{**cell, **cell["free"], "free": None} for cell in cells])
        if (whole, free) != (self.whole, self.free):
            self.whole, self.free, self._coming, self._beside = _shared_form(whole), _shared_form(free), (), None

    def freed(self) -> None:
        """Note that a server has left the host: for ``LATE`` seconds, accept servers that fit the whole cells, even if
        they do not fit the free resources, since the agent may not have reported yet what the server has released."""
        self._coming, self._freed = (), monotonic()

    def placed(self, needs: Needs | None) -> None:
        """Add the *needs* of a server that was placed on the host to ``coming``, the needs that the agent's report does
        not yet include; do nothing without needs."""
        if needs is not None:
            self._coming, self._placed = (*self.coming, needs), monotonic()

    def unplaced(self, needs: Needs | None) -> None:
        """Undo ``placed`` for a server with these *needs*, because the claim of the server failed."""
        if needs in self._coming:
            at = self._coming.index(needs)
            self._coming = self._coming[:at] + self._coming[at + 1:]

    def lacks(self, needs: Needs) -> str:
        """Return, as a text, what the host's NUMA cells lack for a server with these *needs*; an empty text if the
        server fits."""
        why = self._rest().lacks(needs)
        return _free(self.whole).lacks(needs) if why and monotonic() < self._freed + LATE else why

    def _rest(self) -> _Free:
        """Return the free resources of the cells minus the needs of servers that the agent has not reported yet
        (``coming``). The result is cached, so that each call subtracts only the servers placed since the last call."""
        coming = self.coming
        had, free = self._beside or ((), _free(self.free))
        if coming[:len(had)] != had:
            had, free = (), _free(self.free)
        free = free.beside(coming[len(had):])
        self._beside = (coming, free) if coming else None
        return free

    def chosen(self, needs: Needs, cell_weights: Mapping[int, int]) -> frozenset[int]:
        """Return the ids of the NUMA cells that the agent would choose for a server with these *needs*; an empty set if
        the server does not fit. *cell_weights*: by id of the cell; the agent prefers cells with a greater weight."""
        try:
            return frozenset(cell["host"] for cell in place_guest(_free(self.free).cells, needs, cell_weights)["cells"])
        except NoFit:
            return frozenset()

    def sockets(self) -> dict[int, frozenset[int]]:
        """Return {id of the cell: ids of its CPU sockets}."""
        return {cell.id: cell.sockets for cell in _free(self.whole).cells}


@lru_cache(maxsize=10_000)
def _free(text: bytes) -> _Free:
    cells = tuple(parse_cells(orjson.loads(text)))
    return _Free(cells, "" if cells else "its agent tells no NUMA cells")
