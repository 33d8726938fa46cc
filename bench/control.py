# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the control plane, ``magnetar serve`` in a process of its own, on SQLite and on PostgreSQL. Run
``bench/control``.

The agents are those of fake hosts; the floor of a list is the time to fetch the same rows from the database and turn
them into JSON. Networks are measured on a real OVN with simulated hosts. Real guests, which need libvirt, are compared
with the same guests made by hand. Next to the time, as a client sees it, the table has the CPU time of the server's
process, which depends less on other work of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

try:
    import control_guests as guests
    import control_life as life
    import control_ovn as ovn
    import control_reads as reads
    from control_cloud import Cloud
    from figures import Figure, failed, measured, table
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}. Make the development environment first: ./check mypy") from None

#: The subjects, in the order of measurement: memory at rest first, subjects that create many servers last.
SUBJECTS: Mapping[str, Callable[[Any, int], list[Figure]]] = {
    "memory": life.memory,
    "list": reads.lists,
    "show": reads.show,
    "flavors": reads.flavors,
    "queries": reads.queries,
    "create": life.one,
    "full": life.full,
    "many": life.many,
    "ovn": ovn.ovn,
    "guests": guests.guests,
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Subjects: " + ", ".join(SUBJECTS))
    parser.add_argument("--only", action="append", metavar="NAME", choices=SUBJECTS, help="measure this only")
    parser.add_argument("--engine", action="append", choices=("sqlite", "postgresql"), help="on this database only")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="API processes (default: 1)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N",
                        help="servers that are made one by one; lists and others in proportion (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--strict", action="store_true", help="end with status 1 when a target is missed")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(143))  # so that nothing is left then either
    found: dict[str, list[Figure]] = {}
    failures: dict[str, list[str]] = {}
    for engine in given.engine or ("sqlite", "postgresql"):
        load = [os.getloadavg()[0]]
        found[engine], failures[engine] = [], []
        for name in SUBJECTS:
            if given.only and name not in given.only:
                continue
            if name == "ovn" and (lacks := ovn.missing()):
                print(engine, name, lacks, file=sys.stderr)
                continue
            print(engine, name, file=sys.stderr)
            found[engine] += measured(name, partial(_of_subject, engine, name, given), failures[engine])
            load.append(os.getloadavg()[0])
        print(f"{engine}, {os.cpu_count()} CPUs, load {min(load):.1f} to {max(load):.1f}, in the mean "
              f"{statistics.mean(load):.1f}\n\n{table(found[engine])}{failed(failures[engine])}\n", flush=True)
    if given.json:
        plain = {engine: [asdict(one) for one in figures] for engine, figures in found.items()}
        given.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    missed = any(one.reached is False for figures in found.values() for one in figures)
    return int(any(failures.values()) or (given.strict and missed))


def _of_subject(engine: str, name: str, given: argparse.Namespace) -> list[Figure]:
    """Start the cloud of the subject *name* on the database *engine*, and return the figures of the subject. *given*:
    the options of the command line."""
    with contextlib.ExitStack() as stack:
        cloud = stack.enter_context(
            guests.cloud(engine, stack) if name == "guests" else ovn.OvnCloud(engine) if name == "ovn"
            else Cloud(engine, hosts=1 if name == "full" else 2, workers=given.workers))
        return SUBJECTS[name](cloud, given.rounds)


if __name__ == "__main__":
    sys.exit(main())
