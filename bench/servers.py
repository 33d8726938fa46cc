# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures servers in the agent: creation, and the check of unchanged servers, one by one and as a batch."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from figures import Figure, in_turns, spread, timed
from host import FOLDER, NETWORK, SIZES, Host

from magnetar_agent.host.hypervisor import DomainSpec, Nic
from magnetar_agent.host.storage import Backing, Disk
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.disks.disks import direct_io
from magnetar_agent.virt.domain.domain import render_domain

GIB = 2**30


class Raw:
    """The floor of a server's creation: qemu-img and virDomainCreateXML, with the agent's own XML."""

    def __init__(self, host: Host, made: dict[str, Any], number: int = 0) -> None:
        self.host = host
        self.place = FOLDER / f"raw-{number}"
        self.place.mkdir(mode=0o711)
        self.disk, self.base = self.place / "disk", self.place / "base"
        self.base.hardlink_to(Path(made["console_log"]).parent / "base")
        self.spec = DomainSpec(
            uuid=str(uuid.uuid4()), name=f"mag-bench-raw-{number}", title="bench-boot", vcpus=SIZES["vcpus"],
            ram_mib=SIZES["ram"], virt_type=made["virt_type"], machine=made["machine"],
            # Without its backing libvirt takes the overlay alone, which is empty: its guest boots nothing.
            disks=(Disk(self.disk, "vda", backing=Backing(self.base, "qcow2")),),
            nics=(Nic(f"52:54:00:00:be:{number:02x}", network=NETWORK),), console_log=self.place / "console.log",
            metadata={"name": "bench-boot", "flavor": "bench"},
        )  # fmt: skip
        self.xml = render_domain(self.spec, "none" if direct_io(self.place) else "writeback")
        self.seen = ""

    def make(self) -> None:
        """Create an overlay disk and a running domain."""
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", self.base, "-F", "qcow2", self.disk,
                        str(SIZES["disk"] * GIB)], check=True)  # fmt: skip
        self.host.libvirt.createXML(self.xml)

    def measure(self) -> float:
        """Return the milliseconds of ``make``; remove its results afterwards."""
        try:
            taken = timed(self.make)
            self.seen = plain(self.host.libvirt.lookupByName(self.spec.name))
            return taken
        finally:
            self.clean()

    def clean(self) -> None:
        """Remove what ``make`` created."""
        self.host.libvirt.lookupByName(self.spec.name).destroy()
        self.disk.unlink()
        self.spec.console_log.unlink(missing_ok=True)


def plain(domain: Any) -> str:
    """Return the XML of the running *domain* without the values that differ between guests."""
    xml = domain.XMLDesc().replace(domain.name(), "NAME").replace(domain.UUIDString(), "UUID")
    for varying in (rf"{FOLDER}/[^'<]*/", r"domain-\d+-[^/]*", r"(?<=mac address=')[^']*", r"(?<=dev=')(vnet|mt)\w+",
                    r"(?<=id=')\d+", r"/dev/pts/\d+", r"(?<=portid=')[^']*", r"(?<=pty' tty=')[^']*"):
        xml = re.sub(varying, "X/", xml)
    return xml


def creation(host: Host, rounds: int) -> list[Figure]:
    """Measure the creation of a running server through the agent's socket; the floor is the same guest made by hand."""
    with host.client() as client:
        first = client.ensure("server", "bench-boot", host.want())["resource"]
        raw = Raw(host, first)
        seen = plain(host.libvirt.lookupByUUIDString(first["id"]))
        client.delete("server", "bench-boot")

        def agent() -> float:
            try:
                return timed(lambda: client.ensure("server", "bench-boot", host.want()))
            finally:
                client.delete("server", "bench-boot")

        taken = in_turns(rounds, {"by hand": raw.measure, "agent": agent})
    notes = () if raw.seen == seen else ("the guests differ, so the ratio says little",)
    shutil.rmtree(raw.place)
    return [Figure("server, from nothing to running",
                   statistics.median(taken["agent"]), floor=statistics.median(taken["by hand"]),
                   floor_name="qemu-img create + virDomainCreateXML", ratio=1.2, spread=spread(taken["agent"]),
                   notes=notes)]  # fmt: skip


