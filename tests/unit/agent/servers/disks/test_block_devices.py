# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mapping on a fake host: booting from volumes, volumes made with the server, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_agent.servers import GIB, MIB, guest_data
from magnetar_core.errors import Conflict, HypervisorError, Immutable, InvalidField, MagnetarError, NoSpace
from magnetar_core.kinds import BY_NOUN
from tests.support.agent.volume import image
from tests.unit.agent.conftest import SMALL, Host

pytestmark = pytest.mark.slow
FLAVOR = {**SMALL, "disk": 1, "ephemeral": 1, "swap": 64}
ROOT = {"source_type": "image", "destination_type": "volume", "uuid": "img", "boot_index": 0, "volume_size": 2}
BLANK = {"source_type": "blank", "destination_type": "volume", "volume_size": 1}
LOCAL = {"source_type": "image", "uuid": "img", "boot_index": 0}
BOOT = {"image": "img", "flavor": {**SMALL, "disk": 1}}
DATA = {"source_type": "volume", "uuid": "data"}


@pytest.fixture
def place(host: Host) -> Host:
    """An image, a volume and a snapshot."""
    image(host)
    host.ensure("volume", "data", {"size": 1})
    host.ensure("volume_snapshot", "snap", {"volume": "data"})
    return host


def make(host: Host, *items: dict[str, Any], **want: Any) -> Any:
    return host.server(block_device_mapping=list(items), **want)


def disks(host: Host) -> dict[str, str]:
    """Device to the name of the volume, or of the file."""
    names = {v.id: v.name for v in host.agent.host.documents.list("volume")}
    return {d.target: names.get(d.path.name, d.path.name) for d in host.fake.domain(host.show()["id"]).disks}


def folder(host: Host) -> Path:
    return host.root / "state" / "servers" / str(host.show()["id"])


def local_sizes(host: Host) -> dict[str, int]:
    return {path.name: host.fake.disk(path).virtual_size for path in folder(host).glob(
        "disk*")}  # type: ignore[union-attr]


def volumes(host: Host) -> list[str]:
    return [one.name for one in host.agent.host.documents.list("volume")]


def test_boot_from_a_volume_that_is_made_from_an_image(place: Host) -> None:
    predicted = place.ensure("server", "web1", {"flavor": SMALL, "block_device_mapping": [ROOT]}, dry_run=True)
    done = make(place, ROOT)
    assert [s.verb for s in predicted.steps] == [s.verb for s in done.steps] == [
        "record", "volumes", "disks", "define", "drive", "start"]
    assert done.resource["status"] == "ACTIVE" and done.resource["image"] is None
    (root,) = done.resource["volumes_attached"]
    assert (root["device"], root["delete_on_termination"]) == ("vda", False)
    shown = reconcile.show_resource(place.agent.drivers, BY_NOUN["volume"], root["id"])
    assert (shown["size"], shown["bootable"], shown["status"]) == (2, True, "in-use")
    assert disks(place) == {"vda": shown["name"], "sdo": "config.iso"}
    assert not make(place, ROOT).changed
    assert not place.ensure("server", "web1", {"block_device_mapping": done.resource["block_device_mapping"]}).changed
    with pytest.raises(Immutable, match="block_device_mapping"):
        make(place, {**ROOT, "volume_size": 3})
    place.ensure("image", "img", None)
    assert not make(place, ROOT).changed
    with pytest.raises(Conflict, match="root disk of its server"):
        place.ensure("volume_attachment", f"web1:{root['id']}", None)
    place.ensure("server", "web1", None)
    assert shown["name"] in volumes(place)


