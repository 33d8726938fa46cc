# SPDX-License-Identifier: GPL-3.0-or-later
"""Statistics of domains from virDomainListGetStats, and of the host from the kernel and logind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.hypervisor import DISK_COUNTERS, NIC_COUNTERS
from magnetar_agent.host.load_meter import GuestUsage, process_usage
from magnetar_agent.virt.connection.limits import Lane
from magnetar_core.errors import GuestSilent
from magnetar_core.power import LIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from magnetar_agent.host.hypervisor import Domain as DomainSeen
    from magnetar_agent.virt.connection.pool import ConnectionPool

#: The groups of counters that the call for all counters returns.
_GROUPS = (libvirt.VIR_DOMAIN_STATS_STATE | libvirt.VIR_DOMAIN_STATS_BALLOON | libvirt.VIR_DOMAIN_STATS_VCPU
           | libvirt.VIR_DOMAIN_STATS_INTERFACE | libvirt.VIR_DOMAIN_STATS_BLOCK)
#: libvirt's names of the counters, in the order of ``DISK_COUNTERS`` and ``NIC_COUNTERS``. QEMU reports no errors of
#: disks.
_DISK = ("rd.bytes", "rd.reqs", "wr.bytes", "wr.reqs", "errors")
_NIC = ("rx.bytes", "rx.pkts", "rx.errs", "rx.drop", "tx.bytes", "tx.pkts", "tx.errs", "tx.drop")
#: Statistics that have another name in virDomainMemoryStats.
_MEMORY = {"current": "actual", "last-update": "last_update"}
#: The folder where libvirt writes a file for each QEMU when it starts it.
_RUN = Path("/run/libvirt/qemu")
_SESSIONS = Path("/run/systemd/sessions")


class Statistics:
    """The methods of ``LocalHypervisor`` for usage statistics of domains and of the host."""

    connection: ConnectionPool

    def domains(self) -> dict[str, DomainSeen]:
        raise NotImplementedError

    def _with(self, purpose: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False,
              lane: Lane = Lane.GUEST, kind: str = "") -> None:
        raise NotImplementedError

    def statistics(self, uuid: str) -> dict[str, Any] | None:
        """Return counters of CPU, memory, disks and NICs of the domain *uuid*, in the form of ``read_statistics``;
        ``None`` if the domain is not running."""
        figures: list[dict[str, Any]] = []

        def look(domain: Any) -> None:
            xml = domain.XMLDesc()
            nowait = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
            for _domain, stats in domain.connect().domainListGetStats([domain], _GROUPS, nowait):
                if stats["state.state"] not in (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_CRASHED):
                    figures.append(read_statistics(stats, xml, self._age(domain.name())))

        def read_from(lane: Lane) -> None:
            self._with("read the figures of", uuid, look, missing_is_fine=True, lane=lane, kind="figures")

        # For a hanging guest libvirt returns its own data: while a call waits for QEMU, NOWAIT asks QEMU nothing.
        try:
            read_from(Lane.READ if self.connection.is_silent(uuid) else Lane.GUEST)
        except GuestSilent:
            read_from(Lane.READ)
        return figures[0] if figures else None

    def guest_usages(self) -> dict[str, GuestUsage]:
        """Return ``{uuid: usage}`` of Magnetar's running domains, read from /proc. Empty if libvirt is not at
        qemu:///system."""
        if self.connection.uri != "qemu:///system":
            return {}
        usages = {uuid: process_usage(_RUN / f"{domain.name}.pid") for uuid, domain in self.domains().items()
                  if domain.owned and domain.state in LIVE}
        return {uuid: usage for uuid, usage in usages.items() if usage is not None}

    def uptime(self) -> dict[str, Any]:
        """Return the host's ``time``, ``uptime`` in seconds, number of logged-in ``users`` and ``load_average``."""
        return {"time": time.strftime("%H:%M:%S"),
                "uptime": int(float(Path("/proc/uptime").read_text().split()[0])), "users": _users(),
                "load_average": [float(load) for load in Path("/proc/loadavg").read_text().split()[:3]]}

    def _age(self, name: str) -> int | None:
        """Return the seconds since the start of the domain *name*, from the age of libvirt's pid file; ``None`` if
        there is no such file."""
        if self.connection.uri != "qemu:///system":
            return None
        try:
            return max(0, int(time.time() - (_RUN / f"{name}.pid").stat().st_mtime))
        except OSError:
            return None


def read_statistics(stats: Mapping[str, Any], xml: str, uptime: int | None) -> dict[str, Any]:
    """Return ``{virt_type, uptime, cpus, memory, disks, nics}`` as ``LocalHypervisor.statistics`` documents it.
    *stats*: counters from libvirt. *xml*: the domain's live XML. *uptime*: seconds since its start."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    return {"virt_type": root.get("type", ""), "uptime": uptime, "cpus": _cpus(stats), "memory": _memory(stats),
            "disks": [{"device": device, **_counters(stats, f"block.{at}.", DISK_COUNTERS, _DISK)}
                      for at, device in _indexed_devices(stats, "block")],
            "nics": _nics(root, stats)}


def _cpus(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ``{id, time}`` of each plugged-in CPU in *stats*. ``time`` is in ns; ``None`` if the CPU has no separate
    thread, as in single-threaded emulation."""
    return [{"id": at, "time": stats.get(f"vcpu.{at}.time")}
            for at in range(stats.get("vcpu.maximum", 0)) if f"vcpu.{at}.state" in stats]


def _memory(stats: Mapping[str, Any]) -> dict[str, Any]:
    words = {key.removeprefix("balloon."): value for key, value in stats.items() if key.startswith("balloon.")}
    return {_MEMORY.get(name, name): value for name, value in words.items()}


def _nics(root: ET.Element, stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return device, MAC and counters of each NIC in *root*, the domain's XML. Counters that *stats* lacks are
    ``None``."""
    at = {device: number for number, device in _indexed_devices(stats, "net")}
    nics = []
    for nic in root.iterfind("devices/interface"):
        target, mac = nic.find("target"), nic.find("mac")
        device = None if target is None else target.get("dev")
        nics.append({"device": device, "mac": None if mac is None else mac.get("address"),
                     **_counters(stats, f"net.{at.get(device or '')}.", NIC_COUNTERS, _NIC)})
    return nics


def _indexed_devices(stats: Mapping[str, Any], group: str) -> list[tuple[int, str]]:
    """Return pairs (index, device name) of the devices of *group* (block or net) in libvirt's *stats*. Devices without
    a name are left out."""
    return [(at, stats[f"{group}.{at}.name"]) for at in range(stats.get(f"{group}.count", 0))
            if f"{group}.{at}.name" in stats]


def _counters(stats: Mapping[str, Any], prefix: str, words: tuple[str, ...], theirs: tuple[str, ...]) -> \
        dict[str, int | None]:
    return {name: stats.get(prefix + key) for name, key in zip(words, theirs, strict=True)}


def _users() -> int:
    """Return the number of login sessions of users; 0 without systemd-logind."""
    count = 0
    for session in _SESSIONS.glob("*"):
        try:
            count += "\nCLASS=user\n" in session.read_text()
        except OSError:
            continue  # it has ended meanwhile
    return count
