# SPDX-License-Identifier: GPL-3.0-or-later
"""An administrator gives a server of another project what only the administrator sees: the API looks it up as its
caller, so the conductor does not look it up again as the server's owner, who must not see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control.conductor.steps import block_devices
from magnetar_control.services import Context
from magnetar_core.errors import NotFound
from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually

from .asking import NETWORK, Owner, macs, network, path


@pytest.fixture
def alice(cloud: Cloud, owner: Owner) -> Iterator[Owner]:
    """A member of another project than the administrator's."""
    if owner.call.get("/v2.1/flavors/disk").status == 404:
        owner.call.flavor("disk")
    found = Owner(cloud, cloud.caller("alice", "elsewhere"))
    yield found
    for one in found.call.get("/v2.1/servers").json["servers"]:
        found.call.delete(f"/v2.1/servers/{one['id']}")
    eventually(lambda: not found.call.get("/v2.1/servers").json["servers"])
    eventually(lambda: not found.call.get(f"{found.api}/volumes").json["volumes"])


def test_volumes_are_attached_swapped_and_carried_along(owner: Owner, alice: Owner) -> None:
    server = alice.server(flavorRef="disk")["id"]
    first, second = owner.volume(), owner.volume()
    assert owner.attach(server, first, delete_on_termination=True).status == 200
    eventually(lambda: owner.state(first) == "in-use")
    assert [one["volumeId"] for one in alice.attached(server)] == [first]
    assert owner.swap(server, first, second).status == 202
    eventually(lambda: (owner.state(first), owner.state(second)) == ("available", "in-use"))
    for action in ("shelve", "unshelve"):  # with ``shelved_offload_time`` 0 it is built again
        assert alice.call.act(server, action, None, "2.91").status == 202
        found = alice.call.settled(server)
        assert found and found["status"] in ("SHELVED_OFFLOADED", "ACTIVE"), found.get("fault")
    assert [one["volumeId"] for one in alice.attached(server)] == [second] and owner.state(second) == "in-use"
    assert alice.call.delete(f"/v2.1/servers/{server}").status == 204
    eventually(lambda: owner.state(second) is None)


def test_a_server_is_made_of_what_its_maker_sees(owner: Owner, alice: Owner) -> None:
    volume = alice.volume()
    snapshot = alice.call.post(f"{alice.api}/snapshots", {"snapshot": {"volume_id": volume}}).json["snapshot"]["id"]
    eventually(lambda: alice.call.get(f"{alice.api}/snapshots/{snapshot}").json["snapshot"]["status"] == "available")
    blocks = [{"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": owner.call.image()},
              {"source_type": "snapshot", "destination_type": "volume", "uuid": snapshot, "volume_size": 1,
               "boot_index": None, "delete_on_termination": True}]
    assert len(owner.attached(owner.server(imageRef=owner.call.image(),
                                           block_device_mapping_v2=blocks)["id"])) == 1
    assert alice.call.delete(f"{alice.api}/snapshots/{snapshot}").status == 202
    eventually(lambda: alice.call.get(f"{alice.api}/snapshots/{snapshot}").status == 404)
    assert alice.call.delete(f"{alice.api}/volumes/{volume}").status == 202


def test_a_rebuild_takes_the_properties_of_an_image_that_only_its_caller_sees(owner: Owner, alice: Owner) -> None:
    server = alice.server(flavorRef="disk")["id"]
    image = owner.call.image("secret", b"\2" * 65536, visibility="private", img_config_drive="mandatory")
    assert alice.call.get(f"/image/v2/images/{image}").status == 404
    assert owner.call.act(server, "rebuild", {"imageRef": image}).status == 202
    found = alice.call.settled(server)
    assert found and (found["status"], found["image"]["id"]) == ("ACTIVE", image), found
    [there] = [one for one in owner.on_host("image", owner.host_of(server)) if one["id"] == image]
    assert there["checksum"] and there["properties"], there


def test_a_nic_is_of_the_servers_project_whoever_attaches_it(owner: Owner, alice: Owner) -> None:
    server, net = alice.server(flavorRef="disk")["id"], network(owner)
    reply = owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}})
    assert reply.status == 200, reply
    port = reply.json["interfaceAttachment"]["port_id"]
    assert owner.call.get(f"{NETWORK}/ports/{port}").json["port"]["project_id"] == alice.call.project_id
    assert len(macs(owner, server)) == 1


def test_an_image_does_not_open_a_snapshot_of_another_project(cloud: Cloud, owner: Owner, alice: Owner) -> None:
    """Conductors make the volumes of new servers as administrators, from images whose properties anybody writes."""
    volume = owner.volume()
    snapshot = owner.call.post(f"{owner.api}/snapshots", {"snapshot": {"volume_id": volume}}).json["snapshot"]["id"]
    mapping = json.dumps([{"boot_index": 0, "snapshot_id": snapshot}])
    image = alice.call.post("/image/v2/images", {"name": "odd", "disk_format": "raw", "container_format": "bare",
                                                 "block_device_mapping": mapping}).json
    conductor = Context("alice", image["owner"], frozenset(("admin", "member")))
    with pytest.raises(NotFound):
        cloud.parts.volumes.create(conductor, 2, image_id=image["id"])
    assert alice.call.delete(f"/image/v2/images/{image['id']}").status == 204


def test_a_volume_has_no_type_that_an_image_names_after_the_request(
        owner: Owner, alice: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API looks as the caller; the conductor could use types of other projects."""
    made = owner.call.post(f"{owner.api}/types", {"volume_type": {
        "name": "gold", "os-volume-type-access:is_public": False}})
    assert made.status == 200, made
    image, make = alice.call.image("mine", visibility="private"), block_devices._make_and_reserve
    body = {"op": "add", "path": "/cinder_img_volume_type", "value": "gold"}

    def later(work: Any, host: str, block: Any, entry: Any) -> Any:
        reply = alice.call.call("PATCH", f"/image/v2/images/{image}", [body], headers={
            "Content-Type": "application/openstack-images-v2.1-json-patch"})
        assert reply.status == 200, reply
        return make(work, host, block, entry)

    block = {"source_type": "image", "destination_type": "volume", "boot_index": 0, "uuid": image, "volume_size": 1,
             "delete_on_termination": True}
    monkeypatch.setattr(block_devices, "_make_and_reserve", later)
    server = alice.server(flavorRef="disk", imageRef="", block_device_mapping_v2=[block])["id"]
    assert [(alice.seen(one["volumeId"]) or {})["volume_type"] for one in alice.attached(server)] == ["default"]
    refused = alice.call.post("/v2.1/servers", {"server": {
        "name": "x", "flavorRef": "disk", "networks": "none", "imageRef": "", "block_device_mapping_v2": [block]}},
        "2.60")
    assert refused.status == 400 and "names in its property" in refused.json["badRequest"]["message"], refused
