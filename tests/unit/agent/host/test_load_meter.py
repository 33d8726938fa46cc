# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host and its guests really use: averages that follow the counters, and are kept only of running guests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from magnetar_agent.host.load_meter import (
    GuestUsage,
    LoadMeter,
    busy_seconds,
    memory_sizes,
    process_usage,
)


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of 16 GiB, of which 4 GiB are available, and 1 GiB is in free huge pages."""
    (tmp_path / "stat").write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n")
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n"
                                      "HugePages_Free: 512\nHugepagesize: 2048 kB\n")
    return tmp_path


def used(meter: LoadMeter) -> dict[str, tuple[float | None, int]]:
    return {server["id"]: (server["cpus_used"], server["memory_mb_used"]) for server in meter.report()["servers"]}


def test_averages_follow_the_counters(proc: Path) -> None:
    clock, calls = Clock(), 0
    meter = LoadMeter(proc, clock)

    def measure(usages: Mapping[str, GuestUsage]) -> None:
        def read() -> Mapping[str, GuestUsage]:
            nonlocal calls
            calls += 1
            return usages
        meter.measure(read)

    measure({"a": GuestUsage(100.0, 2048), "b": GuestUsage(0.0, 1024)})
    assert used(meter) == {"a": (None, 2), "b": (None, 1)} and meter.report()["seconds"] == 0.0
    clock.now += 10
    measure({})
    assert calls == 1 and len(used(meter)) == 2
    clock.now += 50
    measure({"a": GuestUsage(190.0, 4096)})
    assert used(meter) == {"a": (1.5, 4)}
    clock.now += 60
    measure({"a": GuestUsage(190.0, 4096)})
    [(cpus, _memory)] = used(meter).values()
    assert cpus == pytest.approx(1.5 * 0.9048, abs=0.01)
    clock.now += 6000
    measure({"a": GuestUsage(190.0, 4096)})
    assert used(meter)["a"][0] == pytest.approx(0.0, abs=0.001)
    clock.now += 60
    measure({"a": GuestUsage(5.0, 4096)})
    assert used(meter) == {"a": (None, 4)}, "it was started again"
    assert meter.report()["seconds"] == 6180.0


def test_the_host_itself(proc: Path) -> None:
    clock = Clock()
    meter = LoadMeter(proc, clock)
    meter.measure(dict)
    ticks = os.sysconf("SC_CLK_TCK")
    (proc / "stat").write_text(f"cpu  {100 + 120 * ticks} 0 50 800 50 0 0 0 0 0\n")
    clock.now += 60
    meter.measure(dict)
    report = meter.report()
    assert (report["cpus_used"], report["memory_mb"], report["memory_mb_used"]) == (2.0, 16384, 16384 - 4096 - 1024)


def test_without_proc(tmp_path: Path) -> None:
    assert busy_seconds(tmp_path) is None and memory_sizes(tmp_path) == (None, None)
    clock = Clock()
    meter = LoadMeter(tmp_path, clock)
    for _turn in range(2):
        meter.measure(dict)
        clock.now += 60
    report = meter.report()
    assert (report["cpus_used"], report["memory_mb"], report["memory_mb_used"]) == (None, None, None)


def test_a_process(tmp_path: Path) -> None:
    pid = tmp_path / "guest.pid"
    assert process_usage(pid) is None
    pid.write_text(f"{os.getpid()}\n")
    usage = process_usage(pid)
    assert usage is not None and usage.cpu_seconds > 0 and usage.memory_kib > 1024
    (tmp_path / "7").mkdir()
    pid.write_text("7")
    (tmp_path / "7/stat").write_text("7 (qemu kvm) S " + " ".join(["0"] * 10) + " 300 100 0 0\n")
    (tmp_path / "7/status").write_text("Name:\tqemu\nVmRSS:\t  2048 kB\nHugetlbPages:\t  4096 kB\n")
    assert process_usage(pid, tmp_path) == GuestUsage(400 / os.sysconf("SC_CLK_TCK"), 6144)
    pid.write_text("nonsense")
    assert process_usage(pid) is None
