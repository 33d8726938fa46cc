# SPDX-License-Identifier: GPL-3.0-or-later
"""A hypervisor, real or fake, and somebody else on the same host, for the tests of the contract."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import uuid as uuids
from dataclasses import replace
from pathlib import Path
from typing import Any

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host.hypervisor import DomainEvent, DomainSpec
from magnetar_agent.host.storage import Disk
from magnetar_agent.virt.domain.domain import render_device
from magnetar_agent.virt.network import reservations
from tests.support.waiting import eventually

MIB = 2**20
HOSTILE = "<&>\"' ]]> ünï \N{SNOWMAN}"


class FakeOutside:
    """Somebody else on the fake's host."""

    def __init__(self, hypervisor: FakeHypervisor) -> None:
        self.hypervisor = hypervisor
        self.define = hypervisor.defined_outside
        self.start = hypervisor.start
        self.plug = hypervisor.attach
        self.destroy = hypervisor.destroyed_outside
        self.undefine = hypervisor.undefined_outside
        self.forget = hypervisor.undefined_while_it_runs
        self.hang, self.go_on = hypervisor.hangs, hypervisor.goes_on
        self.network = hypervisor.network_outside
        self.pool = hypervisor.add_pool
        self.reserved = hypervisor.reserved

    def opened(self, uuid: str) -> set[Path]:
        disks = self.hypervisor.running(uuid).disks
        return {disk.path for disk in disks} | {disk.backing.path for disk in disks if disk.backing}

    def backup(self, uuid: str, folder: Path) -> None:
        self.hypervisor.backup_outside(uuid)

    def backing_up(self, uuid: str) -> bool:
        return self.hypervisor.copying(uuid)

    def clean(self, prefix: str) -> None:
        """Nothing outlives the fake."""