def fleet(host: Host, rounds: int) -> list[Figure]:
    """Measure ten servers in one batch. The floor is ten guests made by hand, with as many threads as the agent has."""
    names = [f"bench-fleet-{at}" for at in range(10)]
    threads = AgentSettings().parallel
    with host.client() as client, ThreadPoolExecutor(threads) as pool:
        first = client.ensure("server", names[0], host.want())["resource"]
        raws = [Raw(host, first, number) for number in range(len(names))]
        client.delete("server", names[0])

        def by_hand() -> float:
            try:
                return timed(lambda: list(pool.map(Raw.make, raws)))
            finally:
                for raw in raws:
                    raw.clean()

        def agent() -> float:
            try:
                return timed(lambda: _all_made(client.ensure_many("server", [
                    {"key": name, "want": host.want()} for name in names], timeout=300)))
            finally:
                client.ensure_many("server", [{"key": name, "want": None} for name in names], timeout=300)

        taken = in_turns(rounds, {"by hand": by_hand, "agent": agent})
    for raw in raws:
        shutil.rmtree(raw.place)
    return [Figure("ten servers in one batch, from nothing to running",
                   statistics.median(taken["agent"]), floor=statistics.median(taken["by hand"]),
                   floor_name=f"ten by hand in {threads} threads", ratio=1.1, spread=spread(taken["agent"]))]


def _all_made(answer: dict[str, Any]) -> None:
    failed = [one["error"]["message"] for one in answer["results"] if "error" in one]
    if failed:
        raise SystemExit(f"Servers cannot be made: {failed[0]}")


def listing(host: Host, rounds: int) -> list[Figure]:
    """Measure a list of two hundred servers, as the client receives it."""
    host.off(200)
    with host.client() as client:
        taken = in_turns(rounds * 5, {"GET /v1/server": lambda: timed(lambda: client.list("server"))})
    values = taken["GET /v1/server"]
    return [Figure("GET /v1/server with 200 servers", statistics.median(values), limit=30, spread=spread(values))]


def unchanged(host: Host, rounds: int) -> list[Figure]:
    """Measure ``ensure`` of an unchanged server over one open connection."""
    found = []
    for count in (1, 50):
        names = host.off(count)
        with host.client() as client:
            def ask(client: Any = client, names: Any = names) -> float:
                return timed(lambda: _unchanged(client.ensure("server", names[0], host.want())))

            taken = in_turns(rounds * 20, {f"ensure with {count} defined": ask,
                                           "GET /v1": lambda c=client: timed(c.info)})  # fmt: skip
        ensure, floor = taken.values()
        found.append(Figure(f"unchanged ensure, {count} defined", statistics.median(ensure), limit=5,
                            floor=statistics.median(floor), floor_name="GET /v1", spread=spread(ensure)))  # fmt: skip
    return found


def _unchanged(answer: dict[str, Any]) -> None:
    if answer["changed"]:
        raise SystemExit(f"A server that should be unchanged was changed: {answer['diff']}")


def batch(host: Host, rounds: int) -> list[Figure]:
    """Measure fifty unchanged servers in one call, including JSON and HTTP of the client."""
    items = [{"key": name, "want": host.want()} for name in host.off(50)]

    def all_unchanged(client: Any) -> None:
        for one in client.ensure_many("server", items)["results"]:
            _unchanged(one)

    with host.client() as client:
        taken = in_turns(rounds * 3, {"batch of 50": lambda: timed(lambda: all_unchanged(client)),
                                      "GET /v1/server": lambda: timed(lambda: client.list("server"))})  # fmt: skip
    many, floor = taken.values()
    return [Figure("batch of 50 unchanged, in the agent", statistics.median(many), limit=50, spread=spread(many),
                   floor=statistics.median(floor), floor_name="GET /v1/server")]  # fmt: skip
