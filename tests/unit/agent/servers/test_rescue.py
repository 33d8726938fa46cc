# SPDX-License-Identifier: GPL-3.0-or-later
"""Rescue and unrescue, on the fake: which disks the domain has, what is kept, what is refused."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.agent import Agent
from magnetar_agent.fake import disks as disks_of_fake
from magnetar_agent.host.hypervisor import DomainSpec
from magnetar_agent.host.storage import Disk, DiskSeen, NetworkSource
from magnetar_agent.servers import GIB, rescue
from magnetar_agent.volumes import attaching
from magnetar_core.errors import Conflict, InvalidField, NoSpace
from tests.support.agent.resize import folder, image
from tests.unit.agent.conftest import SMALL, Host
from tests.unit.core.images import iso


def disks(host: Host) -> dict[str, str]:
    domain = host.fake.domains()[host.show()["id"]]
    return {disk.target: disk.path.name for disk in domain.disks}


ORDINARY = {"vda": "disk", "vdb": "disk.ephemeral", "vdc": "disk.swap", "sdo": "config.iso"}
RESCUED = {"vda": "disk.rescue", "vdb": "disk", "sdo": "config.iso"}


@pytest.fixture
def web(host: Host) -> Host:
    image(host, "system")
    host.server(image="system", flavor={**SMALL, "ephemeral": 1, "swap": 8}, networks=[{"bridge": "br0"}])
    return host


def test_there_and_back(web: Host) -> None:
    other = image(web, "tools", 4)
    root = (folder(web) / "disk").stat().st_ino
    seen = web.ensure("server", "web1", {"rescue": {"image": "tools"}}, dry_run=True)
    assert seen.resource and seen.resource["status"] == "RESCUE"
    assert seen.diff == [{"path": "rescue", "old": None, "new": {"image": other}}]
    found = web.ensure("server", "web1", {"rescue": {"image": "tools"}})
    verbs = ["record", "stop", "rescue", "define", "start"]
    assert [s.verb for s in found.steps] == [s.verb for s in seen.steps] == verbs
    assert found.resource and (found.resource["status"], found.resource["power_state"]) == ("RESCUE", "running")
    assert disks(web) == RESCUED
    assert (folder(web) / "rescue.base").read_bytes().startswith(b"tools")
    assert not web.ensure("server", "web1", {"rescue": {"image": "tools"}}).changed
    assert not web.server(flavor={**SMALL, "ephemeral": 1, "swap": 8}).changed, "omitted is untouched"

    back = web.ensure("server", "web1", {"rescue": None})
    assert [step.verb for step in back.steps] == ["record", "stop", "define", "unrescue", "start"]
    assert disks(web) == ORDINARY and back.resource and back.resource["status"] == "ACTIVE"
    assert not list(folder(web).glob("*rescue*")) and (folder(web) / "disk").stat().st_ino == root
    assert not web.ensure("server", "web1", {"rescue": None}).changed


def test_a_reboot_after_a_rescue_that_was_cut_short(web: Host) -> None:
    """It ends what was begun: the disk was not made when the agent died (a chaos run met a KeyError)."""
    image(web, "tools", 4)
    web.fake.fail_next("make_disk", Conflict("the disk is full"))
    with pytest.raises(Conflict):
        web.ensure("server", "web1", {"rescue": {"image": "tools"}})
    web.event("reboot", "5e2b0f6e-0c51-4c1e-8c43-1f0a5d0a7b11", type="hard")
    assert web.show()["status"] == "RESCUE" and disks(web) == RESCUED


def test_without_an_image_its_own_is_taken(web: Host) -> None:
    found = web.ensure("server", "web1", {"rescue": {}}).resource
    assert found and found["rescue"] == {"image": found["image"]["id"]}
    web.server("blank")
    with pytest.raises(InvalidField, match="rescue.image"):
        web.ensure("server", "blank", {"rescue": {}})


def test_a_rescue_outlives_agent_host_and_image(web: Host) -> None:
    web.ensure("server", "web1", {"rescue": {}})
    web.ensure("image", "system", None)
    web.restart()
    assert (web.show()["status"], disks(web)) == ("RESCUE", RESCUED)
    web.agent.close()
    web.reboot()
    assert (web.show()["status"], web.show()["power_state"], disks(web)) == ("RESCUE", "running", RESCUED)
    web.ensure("server", "web1", {"power": "off"})
    assert (web.show()["status"], web.show()["power_state"]) == ("RESCUE", "off")
    web.ensure("server", "web1", {"rescue": None, "power": "running"})
    assert (web.show()["status"], disks(web)) == ("ACTIVE", ORDINARY)


def test_from_a_cd(web: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is booted first, and the disks keep their names."""
    image(web, "cd")
    document = web.agent.host.documents.find("image", "cd")
    assert document is not None
    document.state["disk_format"] = document.want["disk_format"] = "iso"
    web.agent.host.documents.write(document)
    specs: list[DomainSpec] = []
    define = web.fake.define
    monkeypatch.setattr(web.fake, "define", lambda spec: (specs.append(spec), define(spec)))
    web.ensure("server", "web1", {"rescue": {"image": "cd"}})
    assert disks(web) == {"vda": "disk", "sda": "rescue.base", "sdo": "config.iso"}
    assert specs[-1].boot == ("cdrom", "hd") and web.show()["status"] == "RESCUE"
    web.ensure("server", "web1", {"rescue": None})
    assert specs[-1].boot == ("hd", "cdrom") and disks(web) == ORDINARY


