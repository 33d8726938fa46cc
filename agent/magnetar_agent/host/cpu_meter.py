# SPDX-License-Identifier: GPL-3.0-or-later
"""Measurement of the host's CPUs: times, and shares of user, kernel, idle and the like."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

#: Columns of the first line of /proc/stat: user and nice; system, irq, softirq; idle; iowait (man 5 proc).
_TIMES = {"user": (0, 1), "kernel": (2, 5, 6), "idle": (3,), "iowait": (4,)}
#: The shortest time, in seconds, over which a share is measured.
LEAST = 2.0


class CpuMeter:
    """The host's CPU metrics under Nova's names, such as ``cpu.user.time`` (ns since the host's start) and
    ``cpu.percent`` (the share from 0 to 1 between two measurements)."""

    def __init__(self, stat: Path = Path("/proc/stat"), cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        self._stat, self._cpuinfo, self._lock = stat, cpuinfo, threading.Lock()
        self._before: tuple[float, dict[str, int]] | None = None
        self._shares: dict[str, float] = {}

    def measure(self) -> dict[str, float]:
        """Measure and return the metrics by name; empty if /proc does not provide them. The shares (``percent``) are in
        the result from the second measurement on."""
        try:
            first = self._stat.read_text().split("\n", 1)[0].split()[1:]
            ticks = {name: sum(int(first[at]) for at in places) for name, places in _TIMES.items()}
        except (OSError, ValueError, IndexError):
            return {}
        with self._lock:
            self._measure(time.monotonic(), ticks)
            shares = dict(self._shares)
        nanoseconds = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return {**{f"cpu.{name}.time": n * nanoseconds for name, n in ticks.items()}, **self._frequency(), **shares}

    def _measure(self, moment: float, ticks: dict[str, int]) -> None:
        if self._before is not None:
            since, earlier = self._before
            elapsed = {name: max(0, n - earlier[name]) for name, n in ticks.items()}
            total = sum(elapsed.values())
            if moment - since < LEAST or not total:
                return
            self._shares = {f"cpu.{name}.percent": round(n / total, 4) for name, n in elapsed.items()}
            self._shares["cpu.percent"] = round(1 - (elapsed["idle"] + elapsed["iowait"]) / total, 4)
        self._before = moment, ticks

    def _frequency(self) -> dict[str, float]:
        try:
            for line in self._cpuinfo.read_text().splitlines():
                if line.startswith("cpu MHz"):
                    return {"cpu.frequency": float(line.partition(":")[2])}
        except (OSError, ValueError):
            pass
        return {}
