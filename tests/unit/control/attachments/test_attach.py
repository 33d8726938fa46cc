# SPDX-License-Identifier: GPL-3.0-or-later
"""os-volume_attachments: volumes come to servers and go, whichever host they lie on."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from sqlalchemy import select

from magnetar_control.conductor.flows import interface_attach
from magnetar_control.conductor.steps import block_devices
from magnetar_control.conductor.worker.work import HostDown
from magnetar_control.store.engine.tables import actions
from magnetar_core.errors import Conflict, MagnetarError
from tests.support.waiting import eventually

from .asking import Owner


@pytest.mark.parametrize("near", [True, False], ids=["same host", "other host"])
def test_a_volume_is_attached_and_detached(owner: Owner, near: bool) -> None:
    server = owner.server()["id"]
    host = owner.host_of(server)
    place = host if near else owner.other(host)
    volume = owner.volume(host=place, name="data")
    reply = owner.attach(server, volume, tag="db", delete_on_termination=False)
    assert reply.status == 200, reply
    assert reply.json["volumeAttachment"] == {"id": volume, "volumeId": volume, "serverId": server, "tag": "db",
                                              "device": "/dev/vdb", "delete_on_termination": False}
    eventually(lambda: owner.state(volume) == "in-use")
    seen = owner.seen(volume)
    assert seen and [(one["server_id"], one["device"]) for one in seen["attachments"]] == [(server, "/dev/vdb")]
    [one] = owner.attached(server)
    assert one["attachment_id"] == seen["attachments"][0]["attachment_id"]
    assert uuid.UUID(one["bdm_uuid"]) and "id" not in one
    [plugged] = owner.on_host("volume_attachment", host)
    assert (plugged["server"], plugged["volume"], plugged["device"], plugged["tag"]) == (server, volume, "vdb", "db")
    assert len(owner.on_host("volume_export", place)) == (not near)
    assert owner.call.server(server)["os-extended-volumes:volumes_attached"] == [
        {"id": volume, "delete_on_termination": False}]
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")
    eventually(lambda: owner.attached(server) == [])
    assert owner.on_host("volume_attachment", host) == owner.on_host("volume_export", place) == []


def test_views_follow_the_versions(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    owner.attach(server, volume, "2.49", tag="t")
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    keys = {version: set(owner.call.get(path, version).json["volumeAttachment"])
            for version in ("2.1", "2.69", "2.70", "2.79", "2.88", "2.89", "2.101")}
    old = {"id", "serverId", "volumeId", "device"}
    assert keys["2.1"] == keys["2.69"] == old
    assert keys["2.70"] == old | {"tag"}
    assert keys["2.79"] == keys["2.88"] == old | {"tag", "delete_on_termination"}
    assert keys["2.89"] == keys["2.101"] == (keys["2.88"] - {"id"}) | {"attachment_id", "bdm_uuid"}


def test_since_2_101_the_answer_is_empty(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    reply = owner.attach(server, volume, "2.101")
    assert (reply.status, reply.content) == (202, b"")
    eventually(lambda: owner.state(volume) == "in-use")


def test_lists_have_pages(owner: Owner) -> None:
    server = owner.server()["id"]
    volumes = [owner.volume() for _number in range(3)]
    for volume in volumes:
        assert owner.attach(server, volume).status == 200
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    found = owner.call.get(path + "?limit=1&offset=1").json["volumeAttachments"]
    assert [one["volumeId"] for one in found] == volumes[1:2]
    assert [one["device"] for one in owner.attached(server)] == ["/dev/vdb", "/dev/vdc", "/dev/vdd"]
    assert owner.call.get(path + "?limit=-1").status == 400
    assert owner.call.get(path + "?sort=x", "2.75").status == 400
    eventually(lambda: [owner.state(volume) for volume in volumes] == ["in-use"] * 3)


def test_whether_a_volume_goes_with_its_server_can_change(owner: Owner) -> None:
    server, stays, goes = owner.server()["id"], owner.volume(), owner.volume()
    owner.attach(server, stays, delete_on_termination=True)
    owner.attach(server, goes)
    path = f"/v2.1/servers/{server}/os-volume_attachments/"
    for volume, flag in ((stays, False), (goes, True)):
        eventually(lambda volume=volume: owner.state(volume) == "in-use")
        body = {"volumeAttachment": {"volumeId": volume, "delete_on_termination": flag}}
        assert owner.call.put(path + volume, body, "2.85").status == 202
        assert owner.call.get(path + volume, "2.85").json["volumeAttachment"]["delete_on_termination"] is flag
    wrong = {"volumeAttachment": {"volumeId": stays, "device": "/dev/vdz"}}
    assert owner.call.put(path + stays, wrong, "2.85").status == 400
    for version in ("2.84", "2.85"):  # a swap for a volume that is attached
        assert owner.call.put(path + stays, {"volumeAttachment": {"volumeId": goes}}, version).status == 400
    assert owner.call.put(path + stays, {"volumeAttachment": {"volumeId": stays, "tag": "x"}}, "2.84").status == 400
    owner.call.delete(f"/v2.1/servers/{server}")
    eventually(lambda: owner.state(goes) is None)
    eventually(lambda: owner.state(stays) == "available")


@pytest.mark.parametrize(("body", "version", "status"), [
    ({}, "2.1", 400), ({"volumeId": "x"}, "2.1", 400), ({"volumeId": None}, "2.1", 400),
    ({"tag": "t"}, "2.48", 400), ({"tag": "a,b"}, "2.49", 400), ({"tag": "t" * 61}, "2.49", 400),
    ({"delete_on_termination": True}, "2.78", 400), ({"delete_on_termination": "x"}, "2.79", 400),
    ({"device": "vdb"}, "2.1", 400), ({"device": 7}, "2.1", 400), ({"more": 1}, "2.1", 400),
    ({"volumeId": str(uuid.uuid4())}, "2.1", 404)])
def test_bad_input_is_refused_and_changes_nothing(owner: Owner, body: dict[str, object], version: str,
                                                  status: int) -> None:
    server = owner.server()["id"]
    volume = owner.volume()
    want = {**({"volumeId": volume} if "volumeId" not in body and body else {}), **body}
    reply = owner.call.post(f"/v2.1/servers/{server}/os-volume_attachments", {"volumeAttachment": want}, version)
    assert reply.status == status, reply
    assert owner.state(volume) == "available"
    assert owner.attached(server) == []


def test_a_volume_is_in_one_server_only_unless_made_for_several(owner: Owner) -> None:
    one, two = owner.server(name="one")["id"], owner.server(name="two")["id"]
    volume = owner.volume()
    assert owner.attach(one, volume).status == 200
    again = owner.attach(one, volume)
    assert again.status == 400 and "already attached" in again.json["badRequest"]["message"]
    assert owner.attach(two, volume).status == 400
    assert owner.attached(two) == []
    several = owner.volume(host=owner.host_of(one), multiattach=True)
    assert owner.attach(one, several, "2.59").status == 400
    for server in (one, two):
        assert owner.attach(server, several, "2.60").status == 200
        eventually(lambda server=server: _in(owner, several, server) and owner.state(several) == "in-use")
    assert owner.detach(one, several).status == 202
    eventually(lambda: not _in(owner, several, one))
    assert owner.state(several) == "in-use"


def _in(owner: Owner, volume: str, server: str) -> bool:
    """Whether the hosts have it so."""
    return any(one["server"] == server and one["volume"] == volume
               for host in owner.cloud.hosts for one in owner.on_host("volume_attachment", host))


def test_others_volumes_are_not_there(owner: Owner) -> None:
    server = owner.server()["id"]
    stranger = Owner(owner.cloud, owner.cloud.caller("mallory", "elsewhere"))
    theirs, mine = stranger.volume(), owner.volume()
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    assert stranger.call.get(path).status == 404
    assert stranger.attach(server, theirs).status == 404
    assert owner.attach(server, mine).status == 200
    assert stranger.call.delete(f"{path}/{mine}").status == 404
    eventually(lambda: owner.state(mine) == "in-use")
    stranger.call.delete(f"{stranger.api}/volumes/{theirs}")
    eventually(lambda: stranger.state(theirs) is None)


def test_states_that_do_not_allow_it(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    owner.call.act(server, "suspend")
    owner.call.settled(server)
    assert owner.attach(server, volume).status == 409
    assert owner.detach(server, volume).status == 409
    owner.call.act(server, "resume")
    owner.call.settled(server)
    assert owner.detach(server, volume).status == 404
    owner.call.act(server, "os-stop")
    owner.call.settled(server)
    assert owner.attach(server, volume).status == 200  # while it is off, too
    eventually(lambda: owner.state(volume) == "in-use")
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")


def test_a_volume_that_cannot_be_had_is_given_up(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, volume = owner.server()["id"], owner.volume()

    def refused(*_args: Any) -> Any:
        raise Conflict("The host has no room for a disk.")

    monkeypatch.setattr("magnetar_control.conductor.flows.volume_attach.connect_volume", refused)
    assert owner.attach(server, volume).status == 200
    eventually(lambda: owner.state(volume) == "available")
    eventually(lambda: owner.attached(server) == [])
    assert owner.call.server(server)["status"] == "ACTIVE"


def test_a_detached_volume_is_detaching_before_the_answer(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait until a volume is no longer in-use, and take the next status for the end."""
    server, volume, go = owner.server()["id"], owner.volume(), threading.Event()
    owner.attach(server, volume)
    eventually(lambda: owner.state(volume) == "in-use")
    real = block_devices.agent_flow.detach_remote_volume

    def waits(*args: Any, **more: Any) -> Any:
        assert go.wait(20)
        return real(*args, **more)

    monkeypatch.setattr("magnetar_control.conductor.steps.block_devices.agent_flow.detach_remote_volume", waits)
    assert owner.detach(server, volume).status == 202
    assert owner.state(volume) == "detaching"
    again = owner.detach(server, volume)
    assert again.status == 400 and "detaching" in again.json["badRequest"]["message"]
    go.set()
    eventually(lambda: owner.state(volume) == "available")


