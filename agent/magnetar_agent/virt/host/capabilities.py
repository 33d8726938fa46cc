# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts and capabilities of the host, from libvirt and the KVM probe."""

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
from magnetar_agent.virt.tools.process import run_program
from magnetar_core.errors import HypervisorError
from magnetar_core.hardware import architectures
from magnetar_core.hardware.cpus import cpu_set
from magnetar_core.hardware.numa import SMALL_KIB, HostCell

if TYPE_CHECKING:
    from magnetar_agent.virt.connection.pool import ConnectionPool

    from .probe import Kvm

log = logging.getLogger(__name__)
#: The places where libvirt finds virtiofsd: QEMU's (Debian 12), and a separate package's.
VIRTIOFSD = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))

#: The number of guests with encrypted memory when the host reports none: the greatest number of Placement.
UNLIMITED = 2**31 - 1
TRAFFIC_CONTROL = """
tc qdisc add dev lo root handle 1: htb default 1
tc class add dev lo parent 1: classid 1:1 htb rate 1mbit
tc qdisc add dev lo parent 1:1 handle 2: sfq
tc qdisc add dev lo ingress
tc filter add dev lo parent ffff: protocol all u32 match u32 0 0 police rate 1mbit burst 64kb mtu 64kb drop flowid :1
"""


