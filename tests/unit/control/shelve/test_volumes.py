# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of a shelved server stay its own; a root disk that is one needs no image."""

import pytest

from tests.support.control.build import block, root
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import at, disabled, row

from .shelving import ENGINES, settings

pytestmark = ENGINES


def booted_from_a_volume(owner, **more):
    """The uuid of a server whose root disk is a volume."""
    blocks = [block("image", owner.call.image(), boot_index=0, volume_size=1, delete_on_termination=True)]
    return owner.server(imageRef="", block_device_mapping_v2=blocks, flavorRef="small", **more)["id"]


@pytest.mark.parametrize("offload", [0, -1])
def test_a_server_on_a_volume_leaves_its_host_at_once(owner, offload):
    id = booted_from_a_volume(owner, networks="auto")
    host, images = owner.host_of(id), owner.images()
    before = owner.attached(id)
    with settings(owner.cloud, shelved_offload_time=offload):
        owner.act(id, "shelve")
    owner.check_offloaded(id)
    assert owner.images() == images and owner.attached(id) == before
    assert [event["event"] for event in owner.last_action(id)["events"]] == ["compute_shelve_offload_instance"]
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    assert owner.host_of(id) == host and owner.attached(id) == before
    assert [owner.state(one["volumeId"]) for one in before] == ["in-use"]
    found = at(owner.cloud, id)[host]
    assert (found["power_state"], [one["device"] for one in found["volumes_attached"]]) == ("running", ["vda"])


def test_it_can_only_go_where_its_root_disk_is(owner):
    id = booted_from_a_volume(owner)
    host = owner.host_of(id)
    owner.act(id, "shelve")
    with disabled(owner.cloud, host):
        assert owner.act(id, "unshelve")["status"] == "SHELVED_OFFLOADED"
        assert owner.last_action(id)["message"] == "Error"
    owner.check_offloaded(id)
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"


def test_volumes_of_all_hosts_come_back_as_they_were(owner):
    blocks = [root(owner), block("blank", volume_size=1, disk_bus="scsi", delete_on_termination=True),
              block("volume", owner.volume(host="kvm1"), tag="one"), block("volume", owner.volume(host="kvm2"))]
    id = owner.server(imageRef=owner.call.image(), block_device_mapping_v2=blocks, flavorRef="small")["id"]
    late = owner.volume(host="kvm2")
    assert owner.attach(id, late, device="/dev/vdh").status == 200
    eventually(lambda: owner.state(late) == "in-use")
    before, host = owner.attached(id), owner.host_of(id)
    owner.act(id, "shelve")
    owner.check_offloaded(id)
    assert owner.attached(id) == before
    with disabled(owner.cloud, host):
        assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    host = owner.other(host)
    after = owner.attached(id)
    assert {one["volumeId"]: one["tag"] for one in after} == {one["volumeId"]: one["tag"] for one in before}
    plugged = owner.on_host("volume_attachment", host)
    assert {(one["volume"], f"/dev/{one['device']}") for one in plugged} == {
        (one["volumeId"], one["device"]) for one in after}
    assert {one["bus"] for one in plugged} == {"virtio", "scsi"}
    assert {owner.state(one["volumeId"]) for one in after} == {"in-use"}
    assert at(owner.cloud, id)[host]["power_state"] == "running"


def test_volumes_are_given_to_an_offloaded_server_and_taken_from_it(owner):
    first, second = owner.volume(host="kvm1"), owner.volume(host="kvm2")
    id = owner.server(flavorRef="small")["id"]
    assert owner.attach(id, first).status == 200
    eventually(lambda: owner.state(first) == "in-use")
    owner.act(id, "shelve")
    assert owner.attach(id, second).status == 200
    assert owner.state(second) == "in-use"  # as at Nova: clients wait for it
    assert owner.call.delete(f"/v2.1/servers/{id}/os-volume_attachments/{first}", "2.20").status == 202
    eventually(lambda: owner.state(first) == "available")
    assert owner.state(second) == "in-use"
    for refused, status in ((owner.attach(id, first, "2.19"), 409), (owner.attach(id, first, "2.49", tag="a"), 400),
                            (owner.call.delete(f"/v2.1/servers/{id}/os-volume_attachments/{second}", "2.19"), 409)):
        assert refused.status == status, refused
    assert owner.call.delete(f"{owner.api}/volumes/{second}").status == 400
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    assert [one["volumeId"] for one in owner.attached(id)] == [second] and owner.state(second) == "in-use"
    assert [one["id"] for one in at(owner.cloud, id)[owner.host_of(id)]["volumes_attached"]] == [second]


def test_a_deleted_server_gives_its_volumes_back(owner):
    id = booted_from_a_volume(owner)
    [made] = owner.attached(id)
    kept = owner.volume(host=owner.other(owner.host_of(id)))
    assert owner.attach(id, kept).status == 200
    eventually(lambda: owner.state(kept) == "in-use")
    owner.act(id, "shelve")
    assert row(owner.cloud, id).shelved_image_id is None
    assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
    assert owner.call.settled(id) is None
    assert owner.state(kept) == "available"
    eventually(lambda: owner.state(made["volumeId"]) is None)