@pytest.mark.parametrize("action", ["detach", "swap"])
def test_a_reset_of_the_state_leaves_no_volume_between_two_states(owner: Owner, monkeypatch: pytest.MonkeyPatch,
                                                                  action: str) -> None:
    """What waits in the queue is dropped with a reset: its volumes are as they were before it was asked for."""
    server, first, second = owner.server()["id"], owner.volume(), owner.volume()
    owner.attach(server, first)
    eventually(lambda: owner.state(first) == "in-use")
    begun, go = threading.Event(), threading.Event()

    def waits(*_args: Any, **_more: Any) -> Any:
        begun.set()
        assert go.wait(20)
        raise Conflict("No.")

    with monkeypatch.context() as patch:
        patch.setattr("magnetar_control.conductor.flows.volume_attach.connect_volume", waits)
        third = owner.volume()
        assert owner.attach(server, third).status == 200  # the next action of the server waits for this one
        assert begun.wait(60)
        reply = owner.detach(server, first) if action == "detach" else owner.swap(server, first, second)
        assert reply.status == 202 and owner.state(first) == "detaching"
        assert owner.call.act(server, "os-resetState", {"state": "active"}).status == 202
        go.set()
        eventually(lambda: (owner.state(first), owner.state(second), owner.state(third)) == (
            "in-use", "available", "available"))
    assert [one["volumeId"] for one in owner.attached(server)] == [first]
    assert owner.detach(server, first).status == 202
    eventually(lambda: owner.state(first) == "available")


