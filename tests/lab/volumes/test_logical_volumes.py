# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose own disks are logical volumes, as their guests see them.

This kernel may lack the device mapper, so a storage pool of files stands for LVM: libvirt treats both alike but for
growing (lvextend) and for what is a block device. For that, loop devices lie in the pool under the names of disks.
"""

from __future__ import annotations

import subprocess
import uuid
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt
import pytest

from magnetar_core.errors import Conflict, InvalidField
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

GIB, MIB = 2**30, 2**20
SIZES = {"vcpus": 1, "ram": 128, "disk": 1, "ephemeral": 1, "swap": 64}


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent whose servers' disks lie in a storage pool, and a booted server."""
    made = LabAgent(shutdown_timeout=20, root_format="lvm", root_pool="vg", disk_allocation_ratio=1000.0)
    made.settings["pools"] = {"vg": {"type": "lvm", "libvirt_pool": f"mag-lab-{made.mark}"}}
    with made, storage_pool(made):
        made.import_image("disk", guest_image["disk"])
        made.ensure("server", "s", {"flavor": SIZES, "image": "disk"})
        made.up("s")
        yield made


@contextmanager
def storage_pool(lab: LabAgent) -> Iterator[None]:
    folder(lab).mkdir()
    pool = lab.libvirt.storagePoolDefineXML(
        f"<pool type='dir'><name>mag-lab-{lab.mark}</name><target><path>{folder(lab)}</path></target></pool>")
    try:
        pool.create()
        yield
    finally:
        for name in lab.names("server"):
            lab.delete("server", name)
        with closing(libvirt.open("qemu:///system")) as again:  # somebody may have restarted libvirt meanwhile
            pool = again.storagePoolLookupByName(f"mag-lab-{lab.mark}")
            if pool.isActive():
                pool.destroy()
            pool.undefine()


def folder(lab: LabAgent) -> Path:
    return lab.folder / "pool"


def volumes(lab: LabAgent, server: str = "s") -> dict[str, int]:
    """Bytes of a server's logical volumes, by file."""
    id = lab.show("server", server)["id"]
    return {path.name[37:]: path.stat().st_size for path in folder(lab).iterdir() if path.name.startswith(id)}


def sources(lab: LabAgent, server: str = "s") -> list[str]:
    found = lab.domain(server).XMLDesc()
    return [line.strip() for line in found.splitlines() if "<source " in line and "/servers/" in line]


def disks(lab: LabAgent, server: str = "s") -> dict[str, int]:
    return {one["name"]: one["bytes"] for one in lab.ask(server, "disks")["disks"]}


def write(lab: LabAgent, text: str, device: str, server: str = "s") -> None:
    lab.sh(server, f"echo {text} | dd of=/dev/{device} bs=512 seek=1000 count=1 conv=sync,fsync")


def read(lab: LabAgent, device: str, server: str = "s") -> str:
    said = lab.sh(server, f"dd if=/dev/{device} bs=512 skip=1000 count=1 iflag=direct 2>/dev/null | tr -d '\\000' | "
                          "head -n 1")
    return said.split("\n")[0]


def test_the_guest_has_its_disks(lab: LabAgent) -> None:
    assert volumes(lab) == {"disk": GIB, "disk.ephemeral": GIB, "disk.swap": 64 * MIB}
    found = disks(lab)
    assert (found["vda"], found["vdb"], found["vdc"]) == (GIB, GIB, 64 * MIB)
    assert not lab.ensure("server", "s", {"flavor": SIZES, "image": "disk"})["changed"]
    labels = subprocess.run(["blkid", "-o", "value", "-s", "LABEL", *sorted(
        path for path in folder(lab).iterdir() if path.name.endswith(("swap", "ephemeral")))],
        check=True, capture_output=True, text=True).stdout.split()
    assert sorted(labels) == ["ephemeral0", "swap"]
    host = lab.show("host")
    assert host["local_disks"] == {"format": "lvm", "pool": "vg", "reason": ""} and host["disk_gb"] > 0
    assert lab.orphans() == {"domains": [], "files": []}


def test_an_image_of_it_while_it_runs(lab: LabAgent) -> None:
    write(lab, "in-image", "vdb")
    with lab.client() as client:
        client.event("server", "s", "create_image", {"name": "golden"}, request_id=str(uuid.uuid4()))
    smaller = {**SIZES, "ephemeral": 0, "swap": 0}
    lab.ensure("server", "copy", {"flavor": smaller, "image": "golden", "root_format": "copy"})
    lab.up("copy")
    lab.delete("server", "copy")
    lab.delete("image", "golden")


