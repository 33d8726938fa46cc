# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever line a conductor dies at, volumes and ports end where they were to end, once, and none is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_control.compute import held_action
from magnetar_control.conductor.steps import nics
from magnetar_core.errors import Conflict
from tests.support.control.build import block, root
from tests.support.waiting import eventually

from .asking import NETWORK, Owner, new_port
from .dying import Fuse

pytestmark = pytest.mark.slow  # it needs minutes


@pytest.fixture
def fuse(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """A conductor that can die."""
    return Fuse(owner.cloud, monkeypatch)


@pytest.mark.parametrize("near", [True, False], ids=["same host", "other host"])
def test_attaching_and_detaching(owner: Owner, fuse: Fuse, near: bool) -> None:
    server = owner.server()["id"]
    host = owner.host_of(server)
    volume = owner.volume(host=host if near else owner.other(host))
    deaths = 0
    for at in range(1, 100):
        fuse.light(at)
        assert owner.attach(server, volume).status == 200
        died = fuse.survive()
        assert owner.state(volume) == "in-use", at
        [one] = owner.attached(server)
        [plugged] = owner.on_host("volume_attachment", host)
        assert (one["volumeId"], one["device"]) == (plugged["volume"], f"/dev/{plugged['device']}")
        fuse.light(at)
        assert owner.detach(server, volume).status == 202
        died_again = fuse.survive()
        assert owner.state(volume) == "available", at
        assert owner.attached(server) == owner.on_host("volume_attachment", host) == []
        assert [one for name in owner.cloud.hosts for one in owner.on_host("volume_export", name)] == []
        deaths += died + died_again
        if not (died or died_again):
            break
    assert deaths > 20


def test_building_with_volumes(owner: Owner, fuse: Fuse) -> None:
    kept = owner.volume(host="kvm1")
    blocks = [root(owner), block("volume", kept), block("blank", volume_size=1, delete_on_termination=True)]
    body = {"server": {"name": "web1", "flavorRef": "1", "networks": "none", "imageRef": owner.call.image(),
                       "block_device_mapping_v2": blocks}}
    for at in range(1, 200, 5):
        fuse.light(at)
        server = owner.call.post("/v2.1/servers", body, "2.60").json["server"]["id"]
        died = fuse.survive()
        found = owner.call.settled(server)
        assert found and found["status"] == "ACTIVE", (at, found)
        mine = [one["volumeId"] for one in owner.attached(server)]
        assert mine[0] == kept
        volumes = {one["id"] for one in owner.call.get(f"{owner.api}/volumes").json["volumes"]}
        assert volumes == set(mine), at
        assert [owner.state(id) for id in mine] == ["in-use"] * 2
        plugged = owner.on_host("volume_attachment", owner.host_of(server))
        assert {one["volume"] for one in plugged} == set(mine)
        owner.call.delete(f"/v2.1/servers/{server}")
        assert owner.call.settled(server) is None
        if not died:
            break
    assert at > 20


def test_an_api_that_dies_leaves_nothing_behind(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, volume = owner.server()["id"], owner.volume()
    monkeypatch.setattr(held_action, "HELD", 0.05)
    reserve, tries = owner.cloud.services.volume.reserve, []

    def dies(*args: Any, **more: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise SystemError("the process ends here")
        return reserve(*args, **more)

    monkeypatch.setattr(owner.cloud.services.volume, "reserve", dies)
    assert owner.attach(server, volume).status == 500
    eventually(lambda: owner.state(volume) == "in-use")  # a conductor goes on with it
    assert [one["volumeId"] for one in owner.attached(server)] == [volume]


def test_deleting_a_server_with_volumes(owner: Owner, fuse: Fuse) -> None:
    kept = owner.volume(host="kvm1")
    blocks = [root(owner), block("volume", kept), block("blank", volume_size=1, delete_on_termination=True)]
    for at in range(1, 100, 2):
        server = owner.server(imageRef=owner.call.image(), block_device_mapping_v2=blocks)["id"]
        fuse.light(at)
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
        died = fuse.survive()
        assert owner.call.get(f"/v2.1/servers/{server}").status == 404, at
        eventually(lambda: [one["id"] for one in owner.call.get(f"{owner.api}/volumes").json["volumes"]] == [kept])
        assert owner.state(kept) == "available"
        for host in owner.cloud.hosts:
            assert owner.on_host("volume_attachment", host) == owner.on_host("volume_export", host) == []
        if not died:
            break
    assert at > 5


@pytest.mark.parametrize("well", [True, False], ids=["built", "refused"])
def test_building_with_a_named_port(owner: Owner, fuse: Fuse, monkeypatch: pytest.MonkeyPatch, well: bool) -> None:
    port, image = new_port(owner), owner.call.image()
    body = {"server": {"name": "web1", "flavorRef": "1", "networks": [{"port": port}], "imageRef": image}}

    def refuse(*_asked: Any) -> None:
        raise Conflict("Nothing is left.", everywhere=True)

    def device() -> str:
        return str(owner.call.get(f"{NETWORK}/ports/{port}").json["port"]["device_id"])

    if not well:
        monkeypatch.setattr(nics, "allocate_nics", refuse)
    for at in range(1, 100):
        fuse.light(at)
        reply = owner.call.post("/v2.1/servers", body, "2.60")
        assert reply.status == 202, (at, reply)
        server = reply.json["server"]["id"]
        died = fuse.survive()
        found = owner.call.settled(server)
        assert found and found["status"] == ("ACTIVE" if well else "ERROR"), (at, found)
        assert device() == (server if well else ""), at
        fuse.light(at)
        owner.call.delete(f"/v2.1/servers/{server}")
        died_again = fuse.survive()
        assert owner.call.settled(server) is None
        assert device() == "", at
        if not (died or died_again):
            break
    assert at > 10
    assert owner.call.delete(f"{NETWORK}/ports/{port}").status == 204