def test_every_kind_of_volume(place: Host) -> None:
    place.ensure("volume", "boot", {"image": "img"})
    done = make(
        place, {"source_type": "volume", "uuid": "boot", "boot_index": 0, "delete_on_termination": True},
        {**DATA, "tag": "db"}, {"source_type": "snapshot", "uuid": "snap", "boot_index": 1, "disk_bus": "scsi"},
        {**BLANK, "device_name": "/dev/vdx", "delete_on_termination": True})
    made = {one["device"]: one["name"] for one in done.resource["volumes_attached"]}
    assert (made["vda"], made["vdb"]) == ("boot", "data") and set(made) == {"vda", "vdb", "sda", "vdx"}
    found = {d.target: d for d in place.fake.domain(done.resource["id"]).disks}
    assert (found["vda"].boot, found["sda"].boot, found["vdb"].boot, found["vdb"].tag) == (1, 2, None, "db")
    assert place.server(power="off").changed and not place.server(power="off").changed
    place.ensure("server", "web1", None)
    assert sorted(volumes(place)) == sorted(["data", made["sda"]])


def test_local_disks_take_tags(place: Host) -> None:
    make(place, {"source_type": "image", "uuid": "img", "boot_index": 0, "tag": "root"},
         {"source_type": "blank", "guest_format": "swap", "tag": "swap"}, {"source_type": "blank", "tag": "scratch"},
         DATA, image="img", flavor=FLAVOR)
    assert disks(place) == {"vda": "disk", "vdb": "disk.ephemeral", "vdc": "disk.swap", "vdd": "data",
                            "sdo": "config.iso"}
    found = {d.target: d.tag for d in place.fake.domain(place.show()["id"]).disks}
    assert (found["vda"], found["vdb"], found["vdc"]) == ("root", "scratch", "swap")


SCRATCH = {"source_type": "blank", "destination_type": "local"}
SOME = {**SMALL, "disk": 1, "ephemeral": 4, "swap": 64}


def test_several_ephemeral_disks_of_their_own_sizes(place: Host) -> None:
    items = [{**SCRATCH, "volume_size": 1, "tag": "one"}, DATA, {**SCRATCH, "volume_size": 2, "guest_format": "ext4"},
             {**SCRATCH, "guest_format": "swap", "volume_size": 16}]
    made = make(place, *items, image="img", flavor=SOME, networks=[{"bridge": "br0"}])
    assert disks(place) == {"vda": "disk", "vdb": "disk.ephemeral", "vdc": "disk.ephemeral1", "vdd": "disk.swap",
                            "vde": "data", "sdo": "config.iso"}
    assert local_sizes(place) == {"disk": GIB, "disk.ephemeral": GIB, "disk.ephemeral1": 2 * GIB, "disk.swap": 16 * MIB}
    assert {one["source_type"]: one.get("device_name") for one in made.resource["block_device_mapping"]} == {
        "blank": "vdd", "volume": "vde"}
    assert made.resource["flavor"] == SOME and not make(place, *items, image="img", flavor=SOME).changed
    told = guest_data.build_guest(place.agent.host, place.agent.host.documents.find("server",
                                                                                    "web1"))  # type: ignore[arg-type]
    assert told.mappings == {"ami": "vda", "root": "/dev/vda", "ephemeral0": "/dev/vdb", "ephemeral1": "/dev/vdc",
                             "swap": "/dev/vdd", "ebs0": "/dev/vde"}


def test_sizes_of_their_own_outlive_a_resize_and_a_rebuild(place: Host) -> None:
    make(place, {**SCRATCH, "volume_size": 1}, {**SCRATCH, "volume_size": 2},
         {**SCRATCH, "guest_format": "swap", "volume_size": 32}, image="img", flavor=SOME, power="off")
    before = local_sizes(place)
    place.server(flavor={**SOME, "ephemeral": 3, "swap": 64, "ram": 128}, power="off")
    assert local_sizes(place) == before
    with pytest.raises(InvalidField, match="flavor: ephemeral disks have 3 GiB together, and the flavor has 2"):
        place.server(flavor={**SOME, "ephemeral": 2}, power="off")
    place.server(flavor={**SOME, "ephemeral": 8, "swap": 16}, power="off")
    assert local_sizes(place) == {**before, "disk.swap": 16 * MIB}
    written = {name: (folder(place) / name).stat().st_mtime_ns for name in before}
    place.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild", preserve_ephemeral=True)
    kept = sorted(name for name in before if (folder(place) / name).stat().st_mtime_ns == written[name])
    assert kept == ["disk.ephemeral", "disk.ephemeral1"]
    place.ensure("server", "web1", {"user_data": "Yg=="}, on_immutable="rebuild")
    assert all((folder(place) / name).stat().st_mtime_ns != written[name] for name in before)
    place.ensure("server", "web1", None)
    assert not place.agent.host.documents.list("server")


