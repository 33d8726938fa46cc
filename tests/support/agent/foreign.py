# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains as other programs define them: virt-install, virt-manager, Terraform's libvirt provider, Cockpit, Vagrant."""

from __future__ import annotations

import uuid as uuids
from pathlib import Path

from magnetar_agent.host.storage import Backing
from magnetar_agent.virt.disks.qcow2 import create_qcow2

MIB = 2**20


def overlay(folder: Path, name: str = "web1.qcow2", size: int = 32 * MIB) -> Path:
    """Make a qcow2 disk on a qcow2 backing file in *folder*; return the disk's path."""
    base = folder / "base.qcow2"
    if not base.exists():
        create_qcow2(base, size)
    create_qcow2(folder / name, size, Backing(base, "qcow2"))
    return folder / name


def raw(folder: Path, name: str = "data.img", size: int = 16 * MIB) -> Path:
    """Make a sparse raw disk in *folder*; return its path."""
    path = folder / name
    with path.open("wb") as stream:
        stream.truncate(size)
    return path


def file_disk(path: Path | str, target: str = "vda", bus: str = "virtio", format: str = "qcow2", more: str = "") -> str:
    """Return the XML of a disk that is a file."""
    return (f"<disk type='file' device='disk'><driver name='qemu' type='{format}' discard='unmap'/>"
            f"<source file='{path}'/><target dev='{target}' bus='{bus}'/>{more}</disk>")


def network_nic(network: str = "default", mac: str = "52:54:00:6b:3c:01", model: str = "virtio") -> str:
    """Return the XML of a NIC on a network of libvirt."""
    return (f"<interface type='network'><mac address='{mac}'/><source network='{network}'/>"
            f"<model type='{model}'/></interface>")


def bridge_nic(bridge: str = "br0", mac: str = "52:54:00:6b:3c:02", model: str = "e1000e") -> str:
    """Return the XML of a NIC on a bridge of the host."""
    return (f"<interface type='bridge'><mac address='{mac}'/><source bridge='{bridge}'/>"
            f"<model type='{model}'/></interface>")


#: The metadata that virt-install and virt-manager write, and those of Cockpit.
OSINFO = ("<libosinfo:libosinfo xmlns:libosinfo='http://libosinfo.org/xmlns/libvirt/domain/1.0'>"
          "<libosinfo:os id='http://debian.org/debian/12'/></libosinfo:libosinfo>")
COCKPIT = ("<cockpit_machines:data xmlns:cockpit_machines='https://github.com/cockpit-project/cockpit/tree/main/pkg/"
           "machines'><cockpit_machines:has_install_phase>false</cockpit_machines:has_install_phase>"
           "</cockpit_machines:data>")


def foreign_xml(name: str, devices: str, uuid: str | None = None, metadata: str = OSINFO, firmware: str = "",
                machine: str = "q35", memory: int = 64, cpu: str = "", more: str = "") -> str:
    """Return the XML of a domain as virt-install writes it. *firmware*: the inside of its element ``os``."""
    noted = f"<metadata>{metadata}</metadata>" if metadata else ""
    efi = " firmware='efi'" if firmware == "efi" else ""
    return (f"<domain type='qemu'><name>{name}</name><uuid>{uuid or uuids.uuid4()}</uuid>{noted}"
            f"<memory unit='MiB'>{memory}</memory><currentMemory unit='MiB'>{memory}</currentMemory>"
            f"<vcpu placement='static'>2</vcpu><os{efi}><type arch='x86_64' machine='{machine}'>hvm</type>"
            f"{'' if firmware == 'efi' else firmware}<boot dev='hd'/></os><features><acpi/><apic/></features>{cpu}"
            "<clock offset='utc'><timer name='rtc' tickpolicy='catchup'/></clock>"
            "<on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>"
            f"<devices>{devices}<serial type='pty'><target type='isa-serial' port='0'/></serial>"
            "<console type='pty'><target type='serial' port='0'/></console>"
            "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
            "<input type='tablet' bus='usb'/><graphics type='vnc' port='-1'/>"
            f"<video><model type='vga'/></video><memballoon model='virtio'/></devices>{more}</domain>")