class Capabilities:
    """The methods of ``LocalHypervisor`` for facts about the host. Most results are cached until libvirt is connected
    again."""

    connection: ConnectionPool
    probe: Kvm

    def __init__(self) -> None:
        self._facts: tuple[Any, dict[str, Any]] | None = None
        self._lacks: str | None = None

    def host(self) -> dict[str, Any]:
        """Return the facts about the host that libvirt reports, such as ``vcpus`` and ``machine_types``. The fact
        ``kvm`` is the present result of the KVM probe, which may still be running."""
        facts = dict(self._of_host())
        kvm = self.probe.seen()
        offered = facts.pop("domain_types")
        facts["virt_types"] = [virt_type for virt_type in ("kvm", "qemu") if virt_type in offered
                               and (virt_type != "kvm" or kvm["usable"])]
        del facts["qemu_user"], facts["spice"]
        return {**facts, "kvm": kvm}

    def kvm(self) -> dict[str, Any]:
        """Wait for the end of the KVM probe, which takes seconds after a boot, and return ``{"usable", "reason",
        "checked_at"}``."""
        return self.probe.wait()

    def serves_shares(self) -> bool:
        """Return whether virtiofsd is installed, which libvirt needs for file shares."""
        return any(path.exists() for path in VIRTIOFSD)

    def has_spice(self) -> bool:
        """Return whether QEMU supports SPICE, which is a separate package in some distributions."""
        return bool(self._of_host()["spice"])

    def lacks_traffic_control(self) -> str:
        """Return the reason why this host cannot limit the bandwidth of NICs; "" if it can. Tested by running tc
        commands in a temporary network namespace."""
        if self._lacks is None:
            try:
                run_program(["unshare", "--net", "sh", "-ec", TRAFFIC_CONTROL], "limit a network device")
                self._lacks = ""
            except HypervisorError as error:
                self._lacks = error.message
        return self._lacks

    def numa_cells(self) -> list[HostCell]:
        """Return the host's NUMA cells. Not cached, because huge pages can be reserved at any time."""
        def ask(conn: Any) -> list[HostCell]:
            root = ET.fromstring(conn.getCapabilities())  # noqa: S314 (libvirt wrote it)
            return host_cells(root)
        return self.connection.call("look at the host's NUMA cells", ask, Lane.HOST)

    def qemu_group(self) -> int:
        """Return the id of the group that QEMU runs with."""
        return self.qemu_user()[1]

    def qemu_user(self) -> tuple[int, int]:
        """Return the ids of the user and group that QEMU runs with: from libvirt's DAC label, or else those of the user
        libvirt-qemu or qemu."""
        user_and_group: tuple[int, int] | None = self._of_host()["qemu_user"]
        for name in () if user_and_group else ("libvirt-qemu", "qemu"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return entry.pw_uid, entry.pw_gid
        if user_and_group is None:
            raise HypervisorError("libvirt does not say as which user QEMU runs, and there is no user libvirt-qemu. "
                                  "Install libvirt's QEMU driver, or set security_driver in qemu.conf.")
        return user_and_group

    def _of_host(self) -> dict[str, Any]:
        cached, generation = self._facts, self.connection.generation
        if cached is not None and generation is not None and cached[0] is generation:
            return cached[1]
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
    """Return the host's CPU in the format of Nova's cpu_info, with all features. *root*: libvirt's capabilities, whose
    list of features omits those that the CPU model includes."""
    cpu = root.find("host/cpu")
    if cpu is None:
        return {}
    features = {str(feature.get("name")) for feature in cpu.iterfind("feature")}
    with contextlib.suppress(libvirt.libvirtError):  # for architectures without models
        text = re.sub(r"<(topology|maxphysaddr|counter|pages|microcode|signature)[^>]*/>", "",
                      ET.tostring(cpu, encoding="unicode"))
        whole = ET.fromstring(conn.baselineCPU([text], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES))  # noqa: S314
        features |= {str(feature.get("name")) for feature in whole.iterfind("feature")
                     if feature.get("policy") != "disable"}
    shape = cpu.find("topology")
    counts = {} if shape is None else {name: int(shape.get(name, 1)) for name in ("sockets", "cores", "threads")}
    return {"arch": cpu.findtext("arch", ""), "model": cpu.findtext("model", ""), "vendor": cpu.findtext("vendor", ""),
            "topology": {"cells": len(root.findall("host/topology/cells/cell")) or 1, **counts},
            "features": sorted(features)}


def machine_types(capabilities: ET.Element) -> dict[str, dict[str, str]]:
    """Return ``{architecture: {machine type: versioned machine type}}`` from libvirt's *capabilities*. The two names
    differ only for aliases such as q35."""
    types: dict[str, dict[str, str]] = {}
    for arch in capabilities.iterfind("guest/arch"):
        arch_types = types.setdefault(arch.get("name", ""), {})
        arch_types.update({machine.text: machine.get("canonical", machine.text) for machine in arch.iterfind("machine")
                           if machine.text})
    return types


def emulated_architectures(conn: Any, capabilities: ET.Element) -> list[str]:
    """Return the CPU architectures that this host can emulate: QEMU supports them and libvirt has a firmware for them.
    """
    host_arch, emulated = capabilities.findtext("host/cpu/arch", ""), []
    for arch, machine in architectures.MACHINES.items():
        if arch != host_arch and capabilities.find(f"guest/arch[@name='{arch}']/domain[@type='qemu']") is not None:
            offered = _of_domains(conn, machine, f"guests of {arch}", arch, "qemu")
            boots = arch not in architectures.BY_UEFI or "efi" in _enum(offered, "os/enum[@name='firmware']")
            if boots and offered.findtext("arch") == arch:
                emulated.append(arch)
    return emulated


def _of_domains(conn: Any, machine: str, capability: str, arch: str | None = None,
                type: str | None = None) -> ET.Element:
    """Return libvirt's domain capabilities for guests with this *machine* type, architecture *arch* and *type* (kvm or
    qemu). If libvirt reports an error, log a warning about *capability*, the feature that the host then lacks, and
    return an empty element."""
    try:
        return ET.fromstring(conn.getDomainCapabilities(None, arch, machine, type))  # noqa: S314 (libvirt wrote it)
    except libvirt.libvirtError as error:
        if is_down(conn, error):
            raise
        log.warning("libvirt does not know what guests of machine %s can have (%s), so this host tells that it has no "
                    "%s. See that QEMU's program for them runs here, and restart libvirtd.", machine,
                    text_of(error), capability)
        return ET.Element("domainCapabilities")


def host_cells(capabilities: ET.Element) -> list[HostCell]:
    """Return the NUMA cells in libvirt's *capabilities*, sorted by id; a single cell with all CPUs if none are listed.
    """
    cells = []
    for cell in capabilities.iterfind("host/topology/cells/cell"):
        cpus = {int(cpu.get("id", "0")): frozenset(cpu_set(cpu.get("siblings") or cpu.get("id") or "0"))
                for cpu in cell.iterfind("cpus/cpu")}
        pages = {int(page_size.get("size", "0")): int(page_size.text or 0) for page_size in cell.iterfind("pages")}
        if cpus:
            cells.append(HostCell(
                int(cell.get("id", "0")), frozenset(), frozenset(cpus), int(cell.findtext("memory", "0")) // 1024,
                {kib: count for kib, count in pages.items() if kib > SMALL_KIB},
                tuple(sorted(set(cpus.values()), key=min)),
                frozenset(int(cpu.get("socket_id", "-1")) for cpu in cell.iterfind("cpus/cpu")) - {-1}))
    if cells:
        return sorted(cells)
    every = frozenset(os.sched_getaffinity(0))
    return [HostCell(0, frozenset(), every, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20)]


def sev_of(domains: ET.Element) -> dict[str, dict[str, int]]:
    """Return the host's field ``memory_encryption`` from *domains*, libvirt's domain capabilities: ``{model: {"guests":
    limit, "cbitpos", "reduced_phys_bits"}}``. Empty without SEV. Models that the firmware disables are left out."""
    sev = domains.find("features/sev")
    if sev is None or sev.get("supported") != "yes":
        return {}
    place = {"cbitpos": int(sev.findtext("cbitpos", "0")), "reduced_phys_bits": int(
        sev.findtext("reducedPhysBits", "0"))}
    most = {SEV: int(sev.findtext("maxGuests", str(UNLIMITED))), SEV_ES: int(sev.findtext("maxESGuests", "0"))}
    return {model: {"guests": guests, **place} for model, guests in most.items() if guests}


def _disk_encryption() -> list[str]:
    """Return the disk encryption formats that QEMU supports, ``["luks"]`` or empty, parsed from the help text of
    qemu-img."""
    try:
        output = run_program(["qemu-img", "--help"], "ask qemu-img for its formats")
    except HypervisorError:
        return []
    return ["luks"] if "luks" in output.partition("Supported formats:")[2].split() else []


def _enum(domains: ET.Element, path: str) -> set[str | None]:
    """Return the values of the enumeration at *path* in *domains*, libvirt's domain capabilities."""
    return {value_element.text for value_element in domains.iterfind(f"{path}/value")}


def _version(number: int) -> str:
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"


def _processor() -> str:
    """Return the CPU model name from /proc/cpuinfo; "" if unknown. libvirt's own name is only the closest model that it
    knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def _dac_user(root: ET.Element) -> tuple[int, int] | None:
    """Return QEMU's (uid, gid) from the DAC label, such as ``+64055:+64055``, in *root*, libvirt's capabilities;
    ``None`` if there is none."""
    for model in root.iterfind("host/secmodel"):
        label = model.findtext("baselabel", "")
        if model.findtext("model") == "dac" and ":+" in label:
            user, _colon, group = label.partition(":+")
            return int(user.removeprefix("+")), int(group)
    return None
