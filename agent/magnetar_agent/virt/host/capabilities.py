# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host is and can do, as libvirt and the KVM probe say."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.hardware.sev import SEV, SEV_ES
from magnetar_agent.virt.connection.connection import is_down, text_of
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.tools.process import run
from magnetar_core.errors import HypervisorError
from magnetar_core.hardware import architectures
from magnetar_core.hardware.cpus import cpu_set
from magnetar_core.hardware.numa import SMALL_KIB, HostCell

if TYPE_CHECKING:
    from magnetar_agent.virt.connection.pool import ConnectionPool

    from .probe import Kvm

log = logging.getLogger(__name__)
#: Where libvirt finds virtiofsd: that of QEMU (Debian 12), and that of a package of its own.
VIRTIOFSD = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))

#: Guests with encrypted memory where nobody says how many there can be: the greatest number of Placement.
UNLIMITED = 2**31 - 1
TRAFFIC_CONTROL = """
tc qdisc add dev lo root handle 1: htb default 1
tc class add dev lo parent 1: classid 1:1 htb rate 1mbit
tc qdisc add dev lo parent 1:1 handle 2: sfq
tc qdisc add dev lo ingress
tc filter add dev lo parent ffff: protocol all u32 match u32 0 0 police rate 1mbit burst 64kb mtu 64kb drop flowid :1
"""