def test_one_without_a_size_grows_with_the_flavor(place: Host) -> None:
    make(place, {**SCRATCH, "tag": "scratch"}, image="img", flavor={**SOME, "swap": 0}, power="off")
    done = place.server(flavor={**SOME, "ephemeral": 6, "swap": 0}, power="off")
    assert [step.verb for step in done.steps] == ["record", "grow_ephemeral"]
    assert local_sizes(place)["disk.ephemeral"] == 6 * GIB


def test_ephemeral_disks_on_another_bus(place: Host) -> None:
    with pytest.raises(InvalidField, match="on bus scsi, which has a place for one"):
        make(place, {**SCRATCH, "volume_size": 1}, {**SCRATCH, "volume_size": 1}, image="img", flavor=SOME,
             hardware={"disk_bus": "scsi"})
    make(place, {**SCRATCH, "volume_size": 1}, image="img", flavor=SOME, hardware={"disk_bus": "scsi"})
    assert set(disks(place)) == {"sda", "sdb", "sdc", "sdo"}


@pytest.mark.parametrize(("items", "want", "why"), [
    ([{**SCRATCH, "volume_size": 3}, {**SCRATCH, "volume_size": 2}], {"flavor": SOME},
     "ephemeral disks have 5 GiB together, and the flavor has 4"),
    ([SCRATCH, {**SCRATCH, "volume_size": 1}], {"flavor": SOME}, "One without volume_size has all of the flavor's"),
    ([{**SCRATCH, "guest_format": "swap"}] * 2, {"flavor": SOME}, "has more than one swap disk"),
    ([{**SCRATCH, "volume_size": 1}] * 25, {"flavor": {**SOME, "ephemeral": 25}}, "there are names for 24"),
    ([{**SCRATCH, "volume_size": 1, "device_name": "vdc"}], {"flavor": SOME}, "must be vdb for this disk"),
    ([{**BLANK, "destination_type": "local", "boot_index": 0}], {"flavor": FLAVOR}, "boot_index: is for disks"),
    ([{**DATA, "destination_type": "local"}], {}, "destination_type: cannot be local for source_type volume"),
    ([{"source_type": "volume"}], {}, "uuid: is required"),
    ([{**BLANK, "uuid": "x"}], {}, "uuid: is for sources other than blank"),
    ([{"source_type": "blank", "destination_type": "volume"}], {}, "volume_size: is required"),
    ([{**DATA, "uuid": "nope"}], {}, "must name a volume of this host"),
    ([{**DATA, "volume_size": 3}], {}, "is for volumes that are made"),
    ([DATA, DATA], {}, "names a volume twice"),
    ([{**ROOT, "boot_index": 2}], {}, "each boot_index from 0 on once"),
    ([ROOT, {**DATA, "boot_index": 0}], {}, "each boot_index from 0 on once"),
    ([ROOT], {"image": "img"}, "leave image out"),
    ([{**ROOT, "guest_format": "swap"}], {}, "blank local disks only"),
    ([{**BLANK, "device_name": "vda"}], {}, "device_name: must be free"),
    ([{**BLANK, "device_name": "sda"}], {}, "device_name: must be free"),
    ([{**ROOT, "device_name": "vdb"}], {}, "must be vda for the root disk"),
    ([{"source_type": "blank", "guest_format": "swap"}], {}, "the flavor has no swap disk"),
    ([{"source_type": "blank", "volume_size": 2}], {"flavor": FLAVOR}, "have 2 GiB together, and the flavor has 1"),
    ([{"source_type": "blank", "guest_format": "swap", "volume_size": 65}], {"flavor": FLAVOR},
     "volume_size: must be no more than the flavor's swap, 64 MiB"),
    ([{**LOCAL, "volume_size": 3}], BOOT, "volume_size: must be the flavor's disk, 1 GiB"),
    ([{**LOCAL, "guest_format": "ext4"}], BOOT, "guest_format: is for blank local disks only"),
    ([{**LOCAL, "delete_on_termination": False}], BOOT, "delete_on_termination: must be true for a local disk"),
    ([{**LOCAL, "disk_bus": "scsi"}], BOOT, "disk_bus: must be virtio for a local disk"),
    ([{**LOCAL, "device_name": "vdb"}], BOOT, "device_name: must be vda for this disk"),
    ([{**LOCAL, "volume_type": "default"}], BOOT, "volume_type: is for volumes"),
    ([{**LOCAL, "readonly": True}], BOOT, "readonly: is for volumes"),
    ([{**LOCAL, "boot_index": 1}], BOOT, "the server's own image, with boot_index 0"),
    ([{**LOCAL, "uuid": "other"}], BOOT, "is the server's own image"),
    ([{**BLANK, "disk_bus": "sata", "readonly": True}], {}, "readonly: cannot be true on bus sata"),
    ([{**DATA, "volume_type": "default"}], {}, "volume_type: is for volumes that are made"),
    ([{**DATA, "volume": "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"}], {}, "volume: must be that of the volume in uuid"),
    ([{"source_type": "snapshot", "uuid": "data"}], {}, "must name a volume snapshot of this host"),
    ([{**ROOT, "uuid": "nope"}], {}, "must name a image of this host"),
    ([{**BLANK, "boot_index": 40}], {}, "boot_index: must be from -1 to 32"),
    ([{**BLANK, "colour": "red"}], {}, "colour"),
    ([{"volume_size": 1}], {}, "source_type"),
    ([{"source_type": "blank"}, {"source_type": "blank"}], {"flavor": FLAVOR}, "disks have 2 GiB together"),
    ([{"source_type": "image", "uuid": "img", "boot_index": 0}], {}, "is the server's own image"),
    ([{**BLANK, "volume_type": "nope"}], {}, "must be a pool of this host"),
    ([{**BLANK, "device_type": "floppy"}], {}, "device_type: must be one of disk"),
], ids=str)
def test_refused(place: Host, items: list[dict[str, Any]], want: dict[str, Any], why: str) -> None:
    before = volumes(place)
    with pytest.raises(InvalidField, match=why):
        make(place, *items, **want)
    assert place.agent.host.documents.list("server") == [] and volumes(place) == before