@pytest.mark.parametrize(("asked", "allowed"), [
    ({"flavor": {**SMALL, "ram": 128, "ephemeral": 1, "swap": 8}}, {"allow_reboot": True}),
    ({"user_data": "YQ=="}, {"on_immutable": "rebuild"})])
def test_what_waits_until_it_is_unrescued(web: Host, asked: dict[str, Any], allowed: dict[str, Any]) -> None:
    web.ensure("server", "web1", {"rescue": {}})
    with pytest.raises(Conflict, match="Unrescue"):
        web.ensure("server", "web1", asked, **allowed)
    assert web.ensure("server", "web1", {"rescue": None, **asked}, **allowed).changed
    assert web.show()["status"] == "ACTIVE"


def test_a_document_of_an_older_agent_is_unchanged(web: Host) -> None:
    document = web.agent.host.documents.find("server", "web1")
    assert document is not None
    del document.want["rescue"]
    web.agent.host.documents.write(document)
    assert not web.ensure("server", "web1", {}).changed
    assert web.ensure("server", "web1", {"rescue": {}}).changed


def test_a_kernel_rescues_nobody(web: Host) -> None:
    image(web, "kernel")
    document = web.agent.host.documents.find("image", "kernel")
    assert document is not None
    document.state["disk_format"] = document.want["disk_format"] = "aki"
    web.agent.host.documents.write(document)
    with pytest.raises(InvalidField, match="only a kernel"):
        web.ensure("server", "web1", {"rescue": {"image": "kernel"}})
    with pytest.raises(InvalidField, match="none called 'nowhere'"):
        web.ensure("server", "web1", {"rescue": {"image": "nowhere"}})
    assert web.show()["status"] == "ACTIVE"


@pytest.fixture
def torn(web: Host) -> Host:
    """A rescued server that runs; its root disk has the device name that its volume has otherwise."""
    web.server("web2", image="system", flavor={**SMALL, "disk": 4})
    web.ensure("volume", "data", {"size": 1, "format": "raw"})
    web.ensure("volume_attachment", "web2:data", {"server": "web2", "volume": "data", "device": "vdb"})
    web.ensure("server", "web2", {"rescue": {}})
    return web


def runs(host: Host) -> dict[str, str]:
    live = host.fake.running(host.show("web2")["id"])
    assert live is not None
    return {disk.target: disk.path.name for disk in live.disks}


