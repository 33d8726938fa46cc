# SPDX-License-Identifier: GPL-3.0-or-later
"""Statistics of the fake: always the same, in the form of libvirt's statistics."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from magnetar_agent.host.load_meter import GuestUsage
from magnetar_agent.virt.domain.statistics import read_statistics
from magnetar_core.errors import Conflict
from magnetar_core.power import LIVE

from .state import State, parse_domain

#: Seconds since each domain was started.
UPTIME = 46664
CPU = {"state": 1, "time": 17300000000}
DISK = {"rd.reqs": 112, "rd.bytes": 262144, "wr.reqs": 488, "wr.bytes": 5778432}
NIC = {"rx.bytes": 2070139, "rx.pkts": 26701, "rx.errs": 0, "rx.drop": 0,
       "tx.bytes": 140208, "tx.pkts": 662, "tx.errs": 0, "tx.drop": 0}
HOST = {"time": "08:32:11", "uptime": 8101500, "users": 12, "load_average": [0.2, 0.12, 0.14]}


class Statistics(State):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for usage statistics."""

    def statistics(self, uuid: str) -> dict[str, Any] | None:
        with self._call("statistics"):
            domain = self._domains.get(uuid)
            if domain is None:
                return None
            if not domain.seen().owned:
                raise Conflict(f"The libvirt domain {uuid} was not made by Magnetar, so it is not touched.")
            return read_statistics(_stats(domain.live), _live(domain.live), UPTIME) if domain.state in LIVE else None

    def guest_usages(self) -> dict[str, GuestUsage]:
        with self._call("guest_usages"):
            return {uuid: self.usages.get(uuid, GuestUsage(0.0, parse_domain(domain.live).ram_mib * 512))
                    for uuid, domain in self._domains.items() if domain.state in LIVE and domain.seen().owned}

    def uptime(self) -> dict[str, Any]:
        with self._call("uptime", needs_libvirt=False):
            return dict(HOST)


def _stats(xml: str) -> dict[str, Any]:
    domain = parse_domain(xml)
    memory = domain.ram_mib * 1024
    disks = [{"name": disk.target, **DISK} for disk in domain.disks]
    nics = [{"name": f"vnet{at}", **NIC} for at, _nic in enumerate(domain.nics)]
    return {"balloon.maximum": memory, "balloon.current": memory, "balloon.rss": memory // 2,
            "balloon.available": memory - memory // 8, "balloon.unused": memory // 2, "vcpu.maximum": domain.vcpus,
            **_group("vcpu", [CPU] * domain.vcpus), "block.count": len(disks), **_group("block", disks),
            "net.count": len(nics), **_group("net", nics)}


def _group(name: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{at}.{field}": value for at, member in enumerate(members) for field, value in member.items()}


def _live(xml: str) -> str:
    """Return the domain XML *xml* with a ``target`` element (a device name such as vnet0) in each interface, as libvirt
    adds it while a domain runs."""
    root = ET.fromstring(xml)  # noqa: S314 (made here)
    for at, nic in enumerate(root.iterfind("devices/interface")):
        ET.SubElement(nic, "target", dev=f"vnet{at}")
    return ET.tostring(root, encoding="unicode")