def test_the_same_said_again_is_no_change(place: Host) -> None:
    want, swap = {"image": "img", "flavor": FLAVOR}, {"source_type": "blank", "guest_format": "swap"}
    make(place, {**LOCAL, "volume_size": 1, "delete_on_termination": True, "device_name": "/dev/vda"},
         {**swap, "volume_size": 64, "boot_index": -1}, **want)
    assert not make(place, LOCAL, {**swap, "device_name": "vdc"}, **want).changed


def test_read_only(place: Host) -> None:
    make(place, {**DATA, "readonly": True})
    assert {d.target: d.readonly for d in place.fake.domain(place.show()["id"]).disks} == {
        "vda": False, "vdb": True, "sdo": True}


def test_a_volume_for_several_servers(place: Host) -> None:
    place.ensure("volume", "both", {"size": 1, "multiattach": True})
    both = {**DATA, "uuid": "both"}
    make(place, both)
    place.ensure("server", "web2", {"flavor": SMALL, "block_device_mapping": [both]})
    assert len(reconcile.show_resource(place.agent.drivers, BY_NOUN["volume"], "both")["attachments"]) == 2


def test_the_uuid_of_a_volume_that_is_made(place: Host) -> None:
    chosen = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
    done = make(place, {**BLANK, "volume": chosen})
    assert [one["id"] for one in done.resource["volumes_attached"]] == [chosen]
    with pytest.raises(InvalidField, match=r"\[0\].volume: is the uuid of volume 'web1-vdb"):
        place.ensure("server", "web2", {"flavor": SMALL, "block_device_mapping": [{**BLANK, "volume": chosen}]})


