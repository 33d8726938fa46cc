# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures with their floors and targets, helpers that measure them, and their table."""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One line of the table, in *unit*. *floor* is the value of the same work without Magnetar. Targets: *ratio* (at
    most this multiple of the floor), *limit* (at most this value) and *least* (at least this value). A figure without a
    target is for information. *cpu*: CPU milliseconds of the measured process for one unit of work."""

    name: str
    value: float
    unit: str = "ms"
    floor: float | None = None
    floor_name: str = ""
    ratio: float | None = None
    limit: float | None = None
    least: float | None = None
    cpu: float | None = None
    spread: tuple[float, float] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def relation(self) -> float | None:
        """The value as a multiple of the floor; ``None`` without a floor."""
        return self.value / self.floor if self.floor else None

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; ``None`` without a target."""
        if self.ratio is not None and self.relation is not None:
            return self.relation <= self.ratio
        if self.least is not None:
            return self.value >= self.least
        return self.value <= self.limit if self.limit is not None else None

    def cells(self) -> list[str]:
        """Return the cells of the figure's row in the table."""
        target = f"≤ {self.ratio:g} x" if self.ratio is not None else ""
        target = f"≤ {self.limit:g} {self.unit}" if self.limit is not None else target
        target = f"≥ {self.least:g} {self.unit}" if self.least is not None else target
        return [
            self.name, f"{self.value:.4g} {self.unit}",
            f"{self.spread[0]:.4g} to {self.spread[1]:.4g}" if self.spread else "",
            f"{self.floor:.4g} {self.unit} ({self.floor_name})" if self.floor is not None else "",
            f"{self.relation:.2f}" if self.relation is not None else "", target,
            {True: "reached", False: "MISSED", None: ""}[self.reached],
        ]  # fmt: skip


HEAD = ["figure (median)", "reached", "middle half", "floor", "ratio", "target", ""]


def table(figures: list[Figure]) -> str:
    """Return the figures as a Markdown table that is also easy to read in a terminal, with their notes."""
    rows = [HEAD, *(one.cells() for one in figures)]
    if any(one.cpu is not None for one in figures):
        rows = [[*row[:-1], f"{one.cpu:.3g} ms" if one and one.cpu is not None else "" if one else "CPU", row[-1]]
                for one, row in zip((None, *figures), rows, strict=True)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = [f"- {one.name}: {note}" for one in figures for note in one.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def measured(name: str, subject: Callable[[], list[Figure]], failures: list[str]) -> list[Figure]:
    """Return the figures of one subject. If it fails, add the reason to *failures* and return none, so that other
    subjects are still measured. A signal ends the run."""
    try:
        return subject()
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        failures.append(f"{name}: {error.code}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        traceback.print_exc()
        failures.append(f"{name}: {type(error).__name__}: {error}")
    return []


def failed(failures: list[str]) -> str:
    """Return a text with *failures*, the reasons why subjects failed; empty when there are none."""
    return "".join(f"\nNot measured: {one}" for one in failures)


def spread(taken: list[float]) -> tuple[float, float]:
    """Return the first and third quartile of the measured values."""
    quarters = statistics.quantiles(taken, n=4)
    return quarters[0], quarters[2]


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds that *work* takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def in_turns(rounds: int, works: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Call each of *works* *rounds* times, and return by name the values that they return. The order is forward,
    backward, forward and so on, so that slow changes of the machine's speed affect all alike. An additional first round
    warms up and is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for at in range(rounds + 1):
        for name in list(works) if at % 2 else list(works)[::-1]:
            found = works[name]()
            if at:
                taken[name].append(found)
        if sys.stderr.isatty():
            end = "" if at < rounds else "\n"
            print(f"\r  {', '.join(works)}: {at} of {rounds} ", end=end, file=sys.stderr, flush=True)
    return taken
