# SPDX-License-Identifier: GPL-3.0-or-later
"""Real domains as other programs define them, adopted by a real agent, with a libvirtd of their own.

The guests have nothing to boot: QEMU's process, its command line and its start time show that nothing was changed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import uuid as uuids
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest

from magnetar_core.errors import Conflict
from tests.support.agent import foreign
from tests.support.lab.agent import LabAgent, eventually
from tests.support.lab.own_libvirtd import OwnLibvirtd

pytestmark = pytest.mark.lab
MARK = "https://magnetar.dev/xmlns"
NETWORK = ("<network><name>default</name><bridge name='virbr-old'/><ip address='10.177.3.1' netmask='255.255.255.0'/>"
           "</network>")


class Foreign:
    """Domains of other programs, and an agent on the same libvirt. *images*: the folder of their disks."""

    def __init__(self, folder: Path, libvirtd: OwnLibvirtd, lab: LabAgent) -> None:
        self.images, self.libvirtd, self.lab = folder, libvirtd, lab
        self.conn = libvirt.open(libvirtd.uri)

    def define(self, name: str, devices: str, start: bool = True, **more: Any) -> str:
        """Define a domain, and start it; return its uuid."""
        uuid = str(uuids.uuid4())
        domain = self.conn.defineXML(foreign.foreign_xml(name, devices, uuid, memory=32, **more))
        if start:
            domain.create()
        return uuid

    def xml(self, uuid: str) -> str:
        """The definition; libvirt leaves an empty element where it has removed the only note."""
        domain = self.conn.lookupByUUIDString(uuid)
        return re.sub(r"\s*<metadata/>", "", domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    def guest(self, uuid: str) -> tuple[str, str]:
        """Process and start time of its QEMU, and what it was started with: these end with the guest."""
        found = subprocess.run(["pgrep", "-f", f"uuid {uuid}"], check=True, capture_output=True, text=True)
        (process,) = found.stdout.split()
        return process, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]

    def adopt(self, key: str, **want: Any) -> dict[str, Any]:
        with self.lab.client() as client:
            return dict(client.ensure("adoption", key, want))

    def report(self, key: str) -> dict[str, Any]:
        with self.lab.client() as client:
            return dict(client.get("adoption", key))


@pytest.fixture
def old() -> Iterator[Foreign]:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-lab-", dir="/var/tmp"))
    folder.chmod(0o755)
    (folder / "images").mkdir(mode=0o777)
    (folder / "images").chmod(0o777)
    try:
        with OwnLibvirtd(folder) as libvirtd, LabAgent(libvirt_uri=libvirtd.uri, shutdown_timeout=1) as lab:
            subprocess.run(["nsenter", f"--target={libvirtd.process.pid}", "--net", "ip", "link", "set", "lo", "up"],
                           check=True)  # for VNC
            made = Foreign(folder / "images", libvirtd, lab)
            made.conn.networkDefineXML(NETWORK)
            yield made
            for domain in made.conn.listAllDomains():
                if domain.isActive():
                    domain.destroy()
                domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM | libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
                                     | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA)
            made.conn.close()
    finally:
        shutil.rmtree(folder)


def shapes(old: Foreign) -> dict[str, str]:
    """Domains by the program that might have defined them: the uuid of each."""
    images = old.images
    two = foreign.file_disk(foreign.overlay(images, "install.qcow2")) + foreign.file_disk(
        foreign.raw(images), "sda", "sata", "raw")
    foreign.overlay(images, "terraform.qcow2")
    old.conn.storagePoolDefineXML(f"<pool type='dir'><name>pool</name><target><path>{images}</path></target></pool>"
                                  ).create()
    volume = ("<disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='pool' "
              "volume='terraform.qcow2'/><target dev='vda' bus='virtio'/></disk>")
    ide = foreign.file_disk(foreign.raw(images, "ide.img"), "hda", "ide", "raw") + (
        "<disk type='file' device='cdrom'><target dev='hdc' bus='ide'/><readonly/></disk>")
    return {
        "virt-install": old.define("virt-install", two + "<rng model='virtio'><backend model='random'>/dev/urandom"
                                   "</backend></rng>"),
        "virt-manager": old.define("virt-manager", foreign.file_disk(foreign.overlay(images, "uefi.qcow2"))
                                   + "<sound model='ich9'/>", firmware="efi"),
        "terraform": old.define("terraform", volume, metadata=""),
        "cockpit": old.define("cockpit", foreign.file_disk(foreign.overlay(images, "cockpit.qcow2")),
                              metadata=foreign.OSINFO + foreign.COCKPIT, cpu="<cpu mode='maximum'/>"),
        "vagrant": old.define("vagrant_default", ide, machine="pc", metadata=""),
    }


def test_running_domains_are_adopted_and_released_without_a_stop(old: Foreign) -> None:
    """What each program wrote stays, and so do the guests."""
    uuids_by_program = shapes(old)
    before = {uuid: (old.guest(uuid), old.xml(uuid)) for uuid in uuids_by_program.values()}
    for program, uuid in uuids_by_program.items():
        report = old.report(uuid)
        assert (report["status"], report["hindrances"]) == ("adoptable", []), program
        assert old.adopt(uuid)["changed"] and not old.adopt(uuid)["changed"]
    reports = {program: old.report(uuid) for program, uuid in uuids_by_program.items()}
    assert reports["terraform"]["disks"][0]["path"] == str(old.images / "terraform.qcow2")
    assert reports["terraform"]["disks"][0]["backing"] == [{"path": str(old.images / "base.qcow2"), "format": "qcow2"}]
    assert "UEFI" in str(reports["virt-manager"]["stays"])
    assert [disk["bus"] for disk in reports["vagrant"]["disks"]] == ["ide", "ide"]
    with old.lab.client() as client:
        assert {server["power_state"] for server in client.list("server")} == {"running"}
    old.lab.kill()
    old.lab.start()
    for uuid in uuids_by_program.values():
        assert old.guest(uuid) == before[uuid][0]
        with old.lab.client() as client:
            assert client.delete("adoption", uuid)["changed"]
        assert (old.guest(uuid), old.xml(uuid)) == before[uuid]


def test_an_adopted_server_is_stopped_started_and_deleted(old: Foreign) -> None:
    """Its definition stays through all of it, and so do its disks and UEFI variables after the end."""
    devices = foreign.file_disk(foreign.overlay(old.images)) + foreign.network_nic()
    old.conn.networkLookupByName("default").create()
    uuid = old.define("web", devices, firmware="efi")
    old.adopt("web")
    before = old.xml(uuid)
    with old.lab.client() as client:
        assert client.get("server", "web")["networks"][0]["network"] == "default"
        for power in ("paused", "running", "off", "running"):
            assert client.ensure("server", "web", {"power": power})["resource"]["power_state"] == power
        client.event("server", "web", "reboot", {"type": "hard"})
        assert client.get("server", "web")["status"] == "ACTIVE"
        with pytest.raises(Conflict, match="flavor: not possible"):
            client.ensure("server", "web", {"flavor": {"vcpus": 3}})
    assert old.xml(uuid) == before
    old.conn.lookupByUUIDString(uuid).setVcpusFlags(1, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    with old.lab.client() as client:
        client.delete("server", "web")
    assert uuid not in [domain.UUIDString() for domain in old.conn.listAllDomains()]
    assert (old.images / "web1.qcow2").exists()
    folder = Path(f"/proc/{old.libvirtd.process.pid}/root/var/lib/libvirt/qemu/nvram")
    assert [path.name for path in folder.iterdir()] == ["web_VARS.fd"]


def test_what_hinders_really(old: Foreign) -> None:
    """Snapshots inside of disks, by libvirt and by qemu-img; a disk of two domains; a missing file."""
    disk = foreign.overlay(old.images, "snap.qcow2")
    uuid = old.define("snap", foreign.file_disk(disk), start=False)
    domain = old.conn.lookupByUUIDString(uuid)
    snapshot = domain.snapshotCreateXML("<domainsnapshot><name>before</name></domainsnapshot>")
    assert [one["reason"] for one in old.report("snap")["hindrances"]] == ["internal-snapshots"]
    with pytest.raises(Conflict, match="snapshots inside of its disks: before"):
        old.adopt("snap")
    snapshot.delete()
    subprocess.run(["qemu-img", "snapshot", "-c", "by-hand", disk], check=True)
    with pytest.raises(Conflict, match="has 1 snapshots inside"):
        old.adopt("snap")
    subprocess.run(["qemu-img", "snapshot", "-d", "by-hand", disk], check=True)
    shared = old.define("two", foreign.file_disk(disk), start=False)
    with pytest.raises(Conflict, match="is a disk of domain two too"):
        old.adopt("snap")
    old.conn.lookupByUUIDString(shared).undefine()
    disk.rename(old.images / "away")
    with pytest.raises(Conflict, match="There is no file"):
        old.adopt("snap")
    (old.images / "away").rename(disk)
    assert old.adopt("snap")["changed"]


def test_killed_agents_finish_what_they_began(old: Foreign) -> None:
    """An agent that is killed while it adopts finishes the adoption, or has done nothing."""
    uuid = old.define("web", foreign.file_disk(foreign.overlay(old.images)))
    guest = old.guest(uuid)
    for _time in range(3):
        with old.lab.client() as client:
            client.ensure("adoption", "web", {}, wait=False)
        old.lab.kill()
        old.lab.start()
        report = eventually(lambda: old.report("web"), "the agent answers")
        marked = MARK in old.xml(uuid)
        assert report["status"] == ("adopted" if marked else "adoptable") and old.guest(uuid) == guest
        with old.lab.client() as client:
            client.delete("adoption", "web")
        assert MARK not in old.xml(uuid)