def test_made_anew_with_other_volumes(place: Host) -> None:
    """What is not deleted with the server outlives it; the new server does not boot from the old one's disk."""
    first = make(place, ROOT, {**BLANK, "delete_on_termination": True}, DATA).resource["volumes_attached"]
    done = place.ensure("server", "web1", {"block_device_mapping": [ROOT, BLANK, DATA], "key_name": None,
                                           "availability_zone": "b"}, on_immutable="recreate").resource
    second = {one["device"]: one["id"] for one in done["volumes_attached"]}
    assert [one["device"] for one in first] == sorted(second) == ["vda", "vdb", "vdc"]
    assert second["vdc"] == first[2]["id"] and second["vda"] != first[0]["id"]
    assert len(volumes(place)) == 4  # both roots, the new blank one, data
    assert not make(place, ROOT, BLANK, DATA).changed


def test_an_image_and_a_volume_as_root_disk_take_each_others_place(place: Host) -> None:
    blocks = [{**DATA, "boot_index": 0}]
    place.server(image="img", block_device_mapping=[BLANK])
    for want, old in (({"block_device_mapping": blocks}, {"image": "img"}), ({"image": "img"}, {})):
        with pytest.raises(Immutable, match="image cannot change .*; block_device_mapping cannot change"):
            place.ensure("server", "web1", want)
        ignored = place.ensure("server", "web1", want, on_immutable="ignore")
        assert not ignored.changed and ignored.warnings
        assert not place.ensure("server", "web1", old).changed
        predicted = place.ensure("server", "web1", want, dry_run=True, on_immutable="recreate")
        done = place.ensure("server", "web1", want, on_immutable="recreate")
        assert [s.verb for s in predicted.steps] == [s.verb for s in done.steps]
        assert not place.ensure("server", "web1", want).changed
        assert disks(place)["vda"] == ("disk" if "image" in want else "data")
        assert bool(place.show()["image"]) == ("image" in want)
    with pytest.raises(InvalidField, match="leave image out"):
        place.ensure("server", "web1", {"image": "img", "block_device_mapping": blocks}, on_immutable="recreate")


def test_a_server_whose_image_is_gone_is_not_made_anew(place: Host) -> None:
    place.server(image="img")
    place.ensure("image", "img", None)
    with pytest.raises(Conflict, match="no longer on this host"):
        place.ensure("server", "web1", {"availability_zone": "b"}, on_immutable="recreate")
    assert place.show()["status"] == "ACTIVE"
    later = place.ensure("server", "web1", {"image": "later"}, dry_run=True, on_immutable="recreate")
    assert later.changed and "later" in later.warnings[0]


def test_a_volume_that_the_new_server_names_outlives_the_old_one(place: Host) -> None:
    gone = {**DATA, "delete_on_termination": True}
    make(place, gone, image="img", flavor=FLAVOR)
    data = place.root / "state/volumes" / reconcile.show_resource(place.agent.drivers, BY_NOUN["volume"], "data")["id"]
    before = data.stat().st_ino
    place.ensure("server", "web1", {"machine": "pc"}, on_immutable="recreate")
    assert volumes(place) == ["data"] and data.stat().st_ino == before and disks(place)["vdd"] == "data"
    place.ensure("server", "web1", {"block_device_mapping": []}, on_immutable="recreate")
    assert volumes(place) == []


@pytest.mark.parametrize(("noun", "name", "item"), [
    ("image", "img", {**ROOT, "delete_on_termination": True}),
    ("volume_snapshot", "snap", {"source_type": "snapshot", "uuid": "snap", "boot_index": 0,
                                 "delete_on_termination": True}),
], ids=["image", "snapshot"])
def test_a_server_whose_volumes_could_not_be_made_again_stays(place: Host, noun: str, name: str,
                                                              item: dict[str, Any]) -> None:
    make(place, item)
    before = volumes(place)
    place.ensure(noun, name, None)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=f"{name!r}.* not on this host any more"):
            place.ensure("server", "web1", {"machine": "pc"}, dry_run=dry_run, on_immutable="recreate")
    assert volumes(place) == before and place.show()["status"] == "ACTIVE"


