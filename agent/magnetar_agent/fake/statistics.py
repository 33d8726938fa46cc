# SPDX-License-Identifier: GPL-3.0-or-later
"""Statistics of the fake: the same ones always, as libvirt's statistics would have them."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from magnetar_agent.virt.domain.statistics import read
from magnetar_core.errors import Conflict
from magnetar_core.power import LIVE

from .state import State, parse

#: Seconds since each domain was started.
UPTIME = 46664
CPU = {"state": 1, "time": 17300000000}
DISK = {"rd.reqs": 112, "rd.bytes": 262144, "wr.reqs": 488, "wr.bytes": 5778432}
NIC = {"rx.bytes": 2070139, "rx.pkts": 26701, "rx.errs": 0, "rx.drop": 0,
       "tx.bytes": 140208, "tx.pkts": 662, "tx.errs": 0, "tx.drop": 0}
HOST = {"time": "08:32:11", "uptime": 8101500, "users": 12, "load_average": [0.2, 0.12, 0.14]}


class Statistics(State):
    """The protocol's methods for statistics."""

    def statistics(self, uuid: str) -> dict[str, Any] | None:
        with self._call("statistics"):
            domain = self._domains.get(uuid)
            if domain is None:
                return None
            if not domain.seen().owned:
                raise Conflict(f"The libvirt domain {uuid} was not made by Magnetar, so it is not touched.")
            return read(_stats(domain.live), _live(domain.live), UPTIME) if domain.state in LIVE else None

    def uptime(self) -> dict[str, Any]:
        with self._call("uptime", needs_libvirt=False):
            return dict(HOST)


def _stats(xml: str) -> dict[str, Any]:
    seen = parse(xml)
    memory = seen.ram_mib * 1024
    disks = [{"name": disk.target, **DISK} for disk in seen.disks]
    nics = [{"name": f"vnet{at}", **NIC} for at, _nic in enumerate(seen.nics)]
    return {"balloon.maximum": memory, "balloon.current": memory, "balloon.rss": memory // 2,
            "balloon.available": memory - memory // 8, "balloon.unused": memory // 2, "vcpu.maximum": seen.vcpus,
            **_group("vcpu", [CPU] * seen.vcpus), "block.count": len(disks), **_group("block", disks),
            "net.count": len(nics), **_group("net", nics)}


def _group(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{at}.{word}": value for at, one in enumerate(found) for word, value in one.items()}


def _live(xml: str) -> str:
    """With the names that libvirt gives to the devices of NICs of what runs."""
    root = ET.fromstring(xml)  # noqa: S314 (made here)
    for at, nic in enumerate(root.iterfind("devices/interface")):
        ET.SubElement(nic, "target", dev=f"vnet{at}")
    return ET.tostring(root, encoding="unicode")
