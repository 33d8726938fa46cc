# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures Magnetar's speed and memory on this machine, next to the same work without Magnetar, and prints one table.
It starts an agent of its own on the libvirt of this machine, creates real servers, and removes all of it afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

try:
    import exports
    import inventory
    import links
    import migration
    import plays
    import servers
    import volumes
    import weight
    from figures import Figure, failed, measured, table
    from host import Host
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}. Make the development environment first: ./check mypy") from None

#: The subjects, in the order of the table. Memory at rest is first, before any work.
SUBJECTS: Mapping[str, Callable[[Host, int], list[Figure]]] = {
    "memory": weight.memory,
    "create": servers.creation,
    "fleet": servers.fleet,
    "attach": volumes.attaching,
    "ensure": servers.unchanged,
    "batch": servers.batch,
    "list": servers.listing,
    "task": plays.task,
    "play": plays.batch,
    "module": plays.fallback,
    "inventory": inventory.inventory,
    "attach-far": exports.attaching,
    "links": links.links,
    "migration": migration.migration,
    "import": weight.client,
    "memory-after": weight.memory_after,
    "memory-guests": weight.memory_guests,
}


def machine(host: Host) -> str:
    """Return a text about the machine and the software that the figures depend on."""
    with host.client() as client:
        seen = client.get("host")
    return (f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before, Linux {platform.release()}, Python "
            f"{platform.python_version()}, ansible-core {version('ansible-core')}, libvirt {libvirt_version(host)}, "
            f"{seen['hypervisor_type']} {seen['hypervisor_version']}, virt_type {host.virt_type}")


def libvirt_version(host: Host) -> str:
    """Return the version of libvirt as a text with dots."""
    number = host.libvirt.getLibVersion()
    return f"{number // 10**6}.{number // 1000 % 1000}.{number % 1000}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Subjects: " + ", ".join(SUBJECTS))
    parser.add_argument("--only", action="append", metavar="NAME", choices=SUBJECTS,
                        help="measure this only; repeatable")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=10, metavar="N",
                        help="rounds of what is slow; calls get 20 times as many (default: 10)")  # fmt: skip
    parser.add_argument("--virt", choices=("qemu", "kvm", "auto"), default="qemu",
                        help="kind of the guests (default: qemu)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--strict", action="store_true", help="end with status 1 when a target is missed")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds must be at least 2")
    if os.geteuid():
        raise SystemExit("The agent manages libvirt and disks: run this as root.")
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(143))  # so that nothing is left then either
    figures: list[Figure] = []
    failures: list[str] = []
    with Host(given.virt) as host:
        said = machine(host)
        for name in SUBJECTS:
            if not given.only or name in given.only:
                print(name, file=sys.stderr)
                subject = partial(SUBJECTS[name], host, given.rounds)
                figures += measured(name, subject, failures)
    print(f"{said}, load {os.getloadavg()[0]:.1f} after, {given.rounds} rounds\n\n{table(figures)}{failed(failures)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n", encoding="utf-8")
    return int(bool(failures) or (given.strict and any(one.reached is False for one in figures)))


if __name__ == "__main__":
    sys.exit(main())
