# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulation of a day (``bench/day``): its judgements, and a short day of a small cloud."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def day(monkeypatch):
    """Return a function that imports a module of the simulation."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return lambda name: importlib.import_module(f"simulated_day.{name}")


def sizes_of(day, *values):
    return [day("cloud").ProcessSize(value, 25, 40) for value in values]


def test_only_growth_after_the_second_quarter_counts(day):
    record = day("record").DayRecord()
    record.sizes[1] = sizes_of(day, *[100] * 4, *[190] * 4, *[200] * 8)  # caches fill first
    record.sizes[2] = sizes_of(day, *range(100, 420, 10))
    record.sizes[3] = sizes_of(day, 100, 900)  # too short to say anything
    assert record.judge_memory() == [
        "process 2 of the control plane grows: rss 215 in the second quarter, 375 in the last one"]


def test_failures_during_the_upgrade_are_no_problems(day):
    record = day("record").DayRecord()
    record.upgrading = True
    record.note_error("show", "ConnectionRefusedError", problem=True)
    record.upgrading = False
    record.note_error("show", "ConnectionRefusedError", problem=True)
    for id in ("70a599e0-31e7-49b7-b260-868f441e862b", "80a599e0-31e7-49b7-b260-868f441e862b"):
        record.note_error("create", f"ERROR: server {id} cannot be built on kvm0012")
    assert dict(record.problems) == {"show: ConnectionRefusedError": 1}
    assert record.errors == {("show", "ConnectionRefusedError (during the upgrade)"): 1,
                             ("show", "ConnectionRefusedError"): 1,
                             ("create", "ERROR: server … cannot be built on …"): 2}


def test_a_minute_has_what_was_done_in_it(day):
    record = day("record").DayRecord()
    for milliseconds in range(1, 101):
        record.note_success("show", milliseconds / 1000)
    record.note_error("create", "409 no")
    lines = record.end_minute(1.0, {"queued": 3})
    assert "100: 51/96" in lines[0] and lines[1].strip() == "1 x create: 409 no"
    assert record.end_minute(2.0, {"queued": 0})[1:] == []
    assert [line["show"][0] for line in record.lines] == [100, 0]
    assert record.summarize_kinds()[3].startswith("show: 100 of 0 done, p50 51.0 ms, p95 96.0 ms")


def test_work_beyond_the_bound_is_left_out_and_counted(day):
    """An API that does not answer: work begins until the bound is reached, and none waits for it."""
    load_module, record = day("load"), day("record").DayRecord()

    async def load_silent_api():
        open_streams = []
        silent = await asyncio.start_server(lambda *streams: open_streams.append(streams), "127.0.0.1", 0)
        load = load_module.Load(silent.sockets[0].getsockname()[1], record, load_module.LoadRates(0, 0, 500, 2),
                                ["server"], ["token"], "token", dict)
        running = asyncio.create_task(load.run())
        while record.skipped["show"] < 5:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
        begun = record.begun["show"]
        running.cancel()
        silent.close()
        return begun

    assert asyncio.run(asyncio.wait_for(load_silent_api(), 60)) == 2


@pytest.mark.slow
@pytest.mark.deep(shard="a simulated day")
def test_a_short_day_leaves_nothing_behind():
    """Creates, deletions, migrations and reads while hosts die, come back, and the control plane is upgraded."""
    done = subprocess.run([
        BENCH / "day", "--engine", "sqlite", "--minutes", "2", "--hosts", "20", "--servers", "400", "--creates", "3",
        "--migrations", "0.5", "--reads", "5", "--deaths", "2", "--dead", "0.1", "--dead-seconds", "10", "--every",
        "20", "--patience", "300"], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert "Nothing is stuck or wrong." in done.stdout
