# SPDX-License-Identifier: GPL-3.0-or-later
"""Measurement of the load: the CPUs and memory that the host and each guest really use, as averages of ten minutes."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: The fewest seconds between two measurements, and the seconds over which values are averaged.
LEAST, WINDOW = 30.0, 600.0


class GuestUsage(NamedTuple):
    """The resource usage of a guest's QEMU process: CPU seconds since its start, and memory in KiB."""

    cpu_seconds: float
    memory_kib: int


class _Average(NamedTuple):
    """A moving average of the number of CPUs in use, computed from a counter of CPU seconds. *moment*, *cpu_seconds*:
    time and value of the last measurement. *cpus*: the average; ``None`` before the second measurement."""

    moment: float
    cpu_seconds: float
    cpus: float | None = None

    def after(self, moment: float, cpu_seconds: float) -> _Average:
        """Return the average after a new measurement: the counter had the value *cpu_seconds* at the time *moment*. If
        the counter was reset, because the guest was started again, begin a new average."""
        elapsed = moment - self.moment
        if cpu_seconds < self.cpu_seconds or elapsed <= 0:
            return _Average(moment, cpu_seconds)
        rate = (cpu_seconds - self.cpu_seconds) / elapsed
        weight = 1.0 if self.cpus is None else 1 - math.exp(-elapsed / WINDOW)
        return _Average(moment, cpu_seconds, rate if self.cpus is None else self.cpus + weight * (rate - self.cpus))


class LoadMeter:
    """The average load of the host and of its running guests. Guests that have stopped are dropped."""

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock, self._lock = proc, clock, threading.Lock()
        self._began: float | None = None
        self._measured = -math.inf
        self._host: _Average | None = None
        self._guests: dict[str, tuple[_Average, int]] = {}

    def measure(self, read_usage: Callable[[], Mapping[str, GuestUsage]]) -> None:
        """Measure the host and its guests, unless the last measurement is less than ``LEAST`` seconds old. *read_usage*
        returns the usage of the running guests by uuid; its exceptions are passed to the caller."""
        with self._lock:
            moment = self._clock()
            if moment - self._measured < LEAST:
                return
            usages = read_usage()
            self._measured, self._began = moment, moment if self._began is None else self._began
            self._guests = {id: (self._guests[id][0].after(moment, usage.cpu_seconds) if id in self._guests
                                 else _Average(moment, usage.cpu_seconds), usage.memory_kib)
                            for id, usage in usages.items()}
            busy = busy_seconds(self._proc)
            if busy is not None:
                self._host = self._host.after(moment, busy) if self._host else _Average(moment, busy)

    def report(self) -> dict[str, Any]:
        """Return the load of the host and of each guest in the form of ``GET /v1/host/load``. Values that are not known
        yet are ``None``."""
        total, available = memory_sizes(self._proc)
        with self._lock:
            host = self._host
            return {"seconds": 0.0 if self._began is None else round(self._measured - self._began, 1),
                    "cpus": os.cpu_count() or 1,
                    "cpus_used": None if host is None or host.cpus is None else round(host.cpus, 3),
                    "memory_mb": total, "memory_mb_used": None if total is None else total - (available or 0),
                    "servers": [{"id": id, "cpus_used": None if average.cpus is None else round(average.cpus, 3),
                                 "memory_mb_used": memory // 1024}
                                for id, (average, memory) in sorted(self._guests.items())]}


def busy_seconds(proc: Path) -> float | None:
    """Return how many seconds the host's CPUs have been busy since its start, summed over all CPUs; ``None`` if /proc
    does not report it. *proc*: the path of /proc."""
    try:
        ticks = [int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:8]]
        user, nice, system, _idle, _iowait, irq, softirq = ticks
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def memory_sizes(proc: Path) -> tuple[int | None, int | None]:
    """Return the host's total and available memory in MiB, with ``None`` for values that /proc does not report. Free
    huge pages count as available. *proc*: the path of /proc."""
    try:
        lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
        sizes = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
        free_pages = sizes.get("HugePages_Free", 0) * sizes.get("Hugepagesize", 0)
        return sizes["MemTotal"] // 1024, (sizes["MemAvailable"] + free_pages) // 1024
    except (OSError, ValueError, KeyError):
        return None, None


def process_usage(pid_file: Path, proc: Path = Path("/proc")) -> GuestUsage | None:
    """Return the CPU seconds and the memory (including huge pages) of the process whose pid is in *pid_file*; ``None``
    if they cannot be read. *proc*: the path of /proc."""
    try:
        folder = proc / str(int(pid_file.read_text()))
        words = (folder / "stat").read_text().rpartition(")")[2].split()
        lines = (line.split() for line in (folder / "status").read_text().splitlines())
        sizes = {line[0]: int(line[1]) for line in lines if len(line) == 3 and line[2] == "kB"}
        seconds = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return GuestUsage(seconds, sizes.get("VmRSS:", 0) + sizes.get("HugetlbPages:", 0))
