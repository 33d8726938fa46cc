# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the memory of the agent, and the time to import the client."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from figures import Figure, in_turns, spread
from host import Host

IMPORT = """
import json, sys, time
before, began = set(sys.modules), time.perf_counter()
import {module}
taken = (time.perf_counter() - began) * 1000
foreign = sorted(name for name in set(sys.modules) - before
                 if name.partition(".")[0] not in sys.stdlib_module_names | {{"magnetar_core"}})
print(json.dumps([taken, foreign]))
"""


def memory(host: Host, _rounds: int) -> list[Figure]:
    """Measure the resident memory of an idle agent. It is restarted before, because the first start compiles modules,
    which uses memory that later starts do not use.
    """
    host.restart()
    return [Figure("agent at rest, resident memory", host.rss(), "MiB", limit=90)]


def memory_after(host: Host, _rounds: int) -> list[Figure]:
    """Measure the resident memory of the agent with fifty servers, after all other figures."""
    host.off(50)
    return [Figure("the same with 50 servers, after the other figures", host.rss(), "MiB")]


def memory_guests(host: Host, _rounds: int) -> list[Figure]:
    """Measure the resident memory of the agent with fifty QEMU processes. The guests are paused, because two CPUs are
    too slow for fifty that boot. The agent is restarted, creates the guests, and lists them a few times.
    """
    host.off(0)
    host.restart()
    items = [{"key": f"bench-{at:03d}", "want": host.want(power="paused")} for at in range(50)]
    with host.client() as client:
        answer = client.ensure_many("server", items, timeout=900)
        failed = [one["error"]["message"] for one in answer["results"] if "error" in one]
        if failed:
            raise SystemExit(f"Servers cannot be made: {failed[0]}")
        for _time in range(5):
            client.ensure_many("server", items)
            client.list("server")
        found = host.rss()
        client.ensure_many("server", [{**one, "want": None} for one in items], timeout=900)
    return [Figure("agent with 50 guests, resident memory", found, "MiB", limit=120)]


def client(_host: Host, rounds: int) -> list[Figure]:
    """Measure the import of the client into a Python process without other modules, and the import of what it needs to
    connect.
    """
    foreign: set[str] = set()

    def take(module: str) -> float:
        words = [sys.executable, "-c", IMPORT.format(module=module)]
        taken, others = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
        foreign.update(others)
        return float(taken)

    taken = in_turns(rounds, {"import": lambda: take("magnetar_core.http.client"),
                              "with transport": lambda: take(
                                  "magnetar_core.http.client, magnetar_core.http.transport")})
    only, both = taken.values()
    said = f"beyond the standard library: {', '.join(sorted(foreign))}" if foreign else "standard library only"
    return [Figure("import of the core client", statistics.median(only), limit=0 if foreign else 15,
                   spread=spread(only), notes=(said,)),
            Figure("the same with what the first connection imports", statistics.median(both), spread=spread(both))]
