# SPDX-License-Identifier: GPL-3.0-or-later
"""A day in the life of a cloud, in an hour: simulated hosts with servers, a steady load, hosts that die and come back,
and an upgrade of the control plane in the middle. Run ``bench/day``; ``bench/day --minutes 2 --hosts 20 --servers 500
--creates 4`` for a first look.

A line each minute has, for each kind of work, how often it was done and its p50/p95 in ms. The status is 1 if anything
is stuck at the end, ``magnetar audit`` has findings, the control plane failed, or its memory grows. Nothing depends on
speed: work that a slow machine cannot begin is left out and counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
try:
    from simulated_day.cloud import DayCloud
    from simulated_day.faults import FaultPlan, cause_faults
    from simulated_day.filling import fill_hosts
    from simulated_day.load import Load, LoadRates
    from simulated_day.record import DayRecord
    from simulated_day.verdict import count_states, find_stuck, judge_day
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}. Make the development environment first: ./check mypy") from None

#: Projects with filled servers, and seconds between two looks at the size of the control plane.
PROJECTS, SAMPLE = 20, 5.0
#: Further columns of the table.
STATE = ("queued", "stuck", "rss MiB")


def _tell(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


class Bodies:
    """Requests for new servers; every second server has a NIC in a network of the load."""

    def __init__(self, cloud: DayCloud) -> None:
        self.cloud, self.number = cloud, 0
        network = cloud.ask("POST", "/network/v2.0/networks", {"network": {"name": "load"}})["network"]["id"]
        cloud.ask("POST", "/network/v2.0/subnets", {"subnet": {
            "network_id": network, "ip_version": 4, "cidr": "10.99.0.0/16"}})
        self.network = network

    def __call__(self) -> Mapping[str, Any]:
        """Return the next body."""
        self.number += 1
        server = self.cloud.want(f"load-{self.number}-{uuid.uuid4().hex[:6]}")["server"]
        return {"server": {**server, "networks": [{"uuid": self.network}] if self.number % 2 else "none"}}


async def _sample_sizes(cloud: DayCloud, record: DayRecord) -> None:
    while True:
        await asyncio.sleep(SAMPLE)
        if not record.upgrading:
            record.sizes[cloud.starts].append(cloud.measure_process())


async def _print_minutes(cloud: DayCloud, record: DayRecord, options: argparse.Namespace) -> None:
    began = time.monotonic()
    print(record.head(STATE), flush=True)
    while True:
        await asyncio.sleep(options.every)
        if record.upgrading:
            continue
        stuck = await asyncio.to_thread(find_stuck, cloud, options.stuck_after)
        state = (await asyncio.to_thread(cloud.busy), len(stuck), round(cloud.measure_process().rss))
        for line in (*record.end_minute((time.monotonic() - began) / 60, dict(zip(STATE, state, strict=True))), *(
                f"          stuck: {text}" for text in stuck)):
            print(line, flush=True)


async def _live_day(cloud: DayCloud, record: DayRecord, load: Load, options: argparse.Namespace) -> None:
    """Run the load on the cloud for the day, with its faults."""
    seconds = options.minutes * 60
    plan = FaultPlan(options.deaths, options.dead, options.dead_seconds, options.upgrade)
    watchers = [asyncio.create_task(work) for work in (
        _sample_sizes(cloud, record), _print_minutes(cloud, record, options))]
    faults = asyncio.create_task(cause_faults(cloud, record, plan, seconds, _tell))
    asyncio.get_running_loop().call_later(seconds, load.over.set)
    try:
        await load.run()
        await faults
        for watcher in watchers:
            if watcher.done():
                watcher.result()
    finally:
        for task in (*watchers, faults):
            task.cancel()


def run_day(options: argparse.Namespace) -> tuple[DayRecord, list[str]]:
    """Simulate a day; return its record, and the problems found."""
    record = DayRecord()
    with DayCloud(options.engine, options.hosts) as cloud:
        _tell(f"{options.hosts} hosts are up")
        tokens = [cloud.empty_project(f"day-{at}") for at in range(PROJECTS)]
        began = time.monotonic()
        filled = fill_hosts(cloud, options.servers, [cloud.projects[token] for token in tokens])
        missing = cloud.wait_for_hosts(options.patience)
        _tell(f"{options.servers} servers were filled in {time.monotonic() - began:.0f} s; {missing} hosts are missing")
        load = Load(cloud.port, record, LoadRates(options.creates, options.migrations, options.reads, options.most),
                    filled, tokens, cloud.token, Bodies(cloud))
        asyncio.run(_live_day(cloud, record, load, options))
        _tell("the load has ended")
        problems = judge_day(cloud, record, options.stuck_after, options.patience, _tell)
        _tell(f"servers: {count_states(cloud)}")
        if problems and options.keep_logs:
            for path in cloud.folder.glob("*.log"):
                (options.keep_logs / path.name).write_bytes(path.read_bytes())
    return record, problems


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="bench/day", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--engine", choices=("sqlite", "postgresql"), default="postgresql", help="the database (default: postgresql)")
    for name, kind, default, text in (
            ("minutes", float, 60.0, "how long the load lasts"), ("hosts", int, 1000, "simulated hosts"),
            ("servers", int, 100000, "servers that exist before"), ("creates", float, 20.0, "creates each second, and "
             "as many deletions"), ("migrations", float, 2.0, "live migrations each second"),
            ("reads", float, 20.0, "reads each second"), ("most", int, 200, "unfinished work of a kind, above which "
             "nothing more of it begins"), ("deaths", int, 6, "times that hosts die"),
            ("dead", float, 0.05, "share of the hosts that die"), ("dead-seconds", float, 60.0, "seconds until they "
             "are back"), ("upgrade", float, 0.5, "part of the day after which the control plane is upgraded; 0: "
             "never"), ("stuck-after", float, 300.0, "seconds without progress that count as stuck"),
            ("patience", float, 600.0, "seconds in which the cloud must come to rest, and seconds in which its own "
             "audit must have repaired what is left"), ("every", float, 60.0, "seconds between two lines")):
        add(f"--{name}", type=kind, default=default, metavar="N", help=f"{text} (default: {default:g})")
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    add("--keep-logs", type=Path, metavar="DIR", help="if anything is wrong, copy the logs there")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse_options(words)
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(143))  # so that nothing is left then either
    print(f"{options.engine}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    record, problems = run_day(options)
    print("\n".join(["", *record.summarize_kinds(), *record.describe_memory(), ""]))
    if options.json:
        options.json.write_text(json.dumps({"minutes": record.lines, "problems": problems}, indent=1) + "\n",
                                encoding="utf-8")
    print("\n".join(f"WRONG: {problem}" for problem in problems) or "Nothing is stuck or wrong.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