def test_a_volume_grows_while_its_server_is_rescued(torn: Host) -> None:
    root = torn.root / "state/servers" / torn.show("web2")["id"] / "disk"
    assert runs(torn)["vdb"] == "disk"
    made = torn.ensure("volume", "data", {"size": 2}).resource
    assert torn.fake.disk(root).virtual_size == 4 * GIB  # type: ignore[union-attr]
    assert torn.fake.disk(torn.root / "state/volumes"
                          / made["id"]).virtual_size == 2 * GIB  # type: ignore[index,union-attr]


@pytest.mark.parametrize(("noun", "want"), [("volume", {"source_volume": "data", "format": "raw"}),
                                            ("volume_snapshot", {"volume": "data"})])
def test_a_volume_is_copied_while_its_server_is_rescued(torn: Host, noun: str, want: dict[str, Any]) -> None:
    volume = torn.root / "state/volumes" / torn.ensure("volume", "data", {}).resource["id"]  # type: ignore[index]
    with volume.open("r+b") as stream:
        stream.write(b"magnetar")
    made = torn.ensure(noun, "copy", want).resource
    assert (torn.root / "state/volumes" / made["id"]).open("rb").read(8) == b"magnetar"  # type: ignore[index]


def test_a_root_disk_that_is_a_volume_is_in_use_while_its_server_is_rescued(torn: Host) -> None:
    torn.ensure("server", "web2", None)
    torn.ensure("server", "web2", {"flavor": SMALL, "rescue": {"image": "system"}, "block_device_mapping": [
        {"source_type": "image", "destination_type": "volume", "uuid": "system", "boot_index": 0}]})
    (root,) = torn.show("web2")["volumes_attached"]
    assert runs(torn)["vdb"] == root["id"]
    asked: list[tuple[str, str]] = []
    begin, resize = torn.fake.begin_copy, torn.fake.resize
    torn.fake.begin_copy = lambda uuid, target, *more: (  # type: ignore[method-assign]
        asked.append(("copy", target)), begin(uuid, target, *more))
    torn.fake.resize = lambda uuid, target, size: (  # type: ignore[method-assign]
        asked.append(("grow", target)), resize(uuid, target, size))
    torn.ensure("volume", root["id"], {"size": 2})
    torn.ensure("volume_snapshot", "then", {"volume": root["id"]})
    assert asked == [("grow", "vdb"), ("copy", "vdb")]


def test_a_server_that_is_rescued_when_a_copy_begins(torn: Host) -> None:
    """What has the volume's device name then is not copied as the volume."""
    torn.ensure("server", "web2", {"rescue": None})
    begin = torn.fake.begin_copy

    def late(uuid: str, target: str, *more: Any) -> None:
        torn.fake.begin_copy = begin  # type: ignore[method-assign]
        torn.ensure("server", "web2", {"rescue": {}})
        begin(uuid, target, *more)
    torn.fake.begin_copy = late  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="rescued just when the copy began"):
        torn.ensure("volume_snapshot", "then", {"volume": "data"})
    assert not torn.fake.copying(torn.show("web2")["id"])
    assert len(list((torn.root / "state/volumes").iterdir())) == 1


def test_the_image_of_a_rescue_may_go_and_its_name_stays_good(web: Host) -> None:
    for key, wanted in (("tools", {"image": "tools"}), ("system", {})):
        made = image(web, "tools", 4) if key == "tools" else None
        seen = web.ensure("server", "web1", {"rescue": wanted}).resource
        assert seen and made in (None, seen["rescue"]["image"])
        web.ensure("image", key, None)
        assert not web.ensure("server", "web1", {"rescue": wanted}).changed
        web.ensure("server", "web1", {"rescue": None})
        with pytest.raises(InvalidField, match="none called"):
            web.ensure("server", "web1", {"rescue": wanted})