def test_what_a_volume_is_made_from_must_have_its_content(place: Host) -> None:
    snap = {"source_type": "snapshot", "uuid": "snap"}
    make(place, {**ROOT, "delete_on_termination": True}, snap, DATA)
    before, files = volumes(place), place.root / "state/volumes"
    for noun, name in (("volume_snapshot", "snap"), ("volume", "data")):
        kept = files / reconcile.show_resource(place.agent.drivers, BY_NOUN[noun], name)["id"]
        kept.rename(files / "away")
        with pytest.raises(Conflict, match=f"content of .* {name!r}"):
            place.ensure("server", "web1", {"machine": "pc"}, on_immutable="recreate")
        (files / "away").rename(kept)
    place.ensure("image", "img", {"source": {"upload": True}, "checksum": "sha256:" + "0" * 64},
                 on_immutable="recreate")
    with pytest.raises(InvalidField, match="must be an active image"):
        place.ensure("server", "web1", {"machine": "pc"}, on_immutable="recreate")
    assert volumes(place) == before and place.show()["status"] == "ACTIVE"


def test_one_that_cannot_go_is_not_taken_for_the_new_one(place: Host) -> None:
    make(place, ROOT)
    place.fake.fail_next("undefine", HypervisorError("it could not."))
    with pytest.raises(HypervisorError):
        place.ensure("server", "web1", {"availability_zone": "b"}, on_immutable="recreate")
    assert place.show()["availability_zone"] is None and place.show()["fault"]["message"] == "it could not."
    place.restart()
    assert place.show()["availability_zone"] == "b" and place.show()["fault"] is None


def test_one_that_another_server_has(place: Host) -> None:
    make(place, DATA)
    with pytest.raises(Conflict, match="attached to another server"):
        place.ensure("server", "web2", {"flavor": SMALL, "block_device_mapping": [DATA]})
    assert [d.name for d in place.agent.host.documents.list("server")] == ["web1"]


@pytest.mark.parametrize("call", ["copy_disk", "make_disk", "define", "start"])
def test_a_making_that_fails_leaves_no_volume(place: Host, call: str) -> None:
    place.fake.fail_next(call, HypervisorError("it could not."))
    with pytest.raises(MagnetarError, match="could not"):
        make(place, ROOT, BLANK, DATA)
    assert volumes(place) == ["data"] and place.agent.host.documents.list("volume_attachment") == []
    assert len(list((place.root / "state/volumes").iterdir())) == 2
    assert make(place, ROOT, BLANK, DATA).changed


@pytest.mark.parametrize("call", ["make_iso", "start"])
def test_a_making_that_fails_leaves_what_was_there_before(place: Host, call: str) -> None:
    gone = {"delete_on_termination": True}
    place.fake.fail_next(call, NoSpace())
    with pytest.raises(NoSpace):
        make(place, {**ROOT, **gone}, {**BLANK, **gone}, {**DATA, **gone})
    assert volumes(place) == ["data"] and place.agent.host.documents.list("volume_attachment") == []
    make(place, {**ROOT, **gone}, {**BLANK, **gone}, {**DATA, **gone})
    place.ensure("server", "web1", None)
    assert volumes(place) == []


def test_a_later_failure_does_not_make_volumes_go(place: Host) -> None:
    make(place, ROOT)
    place.server(power="off")
    place.fake.fail_next("start", HypervisorError("it could not."))
    with pytest.raises(HypervisorError):
        place.server(power="running")
    place.ensure("server", "web1", None)
    assert len(volumes(place)) == 2


def test_rebuild_and_rescue_of_a_server_on_a_volume(place: Host) -> None:
    make(place, ROOT)
    root = next(iter(disks(place).values()))
    place.server(power="off", rescue={"image": "img"})
    assert disks(place) == {"vda": "disk.rescue", "vdb": root, "sdo": "config.iso"}
    place.server(power="running", rescue=None)
    assert disks(place) == {"vda": root, "sdo": "config.iso"}


