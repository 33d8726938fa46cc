# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversion of ``DomainSpec`` to libvirt's XML, and of libvirt's XML and state to ``Domain``, without calls to
libvirt."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.hardware import machine_parts
from magnetar_agent.hardware.cpu import guest_cpu
from magnetar_agent.hardware.devices import GuestDevices, guest_devices
from magnetar_agent.hardware.pmem import LABELS_KIB
from magnetar_agent.host.hypervisor import Domain, DomainSpec
from magnetar_agent.host.networks import Nic
from magnetar_agent.host.storage import Backing, Disk, DiskKey, NetworkSource
from magnetar_agent.virt.tools.templates import FOLDER, NAMESPACE, SCHEMA, fill_template
from magnetar_core.hardware import architectures
from magnetar_core.hardware.pci import DIRECT, MACVTAP, VDPA, WHOLE
from magnetar_core.power import CRASHED, OFF, PAUSED, RUNNING, SUSPENDED

#: PCI Express ports of a machine q35 or virt, in addition to ports of disks and NICs: for its own devices (serial
#: channel, tablet, balloon, random numbers), and for hot-plugged ones. Each costs the guest's firmware 20 ms under
#: emulation.
PORTS = 4 + 12
#: The attribute of Magnetar's metadata in an adopted domain.
ADOPTED = "adopted"
#: The number of parts of ``Nic.alias``.
NOTED = 12
#: State and reason of virDomainGetState to state and reason of ``Domain``; the reason None stands for any other.
STATES: dict[tuple[int, int | None], tuple[str, str]] = {
    (libvirt.VIR_DOMAIN_RUNNING, None): (RUNNING, "unknown"),
    (libvirt.VIR_DOMAIN_BLOCKED, None): (RUNNING, "unknown"),
    (libvirt.VIR_DOMAIN_SHUTDOWN, None): (RUNNING, "guest"),
    (libvirt.VIR_DOMAIN_PMSUSPENDED, None): (PAUSED, "guest"),
    (libvirt.VIR_DOMAIN_PAUSED, None): (PAUSED, "unknown"),
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR): (PAUSED, "io-error"),
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_CRASHED): (CRASHED, "panic"),
    (libvirt.VIR_DOMAIN_CRASHED, None): (CRASHED, "failed"),
    (libvirt.VIR_DOMAIN_CRASHED, libvirt.VIR_DOMAIN_CRASHED_PANICKED): (CRASHED, "panic"),
    (libvirt.VIR_DOMAIN_SHUTOFF, None): (OFF, "unknown"),
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN): (OFF, "guest"),
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED): (OFF, "outside"),
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SAVED): (OFF, "saved"),
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_FAILED): (OFF, "failed"),  # it never started
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED): (CRASHED, "failed"),
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DAEMON): (CRASHED, "failed"),
}


@dataclass(frozen=True)
class DomainState:
    """The state of a domain as libvirt reports it: libvirt's numbers of state and reason, whether it has a managed
    save, and whether it is persistent."""

    state: int
    reason: int
    saved: bool = False
    persistent: bool = True


def domain_state(libvirt_state: DomainState) -> tuple[str, str]:
    """Convert libvirt's state to Magnetar's state and reason, such as ``("suspended", "saved")``."""
    state_and_reason = STATES.get((libvirt_state.state, libvirt_state.reason)) or STATES.get((libvirt_state.state,
                                                                                              None), (OFF, "unknown"))
    if libvirt_state.saved and libvirt_state.state == libvirt.VIR_DOMAIN_SHUTOFF:
        return SUSPENDED, "saved"
    return state_and_reason