def test_a_root_disk_that_is_a_volume_stays_what_it_is(tmp_path: Path) -> None:
    """One of a volume group is a block device."""
    host = Host(tmp_path, pools={"vg": {"type": "lvm"}})
    host.fake.add_pool("vg", room=4 * GIB)
    host.start()
    image(host, "system")
    host.server(block_device_mapping=[{
        "source_type": "image", "destination_type": "volume", "uuid": "system", "boot_index": 0, "volume_size": 1,
        "volume_type": "vg", "disk_bus": "scsi"}])
    root = host.fake.domains()[host.show()["id"]].disks[0]
    assert root.target == "sda" and root.block_device
    host.ensure("server", "web1", {"rescue": {"image": "system"}})
    first, second = host.fake.domains()[host.show()["id"]].disks[:2]
    assert first.path.name == "disk.rescue" and second == replace(root, target="vdb", bus="virtio")
    host.ensure("server", "web1", {"rescue": None})
    assert host.fake.domains()[host.show()["id"]].disks[0] == root
    host.agent.close()


def test_a_root_disk_that_is_reached_by_a_protocol_stays_so() -> None:
    root = Disk(Path("/x"), "vda", "raw", remote=NetworkSource("rbd", "pool/image"), serial="s")
    made = rescue.rescue_disks({"rescue": {"iso": False, "format": "raw"}}, Path("/servers/s"), root)
    assert made[1] == replace(root, target="vdb")