def reimaged(place: Host) -> Any:
    """The root volume's document, and what answers show as its image."""
    (root,) = place.show()["volumes_attached"]
    shown = reconcile.show_resource(place.agent.drivers, BY_NOUN["volume"], root["id"])
    return place.agent.host.documents.get("volume", root["id"]), shown["image"]


def test_a_root_volume_is_made_anew_by_a_rebuild(place: Host) -> None:
    other = image(place, "other")["id"]
    before = make(place, ROOT).resource["volumes_attached"]
    with pytest.raises(Immutable, match="on_immutable to rebuild"):
        make(place, {**ROOT, "uuid": "other"})
    again = {"on_immutable": "rebuild"}
    wish = {"block_device_mapping": [{**ROOT, "uuid": "other"}]}
    predicted = place.ensure("server", "web1", wish, dry_run=True, **again)
    done = place.ensure("server", "web1", wish, **again)
    assert [s.verb for s in predicted.steps] == [s.verb for s in done.steps] == [
        "record", "stop", "reimage", "wipe", "disks", "define", "drive", "rebuilt", "start"]
    assert done.resource["status"] == "ACTIVE" and done.resource["volumes_attached"] == before
    volume, shown = reimaged(place)
    assert shown == other and {"renewed", "begun"}.isdisjoint(volume.state) and volume.state["made"]
    assert not place.ensure("server", "web1", wish, **again).changed
    seen = [volume.state["reimaged"]["request"]]
    for asked in ("first", "first", "second"):  # the same image again, once for each request
        place.event("rebuild", asked)
        seen.append(reimaged(place)[0].state["reimaged"]["request"])
    assert seen[1] == seen[2] and len(set(seen)) == 3
    place.event("rebuild", "third", image="img")
    kept = reimaged(place)
    assert kept[1] != other
    place.event("rebuild", "fourth", keep_volume=True)
    assert reimaged(place)[0].state["reimaged"] == kept[0].state["reimaged"]


def test_a_root_volume_that_cannot_be_made_anew(place: Host) -> None:
    again = {"on_immutable": "rebuild"}
    image(place, "large", (1 << 30) + 512)
    make(place, {**ROOT, "volume_size": 1})
    with pytest.raises(Immutable, match="block_device_mapping"):
        place.ensure("server", "web1", {"block_device_mapping": [
            {name: value for name, value in ROOT.items() if name != "volume_size"} | {"uuid": "large"}]}, **again)
    with pytest.raises(Conflict, match="in use: server 'web1' is running"):
        place.ensure("volume", reimaged(place)[0].id, {"reimage": {"image": "img", "request": "r1"}})
    assert reimaged(place)[0].state.get("reimaged") is None
    place.ensure("image", "img", None)
    with pytest.raises(Conflict, match="no longer on this host"):
        place.ensure("server", "web1", {"user_data": "YQ=="}, **again)
    assert place.show()["status"] == "ACTIVE"
    place.ensure("volume", "boot", {"size": 1})
    place.ensure("server", "web2", {"flavor": SMALL, "block_device_mapping": [
        {"source_type": "volume", "uuid": "boot", "boot_index": 0}]})
    with pytest.raises(Conflict, match="nothing says of what"):
        place.ensure("server", "web2", {"user_data": "YQ=="}, **again)


def test_no_server_starts_with_a_volume_that_is_half_made_anew(place: Host) -> None:
    image(place, "other")
    make(place, ROOT)
    place.server(power="off")
    volume, _image = reimaged(place)
    place.fake.fail_next("copy_disk", NoSpace())
    asked = {"reimage": {"image": "other", "request": "r1"}}
    with pytest.raises(NoSpace):
        place.ensure("volume", volume.id, asked)
    with pytest.raises(Conflict, match="being recreated"):
        place.server(power="running")
    place.ensure("volume", volume.id, asked)
    place.server(power="running")
    assert reimaged(place)[0].state["reimaged"]["request"] == "r1"


def test_check_mode_assumes_what_earlier_tasks_make(host: Host) -> None:
    found = host.ensure("server", "web1", {"flavor": SMALL, "block_device_mapping": [
        {**ROOT, "uuid": "later"}, {**DATA, "uuid": "later"}]}, dry_run=True)
    assert found.changed and len(found.warnings) == 2