def test_a_guest_that_does_not_let_go_keeps_its_volume(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, volume = owner.server()["id"], owner.volume()
    owner.attach(server, volume)
    eventually(lambda: owner.state(volume) == "in-use")

    def refused(*_args: Any, **_more: Any) -> Any:
        raise Conflict("The guest did not let go of it.")

    with monkeypatch.context() as patch:
        patch.setattr("magnetar_control.conductor.steps.block_devices.agent_flow.detach_remote_volume", refused)
        assert owner.detach(server, volume).status == 202
        eventually(lambda: _last(owner, server)["message"] == "Error")
    assert _last(owner, server)["action"] == "detach_volume"
    eventually(lambda: owner.state(volume) == "in-use")
    assert [one["volumeId"] for one in owner.attached(server)] == [volume]
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")


def test_a_detachment_that_fails_after_the_guest_let_go_is_tried_again(
        owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume is the guest's no longer: it must not stay in use."""
    server, volume = owner.server()["id"], owner.volume()
    owner.attach(server, volume)
    eventually(lambda: owner.state(volume) == "in-use")
    real, tried = block_devices.agent_flow.detach_remote_volume, []

    def fails_once(*args: Any, **more: Any) -> Any:
        answer = real(*args, **more)
        tried.append(answer)
        if len(tried) == 1:
            raise MagnetarError
        return answer

    monkeypatch.setattr("magnetar_control.conductor.steps.block_devices.agent_flow.detach_remote_volume",
                        fails_once)
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")
    assert owner.attached(server) == [] and len(tried) == 2


def test_a_nic_whose_detachment_fails_after_the_guest_let_go_is_tried_again(
        owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = owner.server()["id"]
    path = f"/v2.1/servers/{server}/os-interface"
    port = owner.call.post(path, {"interfaceAttachment": {}}).json["interfaceAttachment"]["port_id"]
    real, tried = interface_attach._release, []

    def fails_once(*args: Any, **options: Any) -> None:
        tried.append(args)
        if len(tried) == 1:
            raise MagnetarError
        real(*args, **options)

    monkeypatch.setattr(interface_attach, "_release", fails_once)
    assert owner.call.call("DELETE", f"{path}/{port}").status == 202
    eventually(lambda: port not in [one["port_id"] for one in owner.call.get(path).json["interfaceAttachments"]])
    eventually(lambda: len(tried) == 2)


@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_a_server_is_deleted_whose_host_fell_silent_meanwhile(owner: Owner, monkeypatch: pytest.MonkeyPatch,
                                                              verb: str) -> None:
    """What was being done then is not tried until the host returns: the deletion would wait for it."""
    server, volume, begun, go = owner.server()["id"], owner.volume(), threading.Event(), threading.Event()
    if verb == "detach":
        owner.attach(server, volume)
        eventually(lambda: owner.state(volume) == "in-use")

    def silent(*_args: Any, **_more: Any) -> Any:
        begun.set()
        assert go.wait(30)
        raise HostDown("The agent does not answer.")

    monkeypatch.setattr(block_devices.agent_flow, f"{verb}_remote_volume", silent)
    getattr(owner, verb)(server, volume)
    assert begun.wait(30)
    assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
    go.set()
    eventually(lambda: owner.state(volume) == "available")
    eventually(lambda: owner.call.get(f"/v2.1/servers/{server}").status == 404)
    database = owner.cloud.parts.working.database
    with database.read() as connection:
        said = connection.execute(select(actions.c.message).where(
            actions.c.server_id == server, actions.c.action == f"{verb}_volume").order_by(actions.c.id.desc())).scalar()
    assert said == "Error"


def _last(owner: Owner, server: str) -> dict[str, Any]:
    """The server's newest action."""
    database = owner.cloud.parts.working.database
    with database.read() as connection:
        return dict(connection.execute(select(actions).where(actions.c.server_id == server).order_by(
            actions.c.id.desc()).limit(1)).mappings().one())


def test_one_request_id_may_come_with_many_requests(owner: Owner) -> None:
    server, volumes = owner.server()["id"], [owner.volume(), owner.volume()]
    headers = {"X-OpenStack-Request-ID": f"req-{uuid.uuid4()}"}  # as clients send their global request id
    for volume in volumes:
        reply = owner.call.call("POST", f"/v2.1/servers/{server}/os-volume_attachments",
                                {"volumeAttachment": {"volumeId": volume}}, "2.60", headers)
        assert reply.status == 200, reply
        assert reply.headers["x-openstack-request-id"] != headers["X-OpenStack-Request-ID"]
    eventually(lambda: [owner.state(volume) for volume in volumes] == ["in-use"] * 2)


def test_the_volume_service_frees_nothing_that_a_server_has(owner: Owner) -> None:
    """Its host would go on with the disk, and the next server gets it (CVE-2023-2088)."""
    server, volume = owner.server()["id"], owner.volume()
    assert owner.attach(server, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    id = owner.attached(server)[0]["attachment_id"]
    latest = {"OpenStack-API-Version": "volume 3.70"}
    refused = owner.call.call("DELETE", f"{owner.api}/attachments/{id}", headers=latest)
    assert refused.status == 409 and server in refused.json["conflictingRequest"]["message"]
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")
    made = owner.call.call("POST", f"{owner.api}/attachments", {"attachment": {
        "volume_uuid": volume, "instance_uuid": server}}, headers=latest).json["attachment"]
    assert owner.call.call("DELETE", f"{owner.api}/attachments/{made['id']}", headers=latest).status == 200


def test_an_attachment_of_a_locked_server_stays_as_it_is(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    member = owner.cloud.caller("locksmith", "admin", "member")
    assert owner.attach(server, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    body = {"volumeAttachment": {"volumeId": volume, "delete_on_termination": True}}
    owner.call.act(server, "lock")
    refused = member.put(path, body, "2.85")
    assert refused.status == 409 and "is locked" in refused.json["conflictingRequest"]["message"]
    assert not owner.attached(server)[0]["delete_on_termination"]
    owner.call.act(server, "unlock")
    assert member.put(path, body, "2.85").status == 202
    assert owner.attached(server)[0]["delete_on_termination"]


def test_no_server_has_more_disks_than_the_settings_say(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, volumes = owner.server()["id"], [owner.volume(), owner.volume()]
    monkeypatch.setitem(vars(owner.cloud.parts.settings), "max_disk_devices_to_attach", 2)
    assert owner.attach(server, volumes[0]).status == 200
    refused = owner.attach(server, volumes[1])
    assert refused.status == 403 and "maximum allowed number of disk" in refused.json["forbidden"]["message"]
    assert owner.state(volumes[1]) == "available"
    eventually(lambda: owner.state(volumes[0]) == "in-use")
    blank = {"source_type": "blank", "destination_type": "volume", "volume_size": 1}
    made = {"name": "x", "flavorRef": "1", "networks": "none", "imageRef": owner.call.image()}
    for count, status in ((2, 403), (1, 202)):
        given = {**made, "block_device_mapping_v2": [
            {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": owner.call.image()},
            *({**blank, "boot_index": None} for _each in range(count))]}
        assert owner.call.post("/v2.1/servers", {"server": given}, "2.60").status == status
