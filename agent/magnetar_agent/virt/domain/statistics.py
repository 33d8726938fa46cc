# SPDX-License-Identifier: GPL-3.0-or-later
"""Statistics of domains by virDomainListGetStats, and of the host by the kernel and logind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.statistics import DISK, NIC
from magnetar_agent.virt.connection.limits import Lane
from magnetar_core.errors import GuestSilent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from magnetar_agent.virt.connection.pool import ConnectionPool

#: What is asked for in the one call.
_GROUPS = (libvirt.VIR_DOMAIN_STATS_STATE | libvirt.VIR_DOMAIN_STATS_BALLOON | libvirt.VIR_DOMAIN_STATS_VCPU
           | libvirt.VIR_DOMAIN_STATS_INTERFACE | libvirt.VIR_DOMAIN_STATS_BLOCK)
#: libvirt's words for the counters, in the order of ``DISK`` and ``NIC``. QEMU tells no errors of disks.
_DISK = ("rd.bytes", "rd.reqs", "wr.bytes", "wr.reqs", "errors")
_NIC = ("rx.bytes", "rx.pkts", "rx.errs", "rx.drop", "tx.bytes", "tx.pkts", "tx.errs", "tx.drop")
#: Words of the statistics that virDomainMemoryStats has otherwise.
_MEMORY = {"current": "actual", "last-update": "last_update"}
#: libvirt writes the file of a process here when it starts it.
_RUN = Path("/run/libvirt/qemu")
_SESSIONS = Path("/run/systemd/sessions")


class Statistics:
    """The statistics part of ``LocalHypervisor``."""

    connection: ConnectionPool

    def _with(self, what: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False,
              lane: Lane = Lane.GUEST, kind: str = "") -> None:
        raise NotImplementedError

    def statistics(self, uuid: str) -> dict[str, Any] | None:
        """One call for all counters, and the live XML, which says whose device is whose."""
        found: list[dict[str, Any]] = []

        def look(domain: Any) -> None:
            xml = domain.XMLDesc()
            nowait = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
            for _domain, stats in domain.connect().domainListGetStats([domain], _GROUPS, nowait):
                if stats["state.state"] not in (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_CRASHED):
                    found.append(read(stats, xml, self._age(domain.name())))

        def read_from(lane: Lane) -> None:
            self._with("read the figures of", uuid, look, missing_is_fine=True, lane=lane, kind="figures")

        # Of a guest that hangs libvirt tells what it knows itself: while a call waits for QEMU, NOWAIT asks it nothing.
        try:
            read_from(Lane.LOOK if self.connection.is_silent(uuid) else Lane.GUEST)
        except GuestSilent:
            read_from(Lane.LOOK)
        return found[0] if found else None

    def uptime(self) -> dict[str, Any]:
        """/proc/uptime, /proc/loadavg, and the sessions that systemd-logind knows."""
        return {"time": time.strftime("%H:%M:%S"),
                "uptime": int(float(Path("/proc/uptime").read_text().split()[0])), "users": _users(),
                "load_average": [float(word) for word in Path("/proc/loadavg").read_text().split()[:3]]}

    def _age(self, name: str) -> int | None:
        """Seconds since QEMU of a domain was started; ``None`` where its file cannot be seen."""
        if self.connection.uri != "qemu:///system":
            return None
        try:
            return max(0, int(time.time() - (_RUN / f"{name}.pid").stat().st_mtime))
        except OSError:
            return None


def read(stats: Mapping[str, Any], xml: str, uptime: int | None) -> dict[str, Any]:
    """libvirt's *stats* of a domain with this live *xml*, in the words of the protocol; pure."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    return {"virt_type": root.get("type", ""), "uptime": uptime, "cpus": _cpus(stats), "memory": _memory(stats),
            "disks": [{"device": device, **_counters(stats, f"block.{at}.", DISK, _DISK)}
                      for at, device in _named(stats, "block")],
            "nics": _nics(root, stats)}


def _cpus(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those that are plugged in; libvirt knows no time of one that has no thread of its own (emulation in one)."""
    return [{"id": at, "time": stats.get(f"vcpu.{at}.time")}
            for at in range(stats.get("vcpu.maximum", 0)) if f"vcpu.{at}.state" in stats]


def _memory(stats: Mapping[str, Any]) -> dict[str, Any]:
    words = {key.removeprefix("balloon."): value for key, value in stats.items() if key.startswith("balloon.")}
    return {_MEMORY.get(word, word): value for word, value in words.items()}


def _nics(root: ET.Element, stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """In the order of the XML, also those that libvirt counts nothing of."""
    at = {device: number for number, device in _named(stats, "net")}
    found = []
    for nic in root.iterfind("devices/interface"):
        target, mac = nic.find("target"), nic.find("mac")
        device = None if target is None else target.get("dev")
        found.append({"device": device, "mac": None if mac is None else mac.get("address"),
                      **_counters(stats, f"net.{at.get(device or '')}.", NIC, _NIC)})
    return found


def _named(stats: Mapping[str, Any], group: str) -> list[tuple[int, str]]:
    """Number and name of the devices of a group; libvirt leaves out those without a name."""
    return [(at, stats[f"{group}.{at}.name"]) for at in range(stats.get(f"{group}.count", 0))
            if f"{group}.{at}.name" in stats]


def _counters(stats: Mapping[str, Any], prefix: str, words: tuple[str, ...], theirs: tuple[str, ...]) -> \
        dict[str, int | None]:
    return {word: stats.get(prefix + key) for word, key in zip(words, theirs, strict=True)}


def _users() -> int:
    """Sessions of people; none where there is no logind."""
    found = 0
    for session in _SESSIONS.glob("*"):
        try:
            found += "\nCLASS=user\n" in session.read_text()
        except OSError:
            continue  # it has ended meanwhile
    return found