# Names as the guest has them ------------------------------------------------------------------------------------------
def names(place: Host, name: str = "web1") -> list[str]:
    """Targets of the disks that have names in the guest, in the order in which the domain has them."""
    return [one.target for one in place.fake.domain(place.show(name)["id"]).disks if one.device == "disk"]


@pytest.mark.parametrize(("flavor", "hardware", "expected"), [
    ({}, {}, ["vda", "vdb", "vdc"]),
    ({"swap": 64}, {}, ["vda", "vdb", "vdc", "vdd"]),
    ({"ephemeral": 1, "swap": 64}, {}, ["vda", "vdb", "vdc", "vdd", "vde"]),
    ({"swap": 64}, {"disk_bus": "scsi"}, ["sda", "sdb", "sdc", "sdd"]),
    ({"ephemeral": 1}, {"video_model": "vga"}, ["vda", "vdb", "vdc", "vdd"])])
def test_names_have_no_gap_that_the_guest_does_not_have(
        place: Host, flavor: dict[str, int], hardware: dict[str, str], expected: list[str]) -> None:
    """The config drive was the guest's vdb when the first volume that was said to be vdb was plugged in."""
    make(place, DATA, image="img", flavor={**SMALL, "disk": 1, **flavor}, hardware=hardware)
    place.ensure("volume", "late", {"size": 1})
    bus = hardware.get("disk_bus", "virtio")
    late = place.ensure("volume_attachment", "web1:late", {"server": "web1", "volume": "late", "bus": bus}).resource
    assert names(place) == expected and late and late["device"] == expected[-1]


@pytest.mark.parametrize(("hardware", "format", "expected"), [
    ({}, "iso9660", ("cdrom", "scsi", "sdo")), ({}, "vfat", ("disk", "scsi", "sdo")),
    ({"disk_bus": "scsi"}, "iso9660", ("cdrom", "scsi", "sdo")),
    ({"disk_bus": "scsi"}, "vfat", ("disk", "virtio", "vdz")),
    ({"disk_bus": "sata"}, "iso9660", ("cdrom", "sata", "sdf"))])
def test_the_config_drive_takes_no_name_of_the_server_s_disks(
        place: Host, hardware: dict[str, str], format: str, expected: tuple[str, str, str]) -> None:
    object.__setattr__(place.agent.host.settings, "config_drive_format", format)
    make(place, image="img", flavor=SOME, hardware=hardware)
    (drive,) = [one for one in place.fake.domain(place.show()["id"]).disks if one.path.name == "config.iso"]
    assert (drive.device, drive.bus, drive.target) == expected and drive.readonly


def test_a_server_of_an_earlier_agent_keeps_its_layout(place: Host) -> None:
    make(place, DATA, image="img", flavor={**SMALL, "disk": 1, "swap": 64}, power="off")
    document = place.agent.host.documents.find("server", "web1")
    assert document is not None
    del document.state["disk_layout"]
    place.agent.host.documents.write(document)
    place.restart()
    place.fake.undefined_outside(document.id)
    place.server(power="running")
    document = place.agent.host.documents.find("server", "web1")
    found = {one.target: one.path.name for one in place.fake.domain(place.show()["id"]).disks}
    assert found["vdz"] == "config.iso" and "disk_layout" not in document.state  # type: ignore[union-attr]
    place.event("rebuild", "2b9f6c7e-11cc-4b42-8d5a-7b1f6a0c2d11")
    assert "vdz" in {one.target for one in place.fake.domain(place.show()["id"]).disks}


def test_more_disks_than_letters(place: Host) -> None:
    make(place, image="img", flavor={**SMALL, "disk": 1}, power="off")
    for at in range(27):
        place.ensure("volume", f"v{at}", {"size": 1})
        place.ensure("volume_attachment", f"web1:v{at}", {"server": "web1", "volume": f"v{at}"})
    assert names(place)[-4:] == ["vdy", "vdz", "vdaa", "vdab"]
