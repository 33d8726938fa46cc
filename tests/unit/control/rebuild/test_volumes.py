# SPDX-License-Identifier: GPL-3.0-or-later
"""A rebuild makes a root disk that is a volume anew, where the volume is; before 2.93 it leaves it as it is."""

import pytest

from magnetar_control.conductor.steps import block_devices
from magnetar_core.http.client import Client
from tests.support.waiting import eventually

from .rebuilding import ENGINES

pytestmark = ENGINES


def test_another_image(owner):
    id, other = owner.on_volume(networks="auto"), owner.call.image("other")
    before, host = owner.attached(id), owner.host_of(id)
    reply = owner.rebuild(id, other, name="web2", metadata={"a": "b"})
    assert reply.status == 202 and reply.json["server"]["image"] == "", reply
    server = owner.call.settled(id)
    assert (server["name"], server["metadata"], server["image"]) == ("web2", {"a": "b"}, "")
    owner.check_of(id, other, host)
    assert owner.attached(id) == before
    assert owner.rebuild(id, other).status == 202  # the same again
    owner.call.settled(id)
    owner.check_of(id, other, host)


def test_it_tells_how_far_it_is(owner, monkeypatch):
    id, other, seen = owner.on_volume(), owner.call.image("other"), []

    def told(function):
        def watched(*args, **given):
            seen.append((owner.call.server(id)["OS-EXT-STS:task_state"], owner.call.server(id)["status"]))
            return function(*args, **given)
        return watched

    monkeypatch.setattr(block_devices, "reimage_root_volume", told(block_devices.reimage_root_volume))
    monkeypatch.setattr(Client, "event", told(Client.event))
    assert owner.rebuild(id, other).status == 202
    owner.call.settled(id)
    assert seen == [("rebuild_block_device_mapping", "REBUILD"), ("rebuild_spawning", "REBUILD")]


def test_one_that_is_off_stays_off(owner):
    id, other = owner.on_volume(), owner.call.image("other")
    assert owner.call.act(id, "os-stop").status == 202
    owner.call.settled(id)
    assert owner.rebuild(id, other).status == 202
    assert owner.call.settled(id)["status"] == "SHUTOFF"
    assert owner.root(id)["volume_image_metadata"]["image_id"] == other


def test_before_it_was_made_anew_the_volume_stays(owner):
    id, other = owner.on_volume(), owner.call.image("other")
    refused = owner.rebuild(id, other, "2.92")
    assert refused.status == 400 and "for a volume-backed server" in refused.json["badRequest"]["message"]
    before = owner.root(id)
    assert owner.rebuild(id, owner.call.image(), "2.92", user_data="YQ==").status == 202
    assert owner.call.settled(id)["status"] == "ACTIVE"
    assert owner.root(id) == before


def test_a_volume_of_another_host(owner):
    id, other = owner.on_volume(networks="auto"), owner.call.image("other")
    host = owner.host_of(id)
    assert owner.call.act(id, "os-migrateLive", {"host": None, "block_migration": "auto"}, "2.30").status == 202
    assert owner.call.settled(id) and owner.host_of(id) == owner.other(host)
    assert owner.rebuild(id, other).status == 202
    owner.call.settled(id)
    owner.check_of(id, other, host)
    assert owner.host_of(id) == owner.other(host)


@pytest.mark.parametrize(("fields", "word"), [
    ({"min_disk": 2}, "Volume is smaller than the minimum size"), ({"min_ram": 10**6}, "memory")])
def test_an_image_that_does_not_fit(owner, fields, word):
    id = owner.on_volume()
    refused = owner.rebuild(id, owner.call.image(next(iter(fields)), **fields))
    assert refused.status == 400 and word in refused.json["badRequest"]["message"], refused
    assert owner.root(id)["status"] == "in-use"


def test_a_failure_is_told_and_can_be_repeated(owner, monkeypatch):
    id, other = owner.on_volume(), owner.call.image("other")
    host = owner.host_of(id)
    reach = owner.cloud.services.volume.reach

    def fails(_host, _image):
        from magnetar_core.errors import NoSpace
        raise NoSpace

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(owner.cloud.services.volume.worker, "reach", type(reach)(reach.hosts, reach.agents, fails))
        assert owner.rebuild(id, other).status == 202
        server = owner.call.settled(id)
    assert server["status"] == "ERROR" and owner.root(id)["status"] == "error"
    assert owner.rebuild(id, other).status == 202
    owner.call.settled(id)
    owner.check_of(id, other, host)


def test_the_action_of_the_volume_service(owner):
    volume, other = owner.volume(image_id=owner.call.image(), host="kvm1"), owner.call.image("other")
    path, new = f"{owner.api}/volumes/{volume}/action", {"OpenStack-API-Version": "volume 3.68"}
    body = {"os-reimage": {"image_id": other}}
    assert owner.call.call("POST", path, body, headers={"OpenStack-API-Version": "volume 3.67"}).status == 404
    assert owner.call.call("POST", path, {"os-reimage": {}}, headers=new).status == 400
    assert owner.call.call("POST", path, body, headers=new).status == 202
    eventually(lambda: owner.state(volume) == "available")
    assert owner.seen(volume)["volume_image_metadata"]["image_id"] == other
    id = owner.server(imageRef=owner.call.image())["id"]
    assert owner.attach(id, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    refused = owner.call.call("POST", path, body, headers=new)
    assert refused.status == 400 and "available or error" in refused.json["badRequest"]["message"]
