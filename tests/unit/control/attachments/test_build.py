# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that are made with volumes, and boot from them."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

import pytest

from magnetar_agent.fake.disks import read_fake_disk
from magnetar_control.agents import AgentClient
from magnetar_control.compute.servers import server_reservations
from magnetar_control.conductor.steps import block_devices, nics
from magnetar_core.errors import Cancelled, Conflict
from tests.support.control.build import block, root
from tests.support.waiting import eventually

from .asking import Owner


def test_a_server_boots_from_a_volume_made_of_an_image(owner: Owner) -> None:
    blocks = [block("image", owner.call.image(), boot_index=0, volume_size=2, delete_on_termination=True, tag="root")]
    server = owner.server(imageRef="", block_device_mapping_v2=blocks, version="2.60")
    assert server["image"] == ""
    [one] = owner.attached(server["id"])
    assert (one["device"], one["tag"], one["delete_on_termination"]) == ("/dev/vda", "root", True)
    volume = owner.seen(one["volumeId"])
    assert volume and (volume["status"], volume["size"], volume["bootable"]) == ("in-use", 2, "true")
    assert [found["id"] for found in owner.on_host("volume", owner.host_of(server["id"]))] == [one["volumeId"]]
    refused = owner.detach(server["id"], one["volumeId"])
    assert refused.status == 400 and "root device" in refused.json["badRequest"]["message"]
    owner.call.delete(f"/v2.1/servers/{server['id']}")
    eventually(lambda: owner.state(one["volumeId"]) is None)