class Capabilities:
    """The host part of ``LocalHypervisor``. What cannot change while libvirtd runs is asked once per connection."""

    connection: ConnectionPool
    probe: Kvm

    def __init__(self) -> None:
        self._facts: tuple[Any, dict[str, Any]] | None = None
        self._lacks: str | None = None

    def host(self) -> dict[str, Any]:
        """Facts under the names of ``kinds.host``; ``kvm`` as known now."""
        facts = dict(self._of_host())
        kvm = self.probe.seen()
        offered = facts.pop("domain_types")
        facts["virt_types"] = [word for word in ("kvm", "qemu") if word in offered and (word != "kvm" or kvm["usable"])]
        del facts["qemu_user"], facts["spice"]
        return {**facts, "kvm": kvm}

    def kvm(self) -> dict[str, Any]:
        """Waits for the probe, which takes some seconds after the first start of the agent on a host."""
        return self.probe.wait()

    def serves_shares(self) -> bool:
        """Whether virtiofsd is where libvirt looks for it: QEMU's own, or that of a package of its own."""
        return any(path.exists() for path in VIRTIOFSD)

    def has_spice(self) -> bool:
        """What libvirt says of the graphics of this QEMU: distributions may have SPICE as a module in a package of its
        own."""
        return bool(self._of_host()["spice"])

    def lacks_traffic_control(self) -> str:
        """Tries what libvirt sets up for a NIC's bandwidth, on the loopback of a network namespace of its own."""
        if self._lacks is None:
            try:
                run(["unshare", "--net", "sh", "-ec", TRAFFIC_CONTROL], "limit a network device")
                self._lacks = ""
            except HypervisorError as error:
                self._lacks = error.message
        return self._lacks

    def numa_cells(self) -> list[HostCell]:
        """libvirt's capabilities, asked anew: pages can be set aside while the host runs."""
        def ask(conn: Any) -> list[HostCell]:
            root = ET.fromstring(conn.getCapabilities())  # noqa: S314 (libvirt wrote it)
            return host_cells(root)
        return self.connection.call("look at the host's NUMA cells", ask, Lane.HOST)

    def qemu_group(self) -> int:
        """The group that QEMU runs with."""
        return self.qemu_user()[1]

    def qemu_user(self) -> tuple[int, int]:
        """User and group in libvirt's DAC label; where libvirt has none, those of the machine that are meant for it."""
        found: tuple[int, int] | None = self._of_host()["qemu_user"]
        for name in () if found else ("libvirt-qemu", "qemu"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return entry.pw_uid, entry.pw_gid
        if found is None:
            raise HypervisorError("libvirt does not say as which user QEMU runs, and there is no user libvirt-qemu. "
                                  "Install libvirt's QEMU driver, or set security_driver in qemu.conf.")
        return found

    def _of_host(self) -> dict[str, Any]:
        known, generation = self._facts, self.connection.generation
        if known is not None and generation is not None and known[0] is generation:
            return known[1]
        return self.connection.call("describe the host", self._of, Lane.HOST)

    def _of(self, conn: Any) -> dict[str, Any]:
        generation = self.connection.generation
        if self._facts is None or self._facts[0] is not generation:
            self._facts = (generation, _ask(conn))
        return self._facts[1]


def _ask(conn: Any) -> dict[str, Any]:
    root = ET.fromstring(conn.getCapabilities())  # noqa: S314 (libvirt wrote it)
    info, domains = conn.getInfo(), _of_domains(conn, "q35", "firmware, TPM, SPICE and encrypted memory")
    model = root.findtext("host/cpu/model")
    return {
        "id": root.findtext("host/uuid", ""),
        "name": conn.getHostname(),
        "hypervisor_type": conn.getType(),
        "hypervisor_version": _version(conn.getVersion()),
        "libvirt_version": _version(conn.getLibVersion()),
        "architecture": root.findtext("host/cpu/arch", ""),
        "cpu_info": _cpu_info(conn, root),
        "cpu_model": _processor() or model or str(info[0]),
        # libvirt does not count memory that was plugged in later.
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "vcpus": int(info[2]),
        "emulated_architectures": emulated_architectures(conn, root),
        "machine_types": machine_types(root),
        "domain_types": {domain.get("type") for domain in root.iterfind("guest/arch/domain")},
        "qemu_user": _dac_user(root),
        "firmware": ["bios", *(["uefi"] if "efi" in _enum(domains, "os/enum[@name='firmware']") else [])],
        "secure_boot": "yes" in _enum(domains, "os/loader/enum[@name='secure']"),
        "tpm_versions": sorted(filter(None, _enum(domains, "devices/tpm/enum[@name='backendVersion']"))),
        "disk_encryption": _disk_encryption(),
        "memory_encryption": sev_of(domains),
        "spice": "spice" in _enum(domains, "devices/graphics/enum[@name='type']"),
    }


def _cpu_info(conn: Any, root: ET.Element) -> dict[str, Any]:
    """The CPU as Nova's cpu_info has it. libvirt tells the features beyond those of its nearest model; it is asked for
    all of them (virConnectBaselineCPU)."""
    cpu = root.find("host/cpu")
    if cpu is None:
        return {}
    features = {str(one.get("name")) for one in cpu.iterfind("feature")}
    with contextlib.suppress(libvirt.libvirtError):  # of architectures for which it has no models
        text = re.sub(r"<(topology|maxphysaddr|counter|pages|microcode|signature)[^>]*/>", "",
                      ET.tostring(cpu, encoding="unicode"))
        whole = ET.fromstring(conn.baselineCPU([text], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES))  # noqa: S314
        features |= {str(one.get("name")) for one in whole.iterfind("feature") if one.get("policy") != "disable"}
    shape = cpu.find("topology")
    found = {} if shape is None else {name: int(shape.get(name, 1)) for name in ("sockets", "cores", "threads")}
    return {"arch": cpu.findtext("arch", ""), "model": cpu.findtext("model", ""), "vendor": cpu.findtext("vendor", ""),
            "topology": {"cells": len(root.findall("host/topology/cells/cell")) or 1, **found},
            "features": sorted(features)}


def machine_types(capabilities: ET.Element) -> dict[str, dict[str, str]]:
    """The machine types of each architecture in libvirt's *capabilities*, each with the name of the version that it is:
    its own, but for aliases."""
    found: dict[str, dict[str, str]] = {}
    for arch in capabilities.iterfind("guest/arch"):
        known = found.setdefault(arch.get("name", ""), {})
        known.update({one.text: one.get("canonical", one.text) for one in arch.iterfind("machine") if one.text})
    return found


def emulated_architectures(conn: Any, capabilities: ET.Element) -> list[str]:
    """Architectures that QEMU emulates beside the host's own, with a firmware that libvirt knows."""
    own, found = capabilities.findtext("host/cpu/arch", ""), []
    for arch, machine in architectures.MACHINES.items():
        if arch != own and capabilities.find(f"guest/arch[@name='{arch}']/domain[@type='qemu']") is not None:
            offered = _of_domains(conn, machine, f"guests of {arch}", arch, "qemu")
            boots = arch not in architectures.BY_UEFI or "efi" in _enum(offered, "os/enum[@name='firmware']")
            if boots and offered.findtext("arch") == arch:
                found.append(arch)
    return found


def _of_domains(conn: Any, machine: str, what: str, arch: str | None = None, type: str | None = None) -> ET.Element:
    """What libvirt says that guests of a *machine* can have. Where its emulator does not tell, *what* follows from that
    is told as not there: all else of the host is."""
    try:
        return ET.fromstring(conn.getDomainCapabilities(None, arch, machine, type))  # noqa: S314 (libvirt wrote it)
    except libvirt.libvirtError as error:
        if is_down(conn, error):
            raise
        log.warning("libvirt does not know what guests of machine %s can have (%s), so this host tells that it has no "
                    "%s. See that QEMU's program for them runs here, and restart libvirtd.", machine,
                    text_of(error), what)
        return ET.Element("domainCapabilities")


def host_cells(capabilities: ET.Element) -> list[HostCell]:
    """The NUMA cells in libvirt's *capabilities*."""
    found = []
    for cell in capabilities.iterfind("host/topology/cells/cell"):
        cpus = {int(one.get("id", "0")): frozenset(cpu_set(one.get("siblings") or one.get("id") or "0"))
                for one in cell.iterfind("cpus/cpu")}
        pages = {int(one.get("size", "0")): int(one.text or 0) for one in cell.iterfind("pages")}
        if cpus:
            found.append(HostCell(
                int(cell.get("id", "0")), frozenset(), frozenset(cpus), int(cell.findtext("memory", "0")) // 1024,
                {kib: count for kib, count in pages.items() if kib > SMALL_KIB},
                tuple(sorted(set(cpus.values()), key=min)),
                frozenset(int(one.get("socket_id", "-1")) for one in cell.iterfind("cpus/cpu")) - {-1}))
    if found:
        return sorted(found)
    every = frozenset(os.sched_getaffinity(0))
    return [HostCell(0, frozenset(), every, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20)]


def sev_of(domains: ET.Element) -> dict[str, dict[str, int]]:
    """``memory_encryption`` of ``kinds.Host`` by libvirt's domain capabilities; libvirt before 8.0 tells no number of
    guests, which counts as no limit. One of 0 is switched off in the firmware."""
    found = domains.find("features/sev")
    if found is None or found.get("supported") != "yes":
        return {}
    place = {"cbitpos": int(found.findtext("cbitpos", "0")), "reduced_phys_bits": int(
        found.findtext("reducedPhysBits", "0"))}
    most = {SEV: int(found.findtext("maxGuests", str(UNLIMITED))), SEV_ES: int(found.findtext("maxESGuests", "0"))}
    return {model: {"guests": guests, **place} for model, guests in most.items() if guests}


def _disk_encryption() -> list[str]:
    """Formats in which QEMU can encrypt disks; libvirt does not say."""
    try:
        said = run(["qemu-img", "--help"], "ask qemu-img for its formats")
    except HypervisorError:
        return []
    return ["luks"] if "luks" in said.partition("Supported formats:")[2].split() else []


def _enum(domains: ET.Element, path: str) -> set[str | None]:
    """The values that libvirt says of something in its domain capabilities."""
    return {one.text for one in domains.iterfind(f"{path}/value")}


def _version(number: int) -> str:
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"


def _processor() -> str:
    """The model in /proc/cpuinfo: libvirt's is only the nearest that it knows by name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def _dac_user(root: ET.Element) -> tuple[int, int] | None:
    """``+64055:+64055`` is user and group of QEMU."""
    for model in root.iterfind("host/secmodel"):
        label = model.findtext("baselabel", "")
        if model.findtext("model") == "dac" and ":+" in label:
            user, _colon, group = label.partition(":+")
            return int(user.removeprefix("+")), int(group)
    return None