@pytest.mark.deep(shard="logical volumes")  # on fakes each step is shown, and each death of the agent within
def test_it_grows_is_rescued_and_rebuilt(lab: LabAgent) -> None:
    write(lab, "kept", "vdb")
    lab.ensure("server", "s", {"flavor": {**SIZES, "disk": 2, "ephemeral": 2, "swap": 0}}, allow_reboot=True)
    lab.up("s", 2)
    found = disks(lab)
    assert (found["vda"], found["vdb"]) == (2 * GIB, 2 * GIB) and 64 * MIB not in found.values()
    assert volumes(lab) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB}
    assert read(lab, "vdb") == "kept"
    lab.ensure("server", "s", {"rescue": {}})
    lab.up("s", 3)
    assert disks(lab)["vdb"] == 2 * GIB  # its own root disk
    lab.ensure("server", "s", {"rescue": None})
    lab.up("s", 4)
    lab.ensure("server", "s", {"user_data": "YQ=="}, on_immutable="rebuild")
    lab.up("s", 5)
    assert volumes(lab) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB}


def test_what_is_refused(lab: LabAgent) -> None:
    with pytest.raises(InvalidField, match="logical volumes are not encrypted"):
        lab.ensure("server", "secret", {"flavor": SIZES, "image": None, "hardware": {"ephemeral_encryption": True}})
    lab.libvirt.storagePoolLookupByName(f"mag-lab-{lab.mark}").destroy()
    try:
        host = lab.show("host")
        assert host["disk_gb"] == 0 and "does not run" in host["local_disks"]["reason"]
        with pytest.raises(Conflict, match="does not run"):
            lab.ensure("server", "other", {"flavor": SIZES, "image": "disk"})
    finally:
        lab.libvirt.storagePoolLookupByName(f"mag-lab-{lab.mark}").create()


def test_a_killed_agent_leaves_nothing_half(lab: LabAgent) -> None:
    """Killed while the image is copied: what it left is taken up."""
    with lab.client() as client:
        client.ensure("server", "half", {"flavor": SIZES, "image": "disk"}, wait=0)
        eventually(lambda: any("half" in one.get("name", "") for one in client.list("server")), "it has begun")
    lab.kill()
    lab.start()
    lab.ensure("server", "half", {"flavor": SIZES, "image": "disk"})
    lab.up("half")
    assert volumes(lab, "half") == {"disk": GIB, "disk.ephemeral": GIB, "disk.swap": 64 * MIB}
    lab.delete("server", "half")
    assert len(list(folder(lab).iterdir())) == len(volumes(lab))


@contextmanager
def loop_devices(lab: LabAgent, names: dict[str, int]) -> Iterator[dict[str, Path]]:
    """Block devices of these sizes in the pool, by name; what they hold is not zero."""
    made: dict[str, Path] = {}
    try:
        for name, size in names.items():
            file = lab.folder / f"{name}.img"
            with file.open("wb") as stream:
                stream.write(b"\xa5" * 4 * MIB)
                stream.truncate(size)
            made[name] = Path(subprocess.run(["losetup", "-f", "--show", file], check=True, capture_output=True,
                                             text=True).stdout.strip())
            (folder(lab) / name).symlink_to(made[name])
        yield made
    finally:
        for name, device in made.items():
            (folder(lab) / name).unlink(missing_ok=True)
            subprocess.run(["losetup", "-d", device], check=True)


@pytest.mark.deep(shard="logical volumes")  # only the names of the devices differ
def test_block_devices(lab: LabAgent) -> None:
    id = str(uuid.uuid4())
    names: dict[str, Any] = {f"{id}_disk": GIB, f"{id}_disk.swap": 64 * MIB}
    with loop_devices(lab, names) as made:
        lab.ensure("server", "blocks", {"id": id, "flavor": {**SIZES, "ephemeral": 0}, "image": "disk"})
        try:
            lab.up("blocks")
            assert all("dev=" in one for one in sources(lab, "blocks")[:2])
            assert (disks(lab, "blocks")["vda"], disks(lab, "blocks")["vdb"]) == (GIB, 64 * MIB)
            write(lab, "on-a-device", "vdb", "blocks")
            assert read(lab, "vdb", "blocks") == "on-a-device"
            with lab.client() as client:
                for name in ("running", "off"):
                    client.ensure("server", "blocks", {"power": name})
                    client.event("server", "blocks", "create_image", {"name": name}, request_id=str(uuid.uuid4()))
                    assert client.get("image", name)["virtual_size"] == GIB
                    client.delete("image", name)
            assert b"on-a-device" in made[f"{id}_disk.swap"].read_bytes()[512000:512512]
        finally:
            lab.power("blocks", "off")
            for name in names:  # libvirt removes no block device of a pool of files
                (folder(lab) / name).unlink()
            lab.libvirt.storagePoolLookupByName(f"mag-lab-{lab.mark}").refresh()
            lab.delete("server", "blocks")
