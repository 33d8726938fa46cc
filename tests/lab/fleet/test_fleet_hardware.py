# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with dedicated CPUs and with large pages go from host to host, and get those of the host that they come to.

Their guests have nothing to boot: it is the firmware that runs.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.fleet import Fleet
from tests.support.lab.fleet_firmware import SIZES, go

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="firmware and TPM on their way"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each of two hosts has a CPU of its own to give away"),
]

SETTINGS = "/etc/magnetar/agent.yml"
#: The dedicated CPUs of hosts. They are containers of one machine, so the others' are theirs, too.
DEDICATED = {"bare1": "0", "bare2": "1"}
PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
#: Pages of 2 MiB for the server, at both hosts while it moves, and a few more.
RESERVED = 136


def test_pinned_live_and_cold(three_hosts: Site) -> None:
    fleet = Fleet(three_hosts)
    with changed(fleet, {name: f"cpu_dedicated_set: '{cpu}'" for name, cpu in DEDICATED.items()}):
        want = {**SIZES, "hardware": {"cpu_policy": "dedicated"}, "shutdown_timeout": 0}
        id = fleet.client("bare1").ensure("server", "pinned", want)["resource"]["id"]
        assert cpus(fleet, "bare1", id) == "0" and free(fleet, "bare1") == ""
        for source, target, kind in (("bare1", "bare2", "live"), ("bare2", "bare1", "cold")):
            go(fleet, source, target, "pinned", kind)
            assert fleet.client(target).get("server", id)["power_state"] == "running"
            assert cpus(fleet, target, id) == DEDICATED[target]
            assert free(fleet, target) == "" and free(fleet, source) == DEDICATED[source]


def test_large_pages_live_and_cold(three_hosts: Site) -> None:
    fleet = Fleet(three_hosts)
    with pages(), changed(fleet, dict.fromkeys(("bare1", "bare2"), "")):
        if not free_pages():
            pytest.skip("this machine lets no large pages be reserved")
        want = {**SIZES, "hardware": {"mem_page_size": "large"}, "shutdown_timeout": 0}
        id = fleet.client("bare1").ensure("server", "paged", want)["resource"]["id"]
        assert on_pages(fleet, "bare1", id)
        for source, target, kind in (("bare1", "bare2", "live"), ("bare2", "bare1", "cold")):
            go(fleet, source, target, "paged", kind)
            assert fleet.client(target).get("server", id)["power_state"] == "running"
            assert on_pages(fleet, target, id)
        fleet.clear()
        assert free_pages() >= RESERVED


@contextmanager
def changed(fleet: Fleet, settings: dict[str, str]) -> Iterator[None]:
    """Agents with a line more in their settings. libvirt sees what the machine has by then."""
    try:
        for name, line in settings.items():
            fleet.hosts[name].run(["sh", "-c", f"cp -p {SETTINGS} {SETTINGS}.kept && echo \"{line}\" >>{SETTINGS}"])
            restart(fleet, name)
        yield
        fleet.clear()
    finally:
        for name in settings:
            fleet.hosts[name].run(["sh", "-c", f"mv {SETTINGS}.kept {SETTINGS}"], check=False)
            restart(fleet, name)
        fleet.clear()


def restart(fleet: Fleet, name: str) -> None:
    fleet.hosts[name].run(["sh", "-c", "mkdir -p /dev/hugepages; mountpoint -q /dev/hugepages || "
                           "mount -t hugetlbfs hugetlbfs /dev/hugepages; systemctl restart libvirtd magnetar-agent"])
    fleet.client(name).get("host")


@contextmanager
def pages() -> Iterator[None]:
    """Large pages of the machine."""
    number = PAGES / "nr_hugepages"
    before = number.read_text(encoding="ascii")
    number.write_text(str(int(before) + RESERVED), encoding="ascii")
    try:
        yield
    finally:
        number.write_text(before, encoding="ascii")


def free_pages() -> int:
    return int((PAGES / "free_hugepages").read_text(encoding="ascii"))


def free(fleet: Fleet, name: str) -> str:
    """The dedicated CPUs that the agent has not given away."""
    return str(fleet.client(name).get("host")["numa_cells"][0]["free"]["cpus_dedicated"])


def process(fleet: Fleet, name: str, id: str, command: str) -> str:
    """What a command says on a host, in which PID is that of the server's QEMU."""
    pid = f"/run/libvirt/qemu/magnetar-{id}.pid"
    return fleet.hosts[name].run(["sh", "-c", command.replace("PID", f"$(cat {pid})")]).stdout


def cpus(fleet: Fleet, name: str, id: str) -> str:
    """The CPUs that the kernel lets the server's one virtual CPU run on."""
    said = process(fleet, name, id, "cd /proc/PID/task; grep -l '^CPU 0' */comm | xargs dirname | "
                                    "xargs -I{} grep Cpus_allowed_list {}/status")
    return said.partition(":")[2].strip()


def on_pages(fleet: Fleet, name: str, id: str) -> bool:
    """Whether the server's memory lies on large pages."""
    said = process(fleet, name, id, "grep -c '^Size: *131072 kB' /proc/PID/smaps; grep -A20 /dev/hugepages "
                                    "/proc/PID/smaps | grep -m1 KernelPageSize")
    return "2048 kB" in said
