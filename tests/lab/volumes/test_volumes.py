# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes and NICs as guests see them: plugged in, written to, grown, copied, taken away; and what survives."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Conflict, NoSpace
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

GIB = 2**30
SIZES = {"vcpus": 1, "ram": 128, "disk": 1}


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with a network and a booted server."""
    # The small pool promises more than it has.
    made = LabAgent(detach_timeout=20, shutdown_timeout=20, disk_allocation_ratio=1000.0)
    made.settings["pools"] = {"vg": {"type": "lvm", "libvirt_pool": f"mag-lab-{made.mark}"},
                              "small": {"type": "nfs", "path": str(made.folder / "small")}}
    with made, storage_pool(made), small_pool(made):
        made.import_image("disk", guest_image["disk"])
        made.ensure("network", f"lan-{made.mark}", {"mode": "isolated", "cidr": made.cidr})
        made.ensure("server", "s", {"flavor": SIZES, "image": "disk"})
        made.up("s")
        yield made


@contextmanager
def storage_pool(lab: LabAgent) -> Iterator[None]:
    """A storage pool of libvirt. Its kind stands for LVM, for which this kernel may lack the device mapper: libvirt
    treats both alike but for growing, which is lvextend there."""
    folder = lab.folder / "pool"
    folder.mkdir()
    pool = lab.libvirt.storagePoolDefineXML(
        f"<pool type='dir'><name>mag-lab-{lab.mark}</name><target><path>{folder}</path></target></pool>")
    try:
        pool.create()
        yield
    finally:
        pool = lab.libvirt.storagePoolLookupByName(f"mag-lab-{lab.mark}")
        if pool.isActive():
            pool.destroy()
        pool.undefine()


@contextmanager
def small_pool(lab: LabAgent) -> Iterator[None]:
    """A file system of 8 MiB, there before QEMU starts: where mounts are private, QEMU never sees later ones."""
    small = lab.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0711", "tmpfs", small], check=True)
    try:
        yield
    finally:
        if small.is_mount():
            subprocess.run(["umount", small], check=True)


def attach(lab: LabAgent, volume: str, server: str = "s", **want: Any) -> dict[str, Any]:
    shown: dict[str, Any] = lab.ensure(
        "volume_attachment", f"{server}:{volume}", {"server": server, "volume": volume, **want})["resource"]
    return shown


def detach(lab: LabAgent, volume: str, server: str = "s") -> dict[str, Any]:
    return lab.delete("volume_attachment", f"{server}:{volume}")


def disk(lab: LabAgent, volume: str, server: str = "s") -> dict[str, Any] | None:
    """The volume as the guest sees it: {name, bytes, serial}."""
    serial = lab.show("volume", volume)["id"][:20]
    found = [one for one in lab.ask(server, "disks")["disks"] if one["serial"] == serial]
    return found[0] if found else None


def name_of(lab: LabAgent, volume: str, server: str = "s") -> str:
    return str(eventually(lambda: disk(lab, volume, server), f"{server} sees {volume}")["name"])


def write(lab: LabAgent, volume: str, text: str, server: str = "s") -> None:
    lab.sh(server, f"echo {text} | dd of=/dev/{name_of(lab, volume, server)} bs=512 count=1 conv=sync,fsync")


def read(lab: LabAgent, volume: str, server: str = "s") -> str:
    name = name_of(lab, volume, server)
    said = lab.sh(server, f"dd if=/dev/{name} bs=512 count=1 iflag=direct 2>/dev/null | tr -d '\\000' | head -n 1")
    return said.split("\n")[0]


def test_attached_written_and_taken_to_another_server(lab: LabAgent) -> None:
    lab.ensure("server", "t", {"flavor": SIZES, "image": "disk"})
    lab.ensure("volume", "data", {"size": 1})
    shown = attach(lab, "data")
    assert shown["status"] == "attached" and shown["device"] == "vdb"
    assert name_of(lab, "data").startswith("vd")
    assert not lab.ensure("volume_attachment", "s:data", {"server": "s", "volume": "data"})["changed"]
    write(lab, "data", "magnetar-1")
    with pytest.raises(Conflict, match="attached to server 's'"):
        attach(lab, "data", "t")
    assert detach(lab, "data")["changed"]
    assert disk(lab, "data") is None
    lab.up("t")
    attach(lab, "data", "t")
    assert read(lab, "data", "t") == "magnetar-1"
    detach(lab, "data", "t")
    assert lab.show("volume", "data")["status"] == "available"


def test_it_grows_under_the_guest(lab: LabAgent) -> None:
    attach(lab, "data")
    name_of(lab, "data")
    lab.ensure("volume", "data", {"size": 2})
    found = eventually(lambda: (seen := disk(lab, "data")) and seen["bytes"] == 2 * GIB and seen, "the guest sees it")
    assert found["bytes"] == 2 * GIB


@pytest.mark.parametrize("format", ["qcow2", "raw"])
def test_a_copy_while_the_guest_writes_is_of_one_moment(lab: LabAgent, format: str) -> None:
    lab.ensure("volume", f"live-{format}", {"size": 1, "format": format})
    attach(lab, f"live-{format}")
    write(lab, f"live-{format}", "before")
    lab.ensure("volume_snapshot", f"snap-{format}", {"volume": f"live-{format}"})
    write(lab, f"live-{format}", "after")
    lab.ensure("volume", f"then-{format}", {"snapshot": f"snap-{format}"})
    attach(lab, f"then-{format}")
    assert read(lab, f"then-{format}") == "before" and read(lab, f"live-{format}") == "after"
    for volume in (f"then-{format}", f"live-{format}"):
        detach(lab, volume)
        assert lab.delete("volume", volume)["changed"]
    lab.delete("volume_snapshot", f"snap-{format}")


def test_in_a_storage_pool_of_libvirt(lab: LabAgent) -> None:
    shown = lab.ensure("volume", "lv", {"image": "disk", "pool": "vg"})["resource"]
    assert (shown["format"], shown["bootable"]) == ("raw", True)
    attach(lab, "lv")
    write(lab, "lv", "before")
    lab.ensure("volume_snapshot", "lv-then", {"volume": "lv"})
    write(lab, "lv", "after")
    lab.ensure("volume", "lv", {"size": 2})
    eventually(lambda: (seen := disk(lab, "lv")) and seen["bytes"] == 2 * GIB, "the guest sees it")
    lab.ensure("volume", "lv-back", {"snapshot": "lv-then", "pool": "vg"})
    attach(lab, "lv-back")
    assert read(lab, "lv-back") == "before" and read(lab, "lv") == "after"
    folder = lab.folder / "pool"
    assert len(list(folder.iterdir())) == 3 and not list((lab.state / "volumes").glob(f"{shown['id']}*"))
    for volume in ("lv", "lv-back"):
        detach(lab, volume)
        lab.delete("volume", volume)
    lab.delete("volume_snapshot", "lv-then")
    assert not list(folder.iterdir())
    lab.libvirt.storagePoolLookupByName(f"mag-lab-{lab.mark}").destroy()
    with pytest.raises(Conflict, match="does not run. Start it"):
        lab.ensure("volume", "lv", {"size": 1, "pool": "vg"})


def test_scsi_and_read_only(lab: LabAgent) -> None:
    lab.ensure("volume", "ro", {"size": 1})
    attach(lab, "ro", readonly=True)
    assert lab.sh("s", f"cat /sys/block/{name_of(lab, 'ro')}/ro") == "1\n"
    detach(lab, "ro")
    attach(lab, "ro", bus="scsi")  # the guest has no driver for it; QEMU has it, and lets go of it
    assert [d.split("dev='")[1][:3] for d in lab.domain("s").XMLDesc().split("<target ")[1:] if "bus='scsi'" in d]
    detach(lab, "ro")


def test_volumes_survive_stop_and_start_and_the_agent(lab: LabAgent) -> None:
    write(lab, "data", "magnetar-2")
    boots = lab.boots("s")
    lab.kill()
    lab.start()
    assert not lab.ensure("volume_attachment", "s:data", {"server": "s", "volume": "data"})["changed"]
    lab.power("s", "off")
    lab.ensure("volume", "data", {"size": 3})
    lab.power("s", "running")
    lab.up("s", boots + 1)
    assert read(lab, "data") == "magnetar-2"
    assert disk(lab, "data")["bytes"] == 3 * GIB  # type: ignore[index]


def test_a_guest_that_cannot_let_go_keeps_its_volume(lab: LabAgent) -> None:
    lab.ensure("volume", "held", {"size": 1})
    attach(lab, "held")
    name_of(lab, "held")
    lab.power("s", "paused")
    lab.stop()
    lab.settings["detach_timeout"] = 2
    lab.start()
    with pytest.raises(Conflict, match="did not let go of it within 2 s"):
        detach(lab, "held")
    assert lab.show("volume_attachment", "s:held")["status"] == "attached"
    lab.power("s", "running")  # now it hears what it was asked
    eventually(lambda: detach(lab, "held")["changed"], "the guest lets go of it")
    assert disk(lab, "held") is None
    assert attach(lab, "held")["status"] == "attached"
    assert name_of(lab, "held")
    detach(lab, "held")


def test_nics_come_and_go(lab: LabAgent) -> None:
    network = f"lan-{lab.mark}"
    before = len(lab.ask("s", "nics")["nics"])
    nic = lab.ensure("interface_attachment", f"s:{network}", {"server": "s", "network": network})["resource"]
    found = eventually(lambda: [n for n in lab.ask("s", "nics")["nics"] if n["mac"] == nic["mac"] and n["ip"]],
                       "the guest has a lease")
    assert found[0]["ip"].startswith(lab.subnet)
    shown = eventually(lambda: lab.show("interface_attachment", f"s:{network}")["addresses"], "the lease is known")
    assert shown[0]["addr"] == found[0]["ip"]
    assert lab.delete("interface_attachment", f"s:{network}")["changed"]
    assert len(lab.ask("s", "nics")["nics"]) == before
    assert not lab.delete("interface_attachment", f"s:{network}")["changed"]


def test_many_are_plugged_in_while_it_runs(lab: LabAgent) -> None:
    names = [f"many-{number}" for number in range(8)]
    for name in names:
        lab.ensure("volume", name, {"size": 1})
        attach(lab, name, delete_on_termination=True)
    for name in names:
        name_of(lab, name)


def test_a_server_on_volumes(lab: LabAgent) -> None:
    """Block device mapping: it boots from a volume, sees the others by their serials, and goes with what is to go."""
    lab.ensure("volume", "kept", {"size": 1})
    lab.ensure("volume_snapshot", "then", {"volume": "data"})
    shown = lab.ensure("server", "on", {"flavor": {**SIZES, "swap": 64}, "block_device_mapping": [
        {"source_type": "image", "destination_type": "volume", "uuid": "disk", "boot_index": 0,
         "delete_on_termination": True},
        {"source_type": "volume", "uuid": "kept", "tag": "kept"},
        {"source_type": "snapshot", "uuid": "then", "readonly": True, "delete_on_termination": True},
        {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True},
        {"source_type": "blank", "guest_format": "swap"}]}, timeout=120)["resource"]
    lab.up("on")
    names = {one["device"]: one["name"] for one in shown["volumes_attached"]}
    assert set(names) == {"vda", "vdc", "vdd", "vde"} and names["vdc"] == "kept"  # vdb is the swap disk
    for name in names.values():
        name_of(lab, name, "on")
    assert read(lab, names["vdd"], "on") == "magnetar-2"
    assert lab.sh("on", f"cat /sys/block/{name_of(lab, names['vdd'], 'on')}/ro") == "1\n"
    write(lab, "kept", "from-on", "on")
    with pytest.raises(Conflict, match="root disk of its server"):
        detach(lab, names["vda"], "on")
    assert detach(lab, "kept", "on")["changed"]
    attach(lab, "kept")
    assert read(lab, "kept") == "from-on"
    detach(lab, "kept")
    lab.delete("server", "on")
    assert not set(names.values()) & (set(lab.names("volume")) - {"kept"})
    lab.delete("volume", "kept")
    lab.delete("volume_snapshot", "then")


def test_a_root_volume_is_made_anew(lab: LabAgent) -> None:
    """A rebuild: what the guest wrote to its root volume is gone, and it boots from the image again."""
    blocks = [{"source_type": "image", "destination_type": "volume", "uuid": "disk", "boot_index": 0, "volume_size": 1,
               "delete_on_termination": True}]
    shown = lab.ensure("server", "root", {"flavor": SIZES, "block_device_mapping": blocks}, timeout=120)["resource"]
    lab.up("root")
    mark = "dd if=/dev/vda bs=1M skip=900 count=1 2>/dev/null | head -c 6"
    lab.sh("root", "echo marked | dd of=/dev/vda bs=1M seek=900 conv=fsync 2>&1")
    boots = lab.boots("root")
    assert lab.sh("root", mark).startswith("marked")
    with pytest.raises(Conflict, match="is running. Stop it first"):
        lab.ensure("volume", shown["volumes_attached"][0]["id"], {"reimage": {"image": "disk", "request": "r1"}})
    with lab.client() as client:
        client.event("server", "root", "rebuild", {}, timeout=120)
    lab.up("root", boots + 1)
    assert "marked" not in lab.sh("root", mark)
    assert lab.show("server", "root")["volumes_attached"] == shown["volumes_attached"]
    lab.delete("server", "root")


@pytest.mark.deep(shard="rescues of one host")  # test_lifecycle.py rescues a guest; tests/cases/xml has the disks
def test_a_rescue_with_stable_devices(lab: LabAgent, guest_image: dict[str, Path]) -> None:
    """The guest boots from the rescue disk, and finds its own disks as they were."""
    lab.import_image("rescue", guest_image["disk"], properties={"hw_rescue_device": "disk", "hw_rescue_bus": "scsi"})
    lab.ensure("volume", "kept", {"size": 1})
    attach(lab, "kept")
    write(lab, "kept", "survives")
    before, boots = lab.sh("s", "cd /sys/block && echo vd*"), lab.boots("s")
    assert lab.ensure("server", "s", {"rescue": {"image": "rescue"}}, timeout=120)["resource"]["status"] == "RESCUE"
    lab.up("s", boots + 1)
    assert lab.sh("s", "cd /sys/block && echo vd*") == before and read(lab, "kept") == "survives"
    assert lab.sh("s", "ls -d /sys/block/sd*").startswith("/sys/block/sd")
    lab.ensure("server", "s", {"rescue": None}, timeout=120)
    lab.up("s", boots + 2)
    assert read(lab, "kept") == "survives"
    detach(lab, "kept")
    lab.delete("volume", "kept")
    lab.delete("image", "rescue")


@pytest.mark.deep(shard="one host")  # on fakes it is shown that keys are needed, and go where the content goes
def test_what_is_encrypted_is_read_by_the_guest_alone(lab: LabAgent) -> None:
    """Attached, copied, grown and booted from; on the disk nothing of it is in clear text, nor is a key anywhere."""
    lab.ensure("volume", "hidden", {"size": 1, "format": "luks"})
    attach(lab, "hidden")
    write(lab, "hidden", "magnetar-in-the-dark")
    lab.ensure("volume_snapshot", "hidden-then", {"volume": "hidden"})
    lab.ensure("volume", "hidden", {"size": 2})
    assert eventually(lambda: (disk(lab, "hidden") or {}).get("bytes") == 2 * GIB, "it has grown")
    detach(lab, "hidden")
    for name, source in (("live-copy", {"snapshot": "hidden-then"}), ("copy", {"source_volume": "hidden"})):
        assert lab.ensure("volume", name, source)["resource"]["format"] == "luks"
        attach(lab, name)
        assert read(lab, name) == "magnetar-in-the-dark"
        detach(lab, name)
    hidden = [lab.show("volume", name)["id"] for name in ("hidden", "live-copy", "copy")]
    hidden.append(lab.show("volume_snapshot", "hidden-then")["id"])
    for id in hidden:
        with (lab.state / "volumes" / id).open("rb") as content:
            assert content.read(6) == b"LUKS\xba\xbe"
    search = ["grep", "--recursive", "--text", "--fixed-strings", "--quiet", "magnetar-in-the-dark"]
    assert subprocess.run([*search, str(lab.state / "volumes")], check=False).returncode == 1
    with pytest.raises(Conflict, match="encrypted"):
        lab.ensure("image", "leak", {"source": {"volume": "hidden"}})
    lab.ensure("volume", "hidden-root", {"image": "disk", "size": 1, "format": "luks"})
    lab.ensure("server", "dark", {"flavor": SIZES, "block_device_mapping": [
        {"source_type": "volume", "destination_type": "volume", "uuid": "hidden-root", "boot_index": 0}]})
    lab.up("dark")
    lab.power("dark", "off")
    lab.power("dark", "running")
    lab.up("dark", 2)
    lab.delete("server", "dark")
    assert not lab.libvirt.listSecrets()
    assert (lab.state / "keys" / "seal").stat().st_mode & 0o777 == 0o600
    for name in ("hidden-root", "copy", "live-copy", "hidden"):
        lab.delete("volume", name)
    lab.delete("volume_snapshot", "hidden-then")


def test_a_server_whose_own_disks_are_encrypted(lab: LabAgent) -> None:
    """It boots from an encrypted root disk, grows, and finds what it wrote; nothing of that is in clear text on the
    host's disks, nor is a key with libvirt."""
    flavor = {**SIZES, "ephemeral": 1, "swap": 32}
    hidden = {"hardware": {"ephemeral_encryption": True}, "disk_key": "0123456789abcdef" * 4}
    shown = lab.ensure("server", "own", {"flavor": flavor, "image": "disk", **hidden})["resource"]
    lab.up("own")
    place, end = lab.state / "servers" / shown["id"], {"vda": 900, "vdb": 900, "vdc": 20}
    for name, at in end.items():
        lab.sh("own", f"echo magnetar-in-its-own-dark | dd of=/dev/{name} bs=1M seek={at} conv=fsync 2>&1")
    lab.ensure("server", "own", {"flavor": {**flavor, "disk": 2, "ephemeral": 2}}, allow_reboot=True, timeout=120)
    lab.up("own", 2)
    for name, at in end.items():
        read_it = f"dd if=/dev/{name} bs=1M skip={at} count=1 2>/dev/null | head -c 24"
        assert lab.sh("own", read_it).startswith("magnetar-in-its-own-dark")
    sizes = {one["name"]: one["bytes"] for one in lab.ask("own", "disks")["disks"]}
    assert (sizes["vda"], sizes["vdb"]) == (2 * GIB, 2 * GIB)
    search = ["grep", "--text", "--fixed-strings", "--quiet", "magnetar-in-its-own-dark"]
    for file in ("disk", "disk.ephemeral", "disk.swap"):
        assert subprocess.run([*search, str(place / file)], check=False).returncode == 1
    assert not lab.libvirt.listSecrets()
    with pytest.raises(Conflict, match="in clear text"), lab.client() as client:
        client.event("server", "own", "create_image", {"name": "leak"})
    lab.ensure("server", "own", {"power": "off"}, timeout=120)
    with lab.client() as client:  # as a cloud shelves it: its image is encrypted with its key, and it is made of that
        client.event("server", "own", "create_image", {"name": "shelved", "secret_uuid": shown["id"]})
    content = next(lab.state.glob(f"images/{lab.show('image', 'shelved')['id']}/*"))
    assert subprocess.run([*search, str(content)], check=False).returncode == 1
    lab.delete("server", "own")
    assert not place.exists()
    lab.ensure("server", "own", {"flavor": {**flavor, "disk": 3}, "image": "shelved", **hidden})
    lab.delete("image", "shelved")
    lab.up("own")
    read_it = f"dd if=/dev/vda bs=1M skip={end['vda']} count=1 2>/dev/null | head -c 24"
    assert lab.sh("own", read_it).startswith("magnetar-in-its-own-dark")
    assert {one["name"]: one["bytes"] for one in lab.ask("own", "disks")["disks"]}["vda"] == 3 * GIB
    assert not lab.libvirt.listSecrets()
    lab.delete("server", "own")