def test_a_volume_that_is_detached_when_its_server_is_rescued(torn: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rescued server keeps what has the volume's device name then: its root disk."""
    torn.ensure("server", "web2", {"rescue": None})
    still = attaching.hold_server_volume

    def late(agent: Agent, server: str, volume: str) -> AbstractContextManager[None]:
        monkeypatch.setattr(attaching, "hold_server_volume", still)
        torn.ensure("server", "web2", {"rescue": {}})
        return still(agent, server, volume)
    monkeypatch.setattr(attaching, "hold_server_volume", late)
    assert torn.ensure("volume_attachment", "web2:data", None).changed
    kept = torn.fake.domain(torn.show("web2")["id"])
    assert runs(torn)["vdb"] == "disk" and kept is not None and "vdb" in {disk.target for disk in kept.disks}
    torn.ensure("server", "web2", {"rescue": None})
    assert runs(torn) == {"vda": "disk", "sdo": "config.iso"}


# Stable devices ---------------------------------------------------------------------------------------------------
def stable_image(host: Host, **properties: str) -> str:
    """An image that says as what it rescues."""
    image(host, "stable", 2)
    return str(host.ensure("image", "stable", {"properties": properties}).resource["id"])  # type: ignore[index]


def defined(host: Host, name: str = "web1") -> dict[str, Disk]:
    """The disks of a server, by target."""
    return {one.target: one for one in host.fake.domains()[host.show(name)["id"]].disks}


@pytest.mark.parametrize(("properties", "target", "seen"), [
    ({"hw_rescue_device": "disk"}, "vde", ("disk", "virtio", False, "disk.rescue")),
    ({"hw_rescue_bus": "scsi"}, "sdb", ("disk", "scsi", False, "disk.rescue")),
    ({"hw_rescue_device": "cdrom"}, "sdb", ("cdrom", "sata", True, "rescue.base")),
    ({"hw_rescue_device": "cdrom", "hw_rescue_bus": "scsi"}, "sdb", ("cdrom", "scsi", True, "rescue.base")),
    ({"hw_rescue_bus": "usb"}, "sdb", ("disk", "usb", False, "disk.rescue")),
    ({"hw_rescue_device": "cdrom", "hw_rescue_bus": "usb"}, "sdb", ("cdrom", "usb", True, "rescue.base")),
    ({"hw_rescue_device": "floppy"}, "fda", ("floppy", "fdc", False, "disk.rescue"))])
def test_with_stable_devices_all_disks_stay(web: Host, properties: dict[str, str], target: str, seen: Any) -> None:
    web.ensure("volume", "data", {"size": 1})
    web.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    before, id = defined(web), stable_image(web, **properties)
    wish = {"rescue": {"image": "stable"}}
    planned = web.ensure("server", "web1", wish, dry_run=True)
    done = web.ensure("server", "web1", wish)
    assert [s.verb for s in planned.steps] == [s.verb for s in done.steps] == [
        "record", "stop", "rescue", "define", "start"]
    found = defined(web)
    own = found.pop(target)
    assert list(found.values()) == list(before.values()), "as they were, in the same order"
    assert ((own.device, own.bus, own.readonly, own.path.name), own.boot) == (seen, 1)
    assert done.resource and done.resource["rescue"]["image"] == id and done.resource["status"] == "RESCUE"
    assert not web.ensure("server", "web1", wish).changed
    web.restart()
    assert defined(web)[target] == own
    web.ensure("volume_attachment", "web1:data", None)  # as of any server that runs
    assert "data" not in [one["name"] for one in web.show()["volumes_attached"]]
    web.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    web.ensure("server", "web1", {"rescue": None})
    assert defined(web) == before and not list(folder(web).glob("*rescue*"))


def test_a_server_on_volumes_keeps_them(web: Host) -> None:
    web.ensure("volume", "extra", {"size": 1})
    web.ensure("server", "on", {"flavor": SMALL, "block_device_mapping": [
        {"source_type": "image", "destination_type": "volume", "uuid": "system", "boot_index": 0},
        {"source_type": "volume", "uuid": "extra", "boot_index": 1}]})
    before = defined(web, "on")
    stable_image(web, hw_rescue_device="disk")
    web.ensure("server", "on", {"rescue": {"image": "stable"}})
    found = defined(web, "on")
    assert found.pop("vdc").boot == 1
    assert {name: replace(one, boot=None) for name, one in before.items()} == found, "booted from the rescue disk only"
    web.ensure("server", "on", {"rescue": None})
    assert defined(web, "on") == before


def test_the_request_may_say_the_devices(web: Host) -> None:
    web.ensure("server", "web1", {"rescue": {"device": "cdrom"}})
    assert defined(web)["sdb"].device == "cdrom"


@pytest.mark.parametrize(("properties", "target", "seen"), [
    ({"hw_rescue_bus": "ide"}, "hdc", ("disk", "ide", False, "disk.rescue")),
    ({"hw_rescue_device": "cdrom", "hw_rescue_bus": "ide"}, "hdc", ("cdrom", "ide", True, "rescue.base")),
    ({"hw_rescue_device": "floppy", "hw_rescue_bus": "fdc"}, "fda", ("floppy", "fdc", False, "disk.rescue"))])
def test_machine_pc_has_ide_too(web: Host, properties: dict[str, str], target: str, seen: Any) -> None:
    web.server("old", image="system", machine="pc", flavor=SMALL, hardware={"disk_bus": "ide"})
    before = defined(web, "old")
    stable_image(web, **properties)
    web.ensure("server", "old", {"rescue": {"image": "stable"}})
    found = defined(web, "old")
    own = found.pop(target)
    assert ((own.device, own.bus, own.readonly, own.path.name), own.boot) == (seen, 1) and found == before
    web.ensure("server", "old", {"rescue": None})
    assert defined(web, "old") == before


def test_ide_has_four_places(web: Host) -> None:
    web.server("old", image="system", machine="pc", flavor={**SMALL, "ephemeral": 1, "swap": 1},
               hardware={"disk_bus": "ide"})
    stable_image(web, hw_rescue_bus="ide")
    web.ensure("server", "old", {"rescue": {"image": "stable"}})
    assert defined(web, "old")["hdd"].boot == 1
    web.ensure("server", "old", {"rescue": None})
    (web.root / "cd").write_bytes(iso())
    web.ensure("image", "cd", {"source": {"path": str(web.root / "cd")}, "disk_format": "iso"})
    web.server("full", image="cd", machine="pc", flavor={**SMALL, "ephemeral": 1, "swap": 1},
               hardware={"disk_bus": "ide", "cdrom_bus": "ide"})
    with pytest.raises(Conflict, match="has four disks on IDE"):
        web.ensure("server", "full", {"rescue": {"image": "stable"}})


@pytest.mark.parametrize("bus", ["usb", "ide"])
def test_a_controller_for_it(web: Host, bus: str) -> None:
    """USB has one while a disk needs it."""
    web.server("old", image="system", machine="pc", flavor=SMALL)
    stable_image(web, hw_rescue_bus=bus)

    def model() -> str | None:
        found = ET.fromstring(web.fake.xml(web.show("old")["id"])).find("devices/controller[@type='usb']")
        assert found is not None
        return found.get("model")
    assert model() == "none"
    web.ensure("server", "old", {"rescue": {"image": "stable"}})
    assert model() == ("qemu-xhci" if bus == "usb" else "none")
    web.ensure("server", "old", {"rescue": None})
    assert model() == "none"


def test_a_floppy_is_small_and_no_matter_of_uefi(web: Host) -> None:
    web.server("modern", image="system", flavor=SMALL, hardware={"firmware": "uefi"})
    stable_image(web, hw_rescue_device="floppy")
    with pytest.raises(InvalidField, match="cannot be 'stable' as a floppy: the server boots by UEFI"):
        web.ensure("server", "modern", {"rescue": {"image": "stable"}})
    (web.root / "large").write_bytes(bytes(3 << 20))
    web.ensure("image", "large", {"source": {"path": str(web.root / "large")}, "disk_format": "raw",
                                  "properties": {"hw_rescue_device": "floppy"}})
    with pytest.raises(InvalidField, match="a floppy has no more than 2949120"):
        web.ensure("server", "web1", {"rescue": {"image": "large"}})


@pytest.mark.parametrize(("properties", "why"), [
    ({"hw_rescue_device": "floppy", "hw_rescue_bus": "usb"}, "must be one of fdc for a rescue floppy"),
    ({"hw_rescue_device": "cdrom", "hw_rescue_bus": "ide"}, "q35.* of the server has no IDE"),
    ({"hw_rescue_device": "cdrom", "hw_rescue_bus": "virtio"}, "one of sata, scsi, usb, ide for a rescue cdrom"),
    ({"hw_rescue_device": "tape"}, "must be one of disk, cdrom, floppy")])
def test_devices_that_guests_do_not_have(web: Host, properties: dict[str, str], why: str) -> None:
    stable_image(web, **properties)
    with pytest.raises(InvalidField, match=why):
        web.ensure("server", "web1", {"rescue": {"image": "stable"}})
    assert web.show()["status"] == "ACTIVE"


def large_image(host: Host, size: int, **properties: str) -> None:
    """An image of some KiB that claims a disk of *size* bytes."""
    disks_of_fake.write_fake_disk(host.root / "large.qcow2", DiskSeen("qcow2", size))
    host.ensure("image", "large", {"source": {"path": str(host.root / "large.qcow2")}, "disk_format": "qcow2",
                                   "properties": properties})


@pytest.mark.parametrize("properties", [{}, {"hw_rescue_bus": "usb"}])
def test_a_rescue_disk_is_no_larger_than_root_disk_or_setting(web: Host, properties: dict[str, str]) -> None:
    """An image of a few KiB with a virtual size of 1 TiB gave a server with 1 GiB a disk of 1 TiB."""
    large_image(web, 1024 * GIB, **properties)
    for dry_run in (True, False):
        with pytest.raises(InvalidField, match=r"cannot be 'large', which has a disk of 1099511627776 bytes: .* "
                                               r"no more than 10737418240.*rescue_max_virtual_bytes"):
            web.ensure("server", "web1", {"rescue": {"image": "large"}}, dry_run=dry_run)
    assert web.show()["status"] == "ACTIVE" and not list(folder(web).glob("*rescue*"))


def test_the_root_disk_s_size_is_allowed_to_its_rescue_disk(web: Host) -> None:
    large_image(web, 20 * GIB)
    web.server("roomy", image="system", flavor={**SMALL, "disk": 20})
    found = web.ensure("server", "roomy", {"rescue": {"image": "large"}}).resource
    assert found and found["status"] == "RESCUE"


def test_a_rescue_disk_must_fit_in_what_is_free(web: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    large_image(web, 4 * GIB)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(total=9 * GIB, used=6 * GIB, free=3 * GIB))
    with pytest.raises(NoSpace, match="may grow to 4294967296 bytes, and the host has 3221225472 free"):
        web.ensure("server", "web1", {"rescue": {"image": "large"}})
    assert web.show()["status"] == "ACTIVE" and not list(folder(web).glob("*rescue*"))