def render_domain(spec: DomainSpec, cache: str = "none", folder: Path = FOLDER,
                  caches: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the libvirt domain XML for *spec*. *cache*: cache mode of the disks: ``none``, or ``writeback`` if their
    file systems do not support O_DIRECT. *caches*: ``{target: cache mode}`` for disks with another mode. *folder*:
    folder of the template."""
    tags = [(device, tag) for device, tag in
            [*((d.target, d.tag) for d in spec.disks), *((n.mac, n.tag) for n in spec.nics)] if tag]
    arch = spec.hardware.get(architectures.FIELD) or platform.machine()
    values = {"spec": spec, "arch": arch, "machine": machine_parts.architecture_parts(arch),
              "cache": cache, "caches": caches, "tags": tags,
              "labels_kib": LABELS_KIB, "memory_mib": spec.ram_mib
              + sum(namespace.size_kib for namespace in spec.pmem) // 1024,
              "cpu": guest_cpu(spec.hardware, spec.virt_type, spec.cpu), "devices": (parts := _devices(spec)),
              "hardware": json.dumps(dict(spec.hardware), sort_keys=True) if spec.hardware else "",
              "turns": any(disk.boot for disk in spec.disks), "scsi": any(disk.bus == "scsi" for disk in spec.disks),
              "ports": PORTS + parts.ports + len(spec.disks) + len(spec.nics) + len(spec.shares) + len(spec.pci)
              + bool(spec.mdev)}
    return fill_template("domain.xml.j2", values, folder)


def _devices(spec: DomainSpec) -> GuestDevices:
    """Return the devices that the hardware in *spec* requires, plus a USB controller if a disk needs one."""
    hardware_devices = guest_devices(spec.hardware)
    return hardware_devices._replace(usb=True) if any(disk.bus == "usb" for disk in spec.disks) else hardware_devices


def render_device(device: Disk | Nic, cache: str = "none", folder: Path = FOLDER) -> str:
    """Return the libvirt XML of a disk or NIC. *cache*: cache mode of a disk. *folder*: folder of the template."""
    return fill_template("device.xml.j2", {"device": device, "cache": cache}, folder)


def owner_note(root: ET.Element, resource_type: str) -> ET.Element | None:
    """Return Magnetar's metadata element in *root*, the XML of a libvirt domain or network; ``None`` if there is none,
    or if the element has another uuid than *root*, as in a clone. *resource_type*: name of the element, server or
    network."""
    note = _below(root, "metadata", f"{{{NAMESPACE}}}{resource_type}")
    return note if note is not None and note.get("uuid") == root.findtext("uuid") else None


def adoption_note(uuid: str) -> str:
    """Return the metadata element, as XML text, that marks the domain *uuid* as an adopted server."""
    return f'<server uuid="{uuid}" schema="{SCHEMA}" {ADOPTED}="yes"/>'


def _below(element: ET.Element | None, *names: str) -> ET.Element | None:
    """Return the descendant of *element* at the path *names*; ``None`` if it is missing. This is ten times as fast as
    ``ElementTree.find`` with a path."""
    for name in names:
        element = None if element is None else element.find(name)
    return element


@lru_cache(maxsize=64)
def parse_domain_xml(xml: str) -> Domain:
    """Parse a libvirt domain's XML into a ``Domain``. Its state is ``OFF`` until ``with_state`` sets it."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    note = owner_note(root, "server")
    tags = {} if note is None else {t.get("of", ""): t.text for t in note.findall(f"{{{NAMESPACE}}}tag")}
    kind, devices = _below(root, "os", "type"), root.find("devices")
    disks, nics, graphics, added, hostdevs = ([] if devices is None else devices.findall(name)
                                              for name in ("disk", "interface", "graphics", "memory", "hostdev"))
    memory = _below(root, "memoryBacking", "source")
    return Domain(
        uuid=root.findtext("uuid", ""),
        name=root.findtext("name", ""),
        state=OFF,
        owned=note is not None,
        adopted=note is not None and note.get(ADOPTED) == "yes",
        vcpus=int(root.findtext("vcpu", "1")),
        ram_mib=_mib(root.find("memory")) - sum(_mib(_below(memory_device, "target", "size"))
                                                for memory_device in added),
        machine="" if kind is None else kind.get("machine", ""),
        virt_type=root.get("type", ""),
        nics=(*(_nic(nic, tags) for nic in nics), *(card for hostdev in hostdevs if (card := _card(hostdev, tags)))),
        disks=tuple(_disk(disk, tags) for disk in disks),
        description=root.findtext("description", ""),
        title=root.findtext("title", ""),
        hardware=_hardware(note),
        probed=not all(map(_chain_ends, disks)),
        spice=any(display.get("type") == "spice" for display in graphics),
        file_backed=memory is not None and memory.get("type") == "file",
        cpu="" if note is None else note.findtext(f"{{{NAMESPACE}}}cpu", ""),
        cpuset="" if (cpus := root.find("vcpu")) is None else cpus.get("cpuset", ""),
    )


def _hardware(note: ET.Element | None) -> dict[str, Any]:
    """Return the server's hardware from *note*, Magnetar's metadata element in a domain's XML; empty if there is none.
    """
    hardware_json = None if note is None else note.findtext(f"{{{NAMESPACE}}}hardware")
    return json.loads(hardware_json) if hardware_json else {}


def with_state(domain: Domain, libvirt_state: DomainState) -> Domain:
    """Return a copy of *domain* with power state, reason and persistence from *libvirt_state*."""
    power_state, reason = domain_state(libvirt_state)
    return replace(domain, state=power_state, reason=reason, persistent=libvirt_state.persistent)


def _nic(nic: ET.Element, tags: dict[str, str | None]) -> Nic:
    mac, model, source, target = nic.find("mac"), nic.find("model"), nic.find("source"), nic.find("target")
    port, host, mtu = _below(nic, "virtualport", "parameters"), _below(nic, "driver", "host"), nic.find("mtu")
    is_function, vlan = nic.get("type") == "hostdev", _below(nic, "vlan", "tag")
    over = {"direct": MACVTAP, "vdpa": VDPA}.get(nic.get("type", ""))
    over = None if over == MACVTAP and (source is None or source.get("mode") != "passthrough") else over
    address = "" if mac is None else mac.get("address", "")
    return Nic(
        mac=address,
        model="" if model is None or is_function else model.get("type", ""),
        network=None if source is None else source.get("network"),
        bridge=None if source is None or source.get("network") else source.get("bridge"),
        tag=tags.get(address),
        place=_guest_address(nic, "pci"),
        tap=None if target is None else target.get("dev"),
        port=None if port is None else port.get("interfaceid"),
        mtu=0 if mtu is None else int(mtu.get("size", "0")),
        checksums=host is None or host.get("csum") != "off",
        device=host_address(nic) if is_function else _noted(nic)[1] if over else None,
        vlan=int(vlan.get("id", "0")) if (is_function or over) and vlan is not None else None,
        vnic_type=DIRECT if is_function else over,
        netdev=source.get("dev", "").removeprefix("/dev/") if over and source is not None else None,
    )


def _noted(device: ET.Element) -> tuple[str, str | None]:
    """Return (MAC, PCI address) of a NIC from the alias of *device*, an element of a domain's XML. Only a NIC that is a
    PCI device of the host has such an alias (``Nic.alias``); for other devices, return ("", ``None``)."""
    alias = device.find("alias")
    parts = ("" if alias is None else alias.get("name", "")).split("-")
    if parts[:2] != ["ua", "nic"] or len(parts) != NOTED:
        return "", None
    domain, bus, slot, function = parts[8:]
    return ":".join(parts[2:8]), f"{domain}:{bus}:{slot}.{function}"


def is_nic_device(device: ET.Element) -> bool:
    """Return whether *device*, a PCI device in a domain's XML, is a NIC of the guest, that is, a whole network card of
    the host."""
    return _noted(device)[1] is not None


def _card(device: ET.Element, tags: dict[str, str | None]) -> Nic | None:
    """Return the NIC for *device*, a PCI device in a domain's XML, if it is a whole network card; otherwise ``None``.
    *tags*: ``{MAC: device tag}``."""
    mac, address = _noted(device)
    return Nic(mac, "", tag=tags.get(mac), place=_guest_address(device, "pci"), device=address, vnic_type=WHOLE,
               managed=device.get("managed") == "yes") if address else None


def host_address(device: ET.Element) -> str:
    """Return the host's PCI address, such as ``0000:3b:00.2``, of *device*, a PCI device or SR-IOV NIC in a domain's
    XML."""
    place = device.find("source/address")
    domain, bus, slot, function = (int("0" if place is None else place.get(name, "0"), 16)
                                   for name in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _disk(disk: ET.Element, tags: dict[str, str | None]) -> Disk:
    driver, source, target = disk.find("driver"), disk.find("source"), disk.find("target")
    device = "" if target is None else target.get("dev", "")
    boot = disk.find("boot")
    return Disk(
        path=Path("" if source is None else _where(source)),
        target=device,
        format="raw" if driver is None else driver.get("type", "raw"),
        device=disk.get("device", "disk"),
        bus="" if target is None else target.get("bus", ""),
        readonly=disk.find("readonly") is not None,
        tag=tags.get(device),
        serial=disk.findtext("serial"),
        shareable=disk.find("shareable") is not None,
        block_device=disk.get("type") == "block",
        remote=None if source is None or disk.get("type") != "network" else _remote(source),
        boot=None if boot is None else int(boot.get("order", "0")),
        backing=_backing(disk),
        key=_key(disk),
        place=_guest_address(disk, "" if target is None else target.get("bus", "")),
    )


def _guest_address(device: ET.Element, bus: str) -> tuple[str, str] | None:
    """Return (bus, address) of *device*, a device in a domain's XML, in the form of Nova's device metadata. The address
    is a PCI address; controller, bus, target and unit for SCSI; bus and unit for IDE and SATA; bus and port for USB.
    ``None`` if it has no address."""
    address = device.find("address")
    if address is None:
        return None
    if address.get("type") == "pci":
        domain, number, slot, function = (int(address.get(part, "0"), 16) for part in (
            "domain", "bus", "slot", "function"))
        return "pci", f"{domain:04x}:{number:02x}:{slot:02x}.{function:x}"
    parts = {"drive": ("controller", "bus", "target", "unit") if bus == "scsi" else ("bus", "unit"),
             "usb": ("bus", "port")}.get(address.get("type", ""))
    return (bus, ":".join(address.get(part, "0") for part in parts)) if parts else None


def _chain_ends(disk: ET.Element) -> bool:
    """Return whether *disk*, a disk in a domain's XML, lists its whole chain of backing files: the chain ends with an
    empty ``backingStore``."""
    below = disk.find("backingStore")
    return below is not None and (len(below) == 0 or _chain_ends(below))


def _backing(disk: ET.Element) -> Backing | None:
    """Return the backing file of *disk*, a disk in a domain's XML; ``None`` if it lists none."""
    source, format = _below(disk, "backingStore", "source"), _below(disk, "backingStore", "format")
    if source is None:
        return None
    return Backing(Path(_where(source)), "raw" if format is None else format.get("type", "raw"))


def _key(disk: ET.Element) -> DiskKey | None:
    encryption = _below(disk, "source", "encryption")
    luks = encryption is not None and encryption.get("format") == "luks"
    secret = _below(encryption, "secret") if luks else None
    return None if secret is None else DiskKey(secret.get("uuid", ""))


def _where(source: ET.Element) -> str:
    pool, volume = source.get("pool"), source.get("volume")
    return source.get("file") or source.get("dev") or source.get("name") or (f"{pool}/{volume}" if pool else "")


def _remote(source: ET.Element) -> NetworkSource:
    hosts = source.findall("host")
    socket = next((host.get("socket") for host in hosts if host.get("transport") == "unix"), None)
    auth, secret = source.find("auth"), _below(source, "auth", "secret")
    return NetworkSource(
        protocol=source.get("protocol", ""),
        name=source.get("name", ""),
        socket=Path(socket) if socket else None,
        hosts=tuple((host.get("name", ""), host.get("port")) for host in hosts if host.get("name")),
        user=None if auth is None else auth.get("username"),
        secret=None if secret is None else secret.get("uuid"),
    )


_UNITS = {"b": 1, "bytes": 1, "KB": 10**3, "k": 2**10, "KiB": 2**10, "MB": 10**6, "M": 2**20, "MiB": 2**20,
          "GB": 10**9, "G": 2**30, "GiB": 2**30, "TB": 10**12, "T": 2**40, "TiB": 2**40}


def _mib(memory: ET.Element | None) -> int:
    if memory is None or not memory.text:
        return 0
    return int(memory.text) * _UNITS.get(memory.get("unit", "KiB"), 2**10) // 2**20