def test_while_its_volumes_are_made_a_server_says_so(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, waits, asks, allocates = [], block_devices._wait_until_made, AgentClient.ensure, nics.allocate_nics

    def allocate(work: Any, host: str) -> Any:
        seen.append(owner.call.get(f"/v2.1/servers/{work.id}").json["server"]["OS-EXT-STS:task_state"])
        return allocates(work, host)

    def wait(work: Any, id: str) -> None:
        seen.append(work.server.task_state)
        waits(work, id)

    def ensure(self: AgentClient, noun: str, key: str, *given: Any, **more: Any) -> Any:
        if noun == "server":
            seen.append(owner.call.get(f"/v2.1/servers/{key}").json["server"]["OS-EXT-STS:task_state"])
        return asks(self, noun, key, *given, **more)

    monkeypatch.setattr(nics, "allocate_nics", allocate)
    monkeypatch.setattr(block_devices, "_wait_until_made", wait)
    monkeypatch.setattr(AgentClient, "ensure", ensure)
    blocks = [block("image", owner.call.image(), boot_index=0, volume_size=2, delete_on_termination=True)]
    server = owner.server(imageRef="", block_device_mapping_v2=blocks, networks="auto")
    assert seen == ["networking", "block_device_mapping", "spawning"] and server["OS-EXT-STS:task_state"] is None


def test_a_server_boots_from_a_volume_that_is_there(owner: Owner) -> None:
    for host in owner.cloud.hosts:  # it is placed where its root disk lies
        volume = owner.volume(host=host, size=2, image_id=owner.call.image())
        server = owner.server(imageRef="", block_device_mapping_v2=[block("volume", volume, boot_index="0")])["id"]
        assert owner.host_of(server) == host
        assert owner.state(volume) == "in-use"
        owner.call.delete(f"/v2.1/servers/{server}")
        eventually(lambda volume=volume: owner.state(volume) == "available")


def test_an_image_beside_a_root_volume_gives_its_properties(owner: Owner) -> None:
    """Terraform and libcloud send imageRef also when a volume has boot_index 0. Nova boots from the volume."""
    image = owner.call.image("uefi", hw_firmware_type="uefi")
    volume = owner.volume(host="kvm2", size=2, image_id=owner.call.image())
    server = owner.server(imageRef=image, block_device_mapping_v2=[block("volume", volume, boot_index=0)])
    assert server["image"]["id"] == image
    [attached] = owner.attached(server["id"])
    assert (attached["volumeId"], attached["device"]) == (volume, "/dev/vda")
    [shown] = owner.on_host("server", "kvm2")
    assert shown["image"] is None and shown["hardware"]["firmware"] == "uefi"


def test_a_server_boots_from_a_blank_volume(owner: Owner) -> None:
    """A guest that is installed over the network has such a root disk."""
    blocks = [block("blank", boot_index=0, volume_size=2, delete_on_termination=True)]
    server = owner.server(imageRef="", block_device_mapping_v2=blocks)
    [attached] = owner.attached(server["id"])
    assert attached["device"] == "/dev/vda" and server["image"] == ""
    volume = owner.seen(attached["volumeId"])
    assert volume and (volume["size"], volume["status"]) == (2, "in-use")


def test_what_is_not_bootable_boots_no_server(owner: Owner) -> None:
    volume = owner.volume()
    made = owner.call.post(f"{owner.api}/snapshots", {"snapshot": {"volume_id": volume, "name": "s"}})
    snapshot = made.json["snapshot"]["id"]
    eventually(lambda: owner.call.get(f"{owner.api}/snapshots/{snapshot}").json["snapshot"]["status"] == "available")
    for source, id in (("volume", volume), ("snapshot", snapshot)):
        blocks = [block(source, id, boot_index=0)]
        refused = owner.call.post("/v2.1/servers", {"server": {
            "name": "x", "flavorRef": "1", "networks": "none", "block_device_mapping_v2": blocks}}, "2.60")
        assert refused.status == 400, refused
        assert refused.json["badRequest"]["message"].endswith(f"Block Device {id} is not bootable.")
    owner.call.post(f"{owner.api}/volumes/{volume}/action", {"os-set_bootable": {"bootable": True}})
    owner.server(imageRef="", block_device_mapping_v2=[block("volume", volume, boot_index=0)])


def test_volumes_of_all_kinds_come_with_a_server(owner: Owner) -> None:
    near, far = (owner.volume(host=host, name=host) for host in ("kvm1", "kvm2"))
    made = owner.call.post(f"{owner.api}/snapshots", {"snapshot": {"volume_id": near, "name": "s"}})
    snapshot = made.json["snapshot"]["id"]
    eventually(lambda: owner.call.get(f"{owner.api}/snapshots/{snapshot}").json["snapshot"]["status"] == "available")
    blocks = [root(owner), block("volume", near, tag="near"), block("volume", far, tag="far"),
              block("snapshot", snapshot, delete_on_termination=True),
              block("blank", volume_size=3, delete_on_termination=True, disk_bus="scsi")]
    server = owner.server(block_device_mapping_v2=blocks, imageRef=owner.call.image())["id"]
    found = owner.attached(server)
    assert [one["volumeId"] for one in found[:2]] == [near, far]
    assert [one["tag"] for one in found] == ["near", "far", None, None]
    assert len({one["device"] for one in found}) == 4
    assert found[3]["device"] == "/dev/sda"
    assert [owner.state(one["volumeId"]) for one in found] == ["in-use"] * 4
    assert [size for one in found if (size := (owner.seen(one["volumeId"]) or {})["size"])] == [1, 1, 1, 3]
    host = owner.host_of(server)
    assert {one["volume"] for one in owner.on_host("volume_attachment", host)} == {one["volumeId"] for one in found}
    [shown] = owner.on_host("server", host)
    assert shown["power_state"] == "running"
    owner.call.delete(f"/v2.1/servers/{server}")
    eventually(lambda: [owner.state(one["volumeId"]) for one in found] == ["available", "available", None, None])


def test_a_failed_build_gives_volumes_back(owner: Owner) -> None:
    kept = owner.volume(host="kvm1")
    blocks = [root(owner), block("blank", volume_size=2), block("volume", kept),
              block("blank", volume_size=10**6 - 1)]  # beyond the quota
    server = owner.call.boot(block_device_mapping_v2=blocks, imageRef=owner.call.image())
    assert server["status"] == "ERROR"
    assert "Quota" in server["fault"]["message"] or "quota" in server["fault"]["message"]
    assert owner.attached(server["id"]) == []
    eventually(lambda: [one["id"] for one in owner.call.get(f"{owner.api}/volumes").json["volumes"]] == [kept])
    assert owner.state(kept) == "available"


def test_volumes_of_the_flavor_can_have_tags(owner: Owner) -> None:
    owner.call.post("/v2.1/flavors", {"flavor": {"id": "roomy", "name": "roomy", "vcpus": 1, "ram": 64, "disk": 1,
                                                 "OS-FLV-EXT-DATA:ephemeral": 1, "swap": 64}})
    blocks = [{**root(owner), "tag": "system"},
              {"source_type": "blank", "destination_type": "local", "guest_format": "swap", "volume_size": 64},
              {"source_type": "blank", "destination_type": "local", "tag": "scratch", "boot_index": -1}]
    server = owner.server(flavorRef="roomy", block_device_mapping_v2=blocks, imageRef=owner.call.image())["id"]
    assert owner.attached(server) == []
    volume = owner.volume()
    assert owner.attach(server, volume).json["volumeAttachment"]["device"] == "/dev/vdd"
    eventually(lambda: owner.state(volume) == "in-use")


SCRATCH = {"source_type": "blank", "destination_type": "local"}


def _disks(owner: Owner, server: str) -> dict[str, int]:
    """MiB of the server's own disks, by file."""
    place = owner.cloud.folder / owner.host_of(server) / "state" / "servers" / server
    return {path.name: seen.virtual_size >> 20 for path in place.glob("disk*") if (seen := read_fake_disk(path, None))}


def _large(owner: Owner) -> None:
    owner.call.post("/v2.1/flavors", {"flavor": {"id": "large", "name": "large", "vcpus": 1, "ram": 64, "disk": 1,
                                                 "OS-FLV-EXT-DATA:ephemeral": 4, "swap": 64}})


def test_several_ephemeral_disks_and_a_smaller_swap_disk(owner: Owner) -> None:
    _large(owner)
    blocks = [root(owner), {**SCRATCH, "volume_size": 1}, {**SCRATCH, "volume_size": 2, "guest_format": "ext4"}]
    server = owner.server(flavorRef="large", block_device_mapping_v2=blocks, imageRef=owner.call.image())["id"]
    made = _disks(owner, server)
    assert made == {"disk": 1024, "disk.ephemeral": 1024, "disk.ephemeral1": 2048, "disk.swap": 64}
    assert owner.attach(server, owner.volume()).json["volumeAttachment"]["device"] == "/dev/vde"
    for action, state in (("shelve", "SHELVED_OFFLOADED"), ("unshelve", "ACTIVE")):
        owner.call.act(server, action)
        eventually(lambda state=state: owner.call.server(server)["status"] == state)
    assert _disks(owner, server) == made
    swap = {**SCRATCH, "guest_format": "swap", "volume_size": 16}
    other = owner.server(flavorRef="large", block_device_mapping_v2=[root(owner), swap], imageRef=owner.call.image())
    assert _disks(owner, other["id"]) == {"disk": 1024, "disk.ephemeral": 4096, "disk.swap": 16}


@pytest.mark.parametrize(("blocks", "why"), [
    ([{**SCRATCH, "volume_size": 3}, {**SCRATCH, "volume_size": 2}], "Ephemeral disks requested are larger than"),
    ([SCRATCH, {**SCRATCH, "volume_size": 1}], "Ephemeral disks requested are larger than"),
    ([{**SCRATCH, "guest_format": "swap", "volume_size": 65}], "Swap drive requested is larger than instance type"),
    ([{**SCRATCH, "guest_format": "swap"}] * 2, "More than one swap drive requested."),
    ([{**SCRATCH, "volume_size": 1, "guest_format": "xfs"}], "ephemeral disks are made with ext4"),
    ([{**SCRATCH, "volume_size": 1}] * 3, "You specified more local devices than the limit allows"),
])
def test_local_disks_that_are_refused(owner: Owner, blocks: list[dict[str, object]], why: str) -> None:
    _large(owner)
    refused = owner.call.post("/v2.1/servers", {"server": {
        "name": "x", "flavorRef": "large", "networks": "none", "imageRef": owner.call.image(),
        "block_device_mapping_v2": [root(owner), *blocks]}}, "2.60")
    assert refused.status == 400 and why in refused.json["badRequest"]["message"]


@pytest.mark.parametrize(("item", "said", "why"), [
    ("local", {"device_type": "cdrom"}, "[0].device_type: must be disk"),
    ("local", {"disk_bus": "sata"}, "[0].disk_bus: must be virtio for a local disk"),
    ("local", {"volume_size": 5}, "[0].volume_size: must be the flavor's disk, 0 GiB"),
    ("local", {"volume_type": "default"}, "[0].volume_type: is for volumes"),
    ("local", {"guest_format": "ext4"}, "[0].guest_format: is for blank local disks only"),
    ("local", {"virtual_name": "swap"}, "[0].virtual_name: must be left out"),
    ("local", {"connection_info": "{}"}, "[0].connection_info: must be left out"),
    ("volume", {"disk_bus": "usb"}, "[0].disk_bus: must be one of virtio, scsi, sata"),
    ("volume", {"device_type": "lun"}, "[0].device_type: must be disk"),
    ("volume", {"volume_type": "default"}, "[0].volume_type: is for volumes that are made"),
    ("volume", {"snapshot_id": "9f3c1a52-0a08-4b8e-8f0e-1d7a5a6f7b11"}, "[0].snapshot_id: is not for source_type"),
    ("volume", {"guest_format": "xfs"}, "[0].guest_format: is for blank local disks only")])
def test_what_could_do_nothing_to_a_disk_is_refused(owner: Owner, item: str, said: dict[str, Any], why: str) -> None:
    local = item == "local"
    one = root(owner) if local else block("volume", owner.volume(), boot_index=0)
    refused = owner.call.post("/v2.1/servers", {"server": {
        "name": "x", "flavorRef": "1", "networks": "none", "imageRef": owner.call.image() if local else "",
        "block_device_mapping_v2": [{**one, **said}]}}, "2.67")
    assert refused.status == 400 and why in refused.json["badRequest"]["message"], refused.json


def test_words_that_are_so_anyway_pass(owner: Owner) -> None:
    """As do those that clients send whatever is asked: Horizon's size of a volume that exists, and gophercloud's
    delete_on_termination."""
    same = {"device_type": "disk", "disk_bus": "", "guest_format": None, "virtual_name": None, "volume_type": ""}
    volume = block("volume", owner.volume(imageRef=owner.call.image()), boot_index=0, volume_size=7,
                   **{**same, "disk_bus": "virtio"})
    owner.server(imageRef="", block_device_mapping_v2=[volume], version="2.67")
    owner.server(imageRef=owner.call.image(), version="2.67",
                 block_device_mapping_v2=[{**root(owner), **same, "volume_size": 0, "delete_on_termination": False}])


def test_an_image_that_nova_made_of_a_server_on_volumes_boots(owner: Owner) -> None:
    """With all the keys that Nova writes, and the bus of the disks that lie with the server."""
    _large(owner)
    volume = owner.volume(imageRef=owner.call.image())
    snapshot = owner.call.post(f"{owner.api}/snapshots", {"snapshot": {"volume_id": volume}}).json["snapshot"]["id"]
    eventually(lambda: owner.call.get(f"{owner.api}/snapshots/{snapshot}").json["snapshot"]["status"] == "available")
    empty = dict.fromkeys(("attachment_id", "connection_info", "device_name", "encrypted", "encryption_format",
                           "guest_format", "image_id", "no_device", "tag", "volume_id", "volume_type"))
    local = {**empty, "source_type": "blank", "destination_type": "local", "disk_bus": "scsi", "device_type": "disk",
             "snapshot_id": None, "boot_index": -1, "delete_on_termination": True}
    mapping = [{**empty, "source_type": "snapshot", "destination_type": "volume", "snapshot_id": snapshot,
                "boot_index": 0, "volume_size": 1, "device_name": "/dev/vda", "disk_bus": "virtio",
                "device_type": "disk", "delete_on_termination": False},
               {**local, "volume_size": 1}, {**local, "guest_format": "swap", "volume_size": 16}]
    properties = {"base_image_ref": "", "bdm_v2": "True", "root_device_name": "/dev/vda", "kernel_id": "",
                  "ramdisk_id": "None", "image_location": "snapshot", "image_state": "available", "image_type":
                  "snapshot", "boot_roles": "member", "owner_user_name": "demo", "owner_specified.openstack.md5": "",
                  "hw_disk_bus": "scsi", "block_device_mapping": json.dumps(mapping)}
    server = owner.server(flavorRef="large", imageRef=owner.call.image("of-nova", **properties))
    assert len(owner.attached(server["id"])) == 1
    local["disk_bus"] = "sata"
    refused = owner.call.post("/v2.1/servers", {"server": {
        "name": "x", "flavorRef": "large", "networks": "none", "imageRef": owner.call.image(),
        "block_device_mapping_v2": [{**local, "volume_size": 1, "connection_info": None}]}}, "2.60")
    assert refused.status == 400, refused


def test_the_first_form_has_swap_and_ephemeral_disks(owner: Owner) -> None:
    _large(owner)
    old = [{"virtual_name": "ephemeral0", "volume_size": 1}, {"virtual_name": "swap", "volume_size": 16}]
    server = owner.server(flavorRef="large", imageRef=owner.call.image(), block_device_mapping=old)
    assert _disks(owner, server["id"]) == {"disk": 1024, "disk.ephemeral": 1024, "disk.swap": 16}
    refused = owner.call.post("/v2.1/servers", {"server": {
        "name": "x", "flavorRef": "large", "networks": "none", "imageRef": owner.call.image(),
        "block_device_mapping": [{"virtual_name": "root", "volume_id": owner.volume()}]}}, "2.60")
    assert refused.status == 400 and "[0].virtual_name: must be swap" in refused.json["badRequest"]["message"]


def test_a_resize_does_not_shrink_ephemeral_disks(owner: Owner) -> None:
    """What counts is what they have together, not the flavor's word (LCH-46)."""
    _large(owner)
    for name, ephemeral in (("fits", 3), ("small", 2)):
        owner.call.post("/v2.1/flavors", {"flavor": {"id": name, "name": name, "vcpus": 1, "ram": 64, "disk": 1,
                                                     "OS-FLV-EXT-DATA:ephemeral": ephemeral, "swap": 0}})
    blocks = [root(owner), {**SCRATCH, "volume_size": 1}, {**SCRATCH, "volume_size": 2}]
    server = owner.server(flavorRef="large", block_device_mapping_v2=blocks, imageRef=owner.call.image())["id"]
    owner.call.act(server, "resize", {"flavorRef": "small"})
    refused = owner.call.settled(server)
    assert refused and (refused["status"], refused["flavor"]["original_name"]) == ("ACTIVE", "large")
    owner.call.act(server, "resize", {"flavorRef": "fits"})
    eventually(lambda: owner.call.server(server)["status"] == "VERIFY_RESIZE")
    assert _disks(owner, server) == {"disk": 1024, "disk.ephemeral": 1024, "disk.ephemeral1": 2048}


NOWHERE = str(uuid.uuid4())
IMAGE, VOLUME = "IMAGE", "VOLUME"


@pytest.mark.parametrize(("blocks", "more", "version"), [
    ([block("volume", boot_index=0)], {}, "2.60"), ([block("volume", NOWHERE, boot_index=0)], {}, "2.60"),
    ([block("snapshot", NOWHERE, boot_index=0)], {}, "2.60"),
    ([block("image", NOWHERE, boot_index=0, volume_size=1)], {}, "2.60"),
    ([block("image", IMAGE, boot_index=0)], {}, "2.60"),
    ([{**block("blank", boot_index=0, volume_size=1), "destination_type": "local"}], {}, "2.60"),
    ([block("blank", VOLUME, volume_size=1)], {"imageRef": IMAGE}, "2.60"),
    ([block("blank")], {"imageRef": IMAGE}, "2.60"), ([block("volume", VOLUME)], {}, "2.60"),
    ([block("volume", VOLUME, boot_index=0), {**block("image", IMAGE, boot_index=0), "destination_type": "local"}],
     {"imageRef": IMAGE}, "2.60"),
    ([block("volume", VOLUME, boot_index=2)], {"imageRef": IMAGE}, "2.60"),
    ([block("volume", VOLUME, boot_index=0), block("volume", VOLUME, boot_index=1)], {}, "2.60"),
    ([{**block("volume", VOLUME, boot_index=0), "destination_type": "local"}], {}, "2.60"),
    ([{**block("image", IMAGE), "destination_type": "local"}], {"imageRef": IMAGE}, "2.60"),
    ([{**block("image", NOWHERE, boot_index=0), "destination_type": "local"}], {"imageRef": IMAGE}, "2.60"),
    ([{"source_type": "blank", "destination_type": "local", "guest_format": "swap"}], {"imageRef": IMAGE}, "2.60"),
    ([{"source_type": "blank", "destination_type": "local"}], {"imageRef": IMAGE}, "2.60"),
    ([block("volume", VOLUME, boot_index=0)], {"max_count": 2, "min_count": 2}, "2.60"),
    ([block("volume", VOLUME, boot_index=0, volume_type="default")], {}, "2.66"),
    ([block("image", IMAGE, boot_index=0, volume_size=1, volume_type="gold")], {}, "2.67"),
    ([block("volume", VOLUME, boot_index=0, tag="t")], {}, "2.33"), ([block("tape", VOLUME)], {}, "2.60"),
    ([block("volume", VOLUME, boot_index=0, more=1)], {}, "2.60"), ("x", {}, "2.60"), ([7], {}, "2.60")])
def test_what_does_not_go_together_is_refused(owner: Owner, blocks: Any, more: dict[str, Any], version: str) -> None:
    volume, image = owner.volume(), owner.call.image()
    words = {VOLUME: volume, IMAGE: image}
    given = [{name: words.get(str(value), value) for name, value in one.items()} if isinstance(one, dict) else one
             for one in blocks] if isinstance(blocks, list) else blocks
    body = {"name": "web1", "flavorRef": "1", "networks": "auto", "imageRef": "", "block_device_mapping_v2": given,
            **{name: words.get(str(value), value) for name, value in more.items()}}
    if version == "2.33":
        body["networks"] = []
    reply = owner.call.post("/v2.1/servers", {"server": body}, version)
    assert reply.status == 400, reply
    assert owner.call.get("/v2.1/servers").json["servers"] == []
    assert owner.state(volume) == "available"


def test_the_first_form_of_the_mapping_is_taken_too(owner: Owner) -> None:
    volume = owner.volume(host="kvm2", size=2, image_id=owner.call.image())
    old = [{"volume_id": volume, "device_name": "/dev/vda", "delete_on_termination": False}]
    reply = owner.call.post("/v2.1/servers", {"server": {
        "name": "old", "flavorRef": "1", "networks": "auto", "imageRef": "", "block_device_mapping": old}}, "2.60")
    assert reply.status == 202, reply
    server = owner.call.settled(reply.json["server"]["id"])
    assert server and server["status"] == "ACTIVE"
    assert [one["volumeId"] for one in owner.attached(server["id"])] == [volume]


def test_a_server_whose_port_is_over_quota_says_so(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request found room, which others took meanwhile."""
    quota = f"/network/v2.0/quotas/{owner.call.project_id}"
    assert owner.call.put(quota, {"quota": {"port": 0}}).status == 200
    try:
        refused = owner.call.post("/v2.1/servers", {"server": {
            "name": "x", "flavorRef": "1", "networks": "auto", "imageRef": owner.call.image()}}, "2.60")
        assert refused.status == 403, refused
        monkeypatch.setattr(owner.cloud.services.network, "room", lambda *_asked: None)
        server = owner.call.boot(imageRef=owner.call.image())
        assert server["status"] == "ERROR"
        assert server["fault"]["message"].startswith("Maximum number of ports exceeded"), server["fault"]
    finally:
        assert owner.call.delete(quota).status == 204


def _asked(owner: Owner, volume: str, **more: Any) -> Any:
    """The answer to a request for a server with a volume that is there."""
    given = {"name": "new", "flavorRef": "1", "networks": "none", "imageRef": owner.call.image(),
             "block_device_mapping_v2": [root(owner), block("volume", volume)], **more}
    return owner.call.post("/v2.1/servers", {"server": given}, "2.60")


def test_a_volume_is_reserved_before_the_answer(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next who names it is told so, and does not get a server in error."""
    volume, go = owner.volume(), threading.Event()
    real = block_devices.prepare_volumes
    monkeypatch.setattr("magnetar_control.conductor.flows.server_create.block_devices.prepare_volumes", lambda *args: (
        go.wait(20), real(*args))[1])
    first = _asked(owner, volume)
    assert first.status == 202 and owner.state(volume) == "reserved"
    second = _asked(owner, volume)
    assert second.status == 400 and "reserved" in second.json["badRequest"]["message"], second
    go.set()
    server = owner.call.settled(first.json["server"]["id"])
    assert server and server["status"] == "ACTIVE" and owner.state(volume) == "in-use", server
    [attached] = owner.attached(server["id"])
    seen = owner.seen(volume)
    assert seen and [one["attachment_id"] for one in seen["attachments"]] == [attached["attachment_id"]]


@pytest.mark.parametrize("how", ["no host", "deleted"])
def test_a_reserved_volume_is_free_when_its_server_is_not_built(owner: Owner, monkeypatch: pytest.MonkeyPatch,
                                                                how: str) -> None:
    volume, go = owner.volume(), threading.Event()
    if how == "no host":
        if owner.call.get("/v2.1/flavors/huge").status == 404:
            owner.call.flavor("huge", ram=1 << 30)
        server = owner.call.settled(_asked(owner, volume, flavorRef="huge").json["server"]["id"])
        assert server and server["status"] == "ERROR" and owner.state(volume) == "available"
        return
    monkeypatch.setattr("magnetar_control.conductor.flows.server_create.block_devices.prepare_volumes", lambda *_args: (
        go.wait(20), (_ for _ in ()).throw(Cancelled("It is deleted.")))[1])
    id = _asked(owner, volume).json["server"]["id"]
    assert owner.state(volume) == "reserved"
    assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
    go.set()
    assert owner.call.settled(id) is None and owner.state(volume) == "available"


@pytest.mark.parametrize("dies", [False, True], ids=["refused", "died"])
def test_the_api_reserves_all_or_makes_no_server(owner: Owner, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """Where the API dies in between, a conductor goes on when the moment is over, with the same attachment."""
    volume = owner.volume()
    reserve, volumes = owner.cloud.services.volume.reserve, owner.cloud.services.volume

    def fails(context: Any, id: str, *given: Any, **more: Any) -> Any:
        if threading.current_thread().name.startswith("work"):
            return reserve(context, id, *given, **more)
        if dies:
            reserve(context, id, *given, **more)
            raise RuntimeError
        raise Conflict("Somebody was faster.")

    monkeypatch.setattr(server_reservations, "HELD", 0.5)
    monkeypatch.setattr(volumes, "reserve", fails)
    assert _asked(owner, volume).status == (500 if dies else 409)
    monkeypatch.undo()
    if dies:
        [made] = owner.call.get("/v2.1/servers").json["servers"]
        server = owner.call.settled(made["id"])
        assert server and server["status"] == "ACTIVE" and owner.state(volume) == "in-use", server
    else:
        assert owner.call.get("/v2.1/servers").json["servers"] == [] and owner.state(volume) == "available"


def test_a_server_that_is_deleted_meanwhile_keeps_no_volume(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, volumes = owner.volume(), owner.cloud.services.volume
    reserve = volumes.reserve

    def late(context: Any, id: str, server: str, **more: Any) -> Any:
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
        assert owner.call.settled(server) is None
        return reserve(context, id, server, **more)

    monkeypatch.setattr(volumes, "reserve", late)
    assert _asked(owner, volume).status == 202
    assert owner.state(volume) == "available"
