# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a simulated day: latencies, errors and process sizes, and texts about them."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from .cloud import ProcessSize

#: The kinds of work, in the order of the table.
KINDS = ("create", "migrate", "delete", "show", "list", "next page", "all tenants", "limits")
#: Parts of messages that differ from one server to the next. The status at the beginning stays.
VARIABLE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|req-\S+|\bkvm\d+\b|(?<!^)(?<!\d)\d+(\.\d+)?")
#: Growth of memory that counts as bounded: a part of the earlier size, and MiB. A process that has just started still
#: fills its caches.
GROWTH, MORE = 0.15, 32.0
#: Minimum number of samples for a judgement of a process's growth.
SAMPLES = 8


def find_percentile(values: Sequence[float], part: float) -> float:
    """Return the value that the share *part* of the *values* does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class DayRecord:
    """The record of a day. ``upgrading``: the control plane is being replaced, so requests may fail."""

    def __init__(self) -> None:
        self.upgrading = False
        self.begun: Counter[str] = Counter()
        #: Skipped work, by kind: it was due while too much was unfinished.
        self.skipped: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[tuple[str, str]] = Counter()
        #: Answers and failures that a control plane must not give.
        self.problems: Counter[str] = Counter()
        #: Sizes of each process of the control plane, by its number.
        self.sizes: dict[int, list[ProcessSize]] = defaultdict(list)
        self.lines: list[dict[str, Any]] = []
        self._shown: Counter[str] = Counter()
        self._shown_errors: Counter[tuple[str, str]] = Counter()

    def note_success(self, kind: str, seconds: float) -> None:
        """Record that an operation has succeeded, with the *seconds* since it was due."""
        self.seconds[kind].append(seconds)

    def note_error(self, kind: str, message: str, *, problem: bool = False) -> None:
        """Record that an operation has failed with this *message*. *problem*: whether this failure is an error of the
        control plane, unless it is being replaced."""
        text = VARIABLE.sub("…", message)[:160]
        if self.upgrading:
            text = f"{text} (during the upgrade)"
        elif problem:
            self.problems[f"{kind}: {text}"] += 1
        self.errors[kind, text] += 1

    def end_minute(self, minute: float, state: dict[str, Any]) -> list[str]:
        """Record the operations since the last call as a row of the table, and return its lines. *minute*: minutes
        since the begin of the day. *state*: values of further columns, by name."""
        row: dict[str, Any] = {"minute": round(minute, 2)}
        for kind in KINDS:
            values = self.seconds[kind][self._shown[kind]:]
            self._shown[kind] = len(self.seconds[kind])
            row[kind] = [len(values), *(round(find_percentile(values, part) * 1000, 1) for part in (0.5, 0.95))
                         ] if values else [0]
        new_errors = self.errors - self._shown_errors
        self._shown_errors = self.errors.copy()
        row |= state | {"errors": sum(new_errors.values())}
        self.lines.append(row | {"error_kinds": {f"{kind}: {text}": n for (kind, text), n in new_errors.items()}})
        cells = [f"{row['minute']:6.1f}", *(f"{_cell(row[kind]):>18}" for kind in KINDS),
                 *(f"{value:>{len(name)}}" for name, value in [*state.items(), ("errors", row["errors"])])]
        return ["  ".join(cells), *(f"          {count} x {kind}: {text}" for (kind, text), count in
                                    sorted(new_errors.items(), key=lambda pair: -pair[1]))]

    def head(self, state: Sequence[str]) -> str:
        """Return the header line of the table. *state*: names of further columns."""
        return "  ".join(["minute", *(f"{kind:>18}" for kind in KINDS), *state, "errors"])

    def summarize_kinds(self) -> list[str]:
        """Return a line for each kind of work: its number, and its latencies over the whole day."""
        lines = []
        for kind in KINDS:
            values = self.seconds[kind]
            times = ", ".join(f"p{part * 100:.0f} {find_percentile(values, part) * 1000:.1f} ms"
                              for part in (0.5, 0.95, 0.99)) if values else "none done"
            left_out = self.skipped[kind]
            late = f"; could not keep up: {left_out} more were due and not begun" if left_out else ""
            lines.append(f"{kind}: {len(values)} of {self.begun[kind]} done, {times}{late}")
        return lines

    def judge_memory(self) -> list[str]:
        """Return the processes whose memory, threads or descriptors have grown too much from their second quarter to
        their last."""
        findings = []
        for number, sizes in self.sizes.items():
            if len(sizes) < SAMPLES:
                continue
            quarter = len(sizes) // 4
            for name, more in (("rss", MORE), ("threads", 64), ("descriptors", 64)):
                early, late = (statistics.median(getattr(size, name) for size in part)
                               for part in (sizes[quarter:2 * quarter], sizes[-quarter:]))
                if late > early * (1 + GROWTH) + more:
                    findings.append(f"process {number} of the control plane grows: {name} {early:.0f} in the second "
                                    f"quarter, {late:.0f} in the last one")
        return findings

    def describe_memory(self) -> list[str]:
        """Return a text about each process: its median memory in its second and last quarter, its threads and
        descriptors."""
        lines = []
        for number, sizes in self.sizes.items():
            quarter = max(1, len(sizes) // 4)
            early, late = (statistics.median(size.rss for size in part)
                           for part in (sizes[quarter:2 * quarter] or sizes, sizes[-quarter:]))
            lines.append(f"process {number} of the control plane: {early:.0f} MiB in the second quarter, {late:.0f} "
                         f"MiB in the last one, {sizes[-1].threads} threads, {sizes[-1].descriptors} descriptors")
        return lines


def _cell(values: Sequence[float]) -> str:
    count, *times = values
    return f"{count:.0f}: {times[0]:.0f}/{times[1]:.0f}" if times else f"{count:.0f}"