def test_a_full_pool(lab: LabAgent) -> None:
    """What does not fit leaves nothing. A guest that fills the pool up waits until there is room, and loses nothing
    (QEMU's werror=enospc). The pool passes for NFS, as it is mounted."""
    small = lab.folder / "small"
    with pytest.raises(NoSpace):
        lab.ensure("volume", "big", {"image": "disk", "pool": "small", "format": "raw"})
    assert "big" not in lab.names("volume") and list(small.iterdir()) == []
    shown = lab.ensure("volume", "thin", {"size": 1, "pool": "small"})["resource"]
    assert shown["shared"] and shown["status"] == "available"
    attach(lab, "thin")
    target = name_of(lab, "thin")
    lab.sh("s", "dd if=/dev/urandom of=/tmp/much bs=1M count=16 2>&1")
    lab.sh("s", f"(sleep 2; dd if=/tmp/much of=/dev/{target} bs=1M conv=fsync; echo $? > /tmp/done) > /dev/null 2>&1 &")
    lab.becomes("s", "paused")
    subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
    lab.power("s", "running")
    assert eventually(lambda: lab.sh("s", "cat /tmp/done 2>/dev/null; true").strip(), "the guest has written") == "0"
    lab.sh("s", f"cmp -n 16777216 /tmp/much /dev/{target} && rm /tmp/much")
    detach(lab, "thin")
    lab.delete("volume", "thin")
    subprocess.run(["umount", small], check=True)
    with pytest.raises(Conflict, match="nothing is mounted"):
        lab.ensure("volume", "late", {"size": 1, "pool": "small"})


def test_a_server_goes_with_its_volumes(lab: LabAgent) -> None:
    lab.delete("server", "s")
    lab.delete("server", "t")
    assert sorted(lab.names("volume")) == ["data", "held", "ro"]
    assert lab.show("volume", "data")["attachments"] == []
    for name in ("data", "held", "ro"):
        assert lab.delete("volume", name)["changed"]
    assert list((lab.state / "volumes").iterdir()) == []
    assert lab.orphans() == {"domains": [], "files": []}
