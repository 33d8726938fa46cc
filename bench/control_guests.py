# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures real guests on this machine's libvirt: created by the cloud, by the agent alone, and by hand."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from control_cloud import Cloud
from control_life import end, wishes
from figures import Figure, in_turns, spread, timed
from host import GUEST, SIZES, Host
from servers import Raw
from volumes import booted

#: Seconds between two requests for a server's status. Frequent ones would take CPU from the guests.
LOOK = 0.01
#: Number of guests that are created at once.
TEN = 10
#: Threads that create as many guests by hand, on which the target is based.
THREADS = 4


class GuestCloud(Cloud):
    """A cloud whose only host is this machine."""

    size, image_format = SIZES, "qcow2"
    #: Range of the servers' network. The default range may belong to a network of another agent on this machine.
    cidr = "192.168.232.0/24"

    def __init__(self, kind: str, host: Host) -> None:
        super().__init__(kind, 1)
        self.host, self.image_content = host, (GUEST / "disk.qcow2").read_bytes()
        self.lan = ""

    def _set_up(self) -> None:
        """Also create a network with a name of its own. The default network has the same name in libvirt for all
        clouds, and may exist already for the cloud of the quickstart."""
        super()._set_up()
        self.lan = self.ask("POST", "/network/v2.0/networks", {"network": {"name": "lan"}})["network"]["id"]
        self.ask("POST", "/network/v2.0/subnets", {"subnet": {
            "network_id": self.lan, "ip_version": 4, "cidr": self.cidr}})

    def want(self, name: str) -> dict[str, Any]:
        body = super().want(name)
        body["server"]["networks"] = [{"uuid": self.lan}]
        return body

    def _agents(self, _stack: contextlib.ExitStack) -> dict[str, Path]:
        return {"bench": self.host.socket}

    def clean(self) -> None:
        """Remove the servers and networks that the cloud created on the host, because they would stay in libvirt."""
        with self.host.client() as client:
            for one in client.list("server"):
                client.delete("server", one["id"])
            for one in client.list("network"):
                client.delete("network", one["name"])


@contextlib.contextmanager
def cloud(kind: str, stack: contextlib.ExitStack) -> Iterator[GuestCloud]:
    """Return a cloud with a real host. *stack* ends the host after the cloud."""
    host = stack.enter_context(Host("qemu"))
    with GuestCloud(kind, host) as made:
        try:
            yield made
        finally:
            made.clean()


def guests(cloud: GuestCloud, rounds: int) -> list[Figure]:
    """Measure the creation of one guest, and of ten at once."""
    first = cloud.made("first")
    documents = wishes(cloud)
    with cloud.host.client() as client:
        booted(Path(client.get("server", first)["console_log"]))  # its boot would be in all figures
        raws = [Raw(cloud.host, client.get("server", first), number) for number in range(TEN)]
        figures = [*_one(cloud, client, raws[0], documents, rounds), _ten(cloud, raws, max(rounds // 4, 3))]
    end(cloud, first)
    for raw in raws:
        shutil.rmtree(raw.place)
    return figures


def _one(cloud: GuestCloud, client: Any, raw: Raw, documents: Iterator[tuple[str, dict[str, Any]]],
         rounds: int) -> list[Figure]:
    def by_agent() -> float:
        key, want = next(documents)
        try:
            return timed(lambda: client.ensure("server", key, want))
        finally:
            client.delete("server", key)

    def by_cloud() -> float:
        ids: list[str] = []
        try:
            return timed(lambda: _active(cloud, 1, ids))
        finally:
            end(cloud, ids[0])

    taken = in_turns(rounds, {"by hand": raw.measure, "agent": by_agent, "cloud": by_cloud})
    hand, agent, whole = (statistics.median(taken[name]) for name in ("by hand", "agent", "cloud"))
    return [Figure("a real guest, until ACTIVE", whole, floor=hand, ratio=400 / 338, spread=spread(taken["cloud"]),
                   floor_name="qemu-img create + virDomainCreateXML", notes=(f"by the agent alone {agent:.0f} ms",)),
            Figure("the same, over the agent's own", whole - agent, limit=60)]


def _ten(cloud: GuestCloud, raws: Sequence[Raw], rounds: int) -> Figure:
    def by_hand() -> float:
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                return timed(lambda: list(pool.map(Raw.make, raws)))
        finally:
            for raw in raws:
                raw.clean()

    def by_cloud() -> float:
        ids: list[str] = []
        try:
            return timed(lambda: _active(cloud, TEN, ids))
        finally:
            for id in ids:
                end(cloud, id)

    taken = in_turns(rounds, {"by hand": by_hand, "cloud": by_cloud})
    return Figure("ten real guests at once, until all are ACTIVE", statistics.median(taken["cloud"]) / 1000, "s",
                  floor=statistics.median(taken["by hand"]) / 1000, floor_name=f"by hand in {THREADS} threads",
                  ratio=1.0, spread=tuple(one / 1000 for one in spread(taken["cloud"])))  # type: ignore[arg-type]


def _active(cloud: Cloud, count: int, ids: list[str]) -> None:
    ids += [cloud.ask("POST", "/v2.1/servers", cloud.want(f"bench{at}"))["server"]["id"] for at in range(count)]
    for id in ids:
        while cloud.state(id) != "ACTIVE":
            time.sleep(LOOK)