class LibvirtOutside:
    """Somebody else on this host: plain libvirt."""

    def __init__(self, uri: str) -> None:
        import libvirt

        self.conn = libvirt.open(uri)
        self.folders: list[Path] = []

    def define(self, xml: str) -> None:
        self.conn.defineXML(xml)

    def start(self, uuid: str) -> None:
        self.conn.lookupByUUIDString(uuid).create()

    def plug(self, uuid: str, disk: Disk) -> None:
        self.conn.lookupByUUIDString(uuid).attachDevice(render_device(disk))

    def opened(self, uuid: str) -> set[Path]:
        """The files that are open in QEMU's block layer."""
        import libvirt_qemu

        said = libvirt_qemu.qemuMonitorCommand(self.conn.lookupByUUIDString(uuid),
                                               '{"execute": "query-named-block-nodes"}', 0)
        return {Path(node["file"]) for node in json.loads(said)["return"] if node["drv"] == "file"}

    def destroy(self, uuid: str) -> None:
        self.conn.lookupByUUIDString(uuid).destroy()

    def forget(self, uuid: str) -> None:
        self.conn.lookupByUUIDString(uuid).undefine()

    def hang(self, uuid: str) -> None:
        """Stop QEMU's process."""
        os.kill(self._process(uuid), signal.SIGSTOP)

    def go_on(self, uuid: str) -> None:
        """Let QEMU's process go on."""
        os.kill(self._process(uuid), signal.SIGCONT)

    def _process(self, uuid: str) -> int:
        name = self.conn.lookupByUUIDString(uuid).name()
        return int(Path(f"/run/libvirt/qemu/{name}.pid").read_text())

    def undefine(self, uuid: str) -> None:
        self.destroy(uuid)
        self.conn.lookupByUUIDString(uuid).undefine()

    def network(self, name: str) -> None:
        self.conn.networkDefineXML(f"<network><name>{name}</name><bridge name='{name[:14]}'/></network>")

    def reserved(self, name: str) -> dict[str, str]:
        """Address by MAC of what DHCP knows, now and at the network's next start."""
        network = self.conn.networkLookupByName(name)
        live, kept = (re.findall(r"<host mac='(.*?)' ip='(.*?)'/>", network.XMLDesc(flag)) for flag in (0, 1))
        assert sorted(live) == sorted(kept)
        return reservations.read_reservations(name) if reservations.reads_reservations(
            name, network.XMLDesc()) else dict(live)

    def pool(self, name: str, room: int) -> Path:
        """A pool of files in a file system of its own stands for LVM: libvirt treats both alike."""
        folder = Path(tempfile.mkdtemp(prefix="magnetar-pool-", dir="/var/tmp"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room},mode=0711", "tmpfs", folder], check=True)
        self.folders.append(folder)
        self.conn.storagePoolDefineXML(
            f"<pool type='dir'><name>{name}</name><target><path>{folder}</path></target></pool>").create()
        return folder

    def backup(self, uuid: str, folder: Path) -> None:
        """One that lasts until somebody ends it."""
        folder.mkdir()
        folder.chmod(0o777)
        self.conn.lookupByUUIDString(uuid).backupBegin(
            f"<domainbackup mode='pull'><server transport='unix' socket='{folder}/socket'/><disks><disk name='vda' "
            f"backup='yes' type='file'><scratch file='{folder}/scratch'/></disk></disks></domainbackup>", None)

    def backing_up(self, uuid: str) -> bool:
        return bool(self.conn.lookupByUUIDString(uuid).jobStats()["type"])

    def clean(self, prefix: str) -> None:
        for pool in _ended(self.conn.listAllStoragePools(), prefix):
            pool.undefine()
        for folder in self.folders:
            subprocess.run(["umount", folder], check=True)
            folder.rmdir()
        for domain in _ended(self.conn.listAllDomains(), prefix):
            domain.undefineFlags(1 | 4 | 32)  # managed save, NVRAM, TPM
        for network in _ended(self.conn.listAllNetworks(), prefix):
            network.undefine()
            reservations.remove_reservations(network.name())
        self.conn.close()


def _ended(found: list[Any], prefix: str) -> list[Any]:
    """Those whose names begin so, none of them active any more."""
    mine = [one for one in found if one.name().startswith(prefix)]
    for one in mine:
        if one.isActive():
            one.destroy()
    return mine


class Place:
    """A hypervisor, what happened on it, somebody else on it, and a folder that QEMU can reach."""

    def __init__(self, hypervisor: Any, outside: Any, folder: Path) -> None:
        self.hypervisor, self.outside, self.folder = hypervisor, outside, folder
        self.prefix = "mt" + uuids.uuid4().hex[:8]
        self.events: list[DomainEvent] = []
        hypervisor.on_event(self.events.append)

    def spec(self, **changes: Any) -> DomainSpec:
        """A small domain whose disk exists."""
        uuid = str(uuids.uuid4())
        folder = self.folder / uuid
        folder.mkdir(mode=0o750)
        disk = Disk(folder / "disk", "vda", tag="root <disk>")
        self.hypervisor.make_disk(disk.path, "qcow2", 16 * MIB)
        self.hypervisor.permit([folder])
        made = DomainSpec(uuid=uuid, name=f"{self.prefix}-{uuid[:8]}", title=HOSTILE, vcpus=1, ram_mib=32,
                          virt_type="qemu", machine="q35", disks=(disk,), nics=(), console_log=folder / "console.log",
                          description=HOSTILE, metadata={"name": HOSTILE, HOSTILE: "x"})
        return replace(made, **changes)

    def defined(self, **changes: Any) -> str:
        """The uuid of a domain of ours."""
        spec = self.spec(**changes)
        self.hypervisor.define(spec)
        return spec.uuid

    def foreign(self, spec: DomainSpec) -> None:
        """Somebody else defines *spec*, without our metadata."""
        self.outside.define(re.sub("(?s)<metadata>.*</metadata>", "", self.hypervisor.render(spec)))

    def state(self, uuid: str) -> str:
        domain = self.hypervisor.domain(uuid)
        assert domain == self.hypervisor.domains().get(uuid)
        return str(domain.state) if domain else "missing"

    def happened(self, uuid: str, what: str) -> DomainEvent:
        return eventually(lambda: next((e for e in self.events if e.uuid == uuid and e.what == what), None))
