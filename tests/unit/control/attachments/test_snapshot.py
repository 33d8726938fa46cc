# SPDX-License-Identifier: GPL-3.0-or-later
"""createImage: an image of a server that other servers boot from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control.conductor.periodic.periodic import remove_unused_images
from magnetar_control.conductor.worker.work import HostDown
from magnetar_core.errors import Conflict, HypervisorDown
from magnetar_core.http.client import Client
from tests.support.control.build import block
from tests.support.control.snapshot import go_on, queued, unreachable
from tests.support.waiting import eventually

from .asking import Owner
from .dying import Fuse

IMAGES = "/image/v2/images"


@pytest.fixture
def maker(owner: Owner) -> Iterator[Owner]:
    """An owner whose images go with the test, but for the first."""
    kept = owner.call.image()
    yield owner
    for one in owner.call.get(IMAGES).json["images"]:
        if one["id"] != kept:
            owner.call.delete(f"{IMAGES}/{one['id']}")


def make(owner: Owner, server: str, name: str = "snap", **metadata: str) -> str:
    """Ask for an image; its uuid."""
    reply = owner.call.act(server, "createImage", {"name": name, "metadata": metadata}, "2.45")
    assert reply.status == 202, reply
    return str(reply.json["image_id"])


def image(owner: Owner, id: str) -> dict[str, Any]:
    """It."""
    found: dict[str, Any] = owner.call.get(f"{IMAGES}/{id}").json
    return found


def leftovers(owner: Owner) -> list[str]:
    """Copies that are left on hosts."""
    return [one["name"] for host in owner.cloud.hosts for one in owner.on_host("image", host)
            if one["name"].startswith("snapshot-")]


def test_an_image_of_a_server(maker: Owner) -> None:
    server = maker.server()["id"]
    id = make(maker, server, color="blue")
    assert maker.call.server(server)["OS-EXT-STS:task_state"] in (
        "image_snapshot_pending", "image_snapshot", "image_pending_upload", "image_uploading", None)
    found = maker.call.settled(server)
    assert found and found["status"] == "ACTIVE"
    made = image(maker, id)
    assert (made["status"], made["disk_format"], made["name"]) == ("active", "qcow2", "snap")
    assert (made["color"], made["image_type"], made["instance_uuid"]) == ("blue", "snapshot", server)
    assert made["size"] > 0 and leftovers(maker) == []
    content = maker.call.get(f"{IMAGES}/{id}/file").content
    assert content[:4] == b"QFI\xfb" and len(content) == made["size"]
    assert maker.server(name="copy", imageRef=id)["image"]["id"] == id


def test_whose_a_server_is_sees_the_image_that_an_admin_makes_of_it(maker: Owner) -> None:
    ann = Owner(maker.cloud, maker.cloud.caller("ann", "shop"))
    maker.call.post("/v2.1/flavors", {"flavor": {"id": "ann", "name": "ann", "ram": 64, "vcpus": 1, "disk": 1}})
    server = ann.server(flavorRef="ann")["id"]
    id = make(maker, server)
    maker.call.settled(server)
    made = image(maker, id)
    assert (made["status"], made["visibility"], made["owner"]) == ("active", "shared", maker.call.project_id)
    assert image(ann, id)["instance_uuid"] == server
    ann.call.delete(f"/v2.1/servers/{server}")
    assert ann.call.settled(server) is None


def test_what_metadata_of_an_image_may_say(maker: Owner) -> None:
    """Properties, of which the caller's count; nothing that decides whose the image is and who sees it."""
    server = maker.server()["id"]
    before = maker.call.get(IMAGES).json["images"]
    for name, value in (("visibility", "public"), ("owner", "another"), ("status", "active"), ("id", server)):
        refused = maker.call.act(server, "createImage", {"name": "snap", "metadata": {name: value}}, "2.45")
        assert refused.status == 403 and name in refused.json["forbidden"]["message"], refused
    assert maker.call.get(IMAGES).json["images"] == before
    made = image(maker, make(maker, server, image_type="golden", color="blue"))
    assert (made["image_type"], made["color"], made["instance_uuid"]) == ("golden", "blue", server)
    maker.call.settled(server)


def test_states(maker: Owner) -> None:
    server = maker.server()["id"]
    for action in ("pause", "suspend", "os-stop"):
        maker.call.act(server, action)
        maker.call.settled(server)
        id = make(maker, server, name=action)
        maker.call.settled(server)
        assert image(maker, id)["status"] == "active", action
        maker.call.act(server, {"pause": "unpause", "suspend": "resume", "os-stop": "os-start"}[action])
        maker.call.settled(server)
    old = maker.call.act(server, "createImage", {"name": "old"}, "2.44")
    assert old.status == 202 and old.headers["location"].rpartition("/")[0].endswith(IMAGES)
    again = maker.call.act(server, "createImage", {"name": "again"}, "2.44")
    assert again.status in (202, 409)
    maker.call.settled(server)
    maker.call.act(server, "rescue")
    maker.call.settled(server)
    before = maker.call.get(IMAGES).json["images"]
    assert maker.call.act(server, "createImage", {"name": "x"}).status == 409
    assert maker.call.get(IMAGES).json["images"] == before


@pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "x" * 256}, {"name": 7}, {"name": "x", "more": 1},
                                  {"name": "x", "metadata": {"a": 1}}, {"name": "x", "metadata": []}, None])
def test_bad_input(maker: Owner, body: Any) -> None:
    server = maker.server()["id"]
    before = maker.call.get(IMAGES).json["images"]
    assert maker.call.act(server, "createImage", body).status == 400
    assert maker.call.get(IMAGES).json["images"] == before


def test_a_copy_that_fails_kills_the_image_only(maker: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = maker.server()["id"]

    def refused(*_args: Any) -> None:
        raise Conflict("The host has no room for a copy.")

    monkeypatch.setattr("magnetar_control.conductor.flows.server_create_image.upload_root_disk", refused)
    id = make(maker, server)
    found = maker.call.settled(server)
    assert found and found["status"] == "ACTIVE"
    assert image(maker, id)["status"] == "killed"


def test_a_conductor_dies(maker: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, fuse = maker.server()["id"], Fuse(maker.cloud, monkeypatch)
    for at in range(1, 100, 2):
        fuse.light(at)
        id = make(maker, server, name=f"snap{at}")
        died = fuse.survive()
        assert image(maker, id)["status"] == "active", at
        assert leftovers(maker) == []
        maker.call.delete(f"{IMAGES}/{id}")
        if not died:
            break
    assert at > 10


def test_an_image_of_a_server_on_volumes(maker: Owner) -> None:
    blocks = [block("image", maker.call.image(), boot_index=0, volume_size=2, delete_on_termination=True),
              block("blank", volume_size=1, delete_on_termination=True, tag="data")]
    server = maker.server(imageRef="", block_device_mapping_v2=blocks)["id"]
    id = make(maker, server)
    eventually(lambda: image(maker, id)["status"] == "active")
    made = image(maker, id)
    mapping = json.loads(made["block_device_mapping"])
    assert (made["size"], made["bdm_v2"], made["root_device_name"]) == (0, "True", "/dev/vda")
    assert [(one["source_type"], one["boot_index"], one["volume_size"], one["tag"]) for one in mapping] == [
        ("snapshot", 0, 2, None), ("snapshot", None, 1, "data")]
    snapshots = {one["id"]: one["volume_id"] for one in
                 maker.call.get(f"{maker.api}/snapshots").json["snapshots"]}
    assert set(snapshots) == {one["snapshot_id"] for one in mapping}
    assert set(snapshots.values()) == {one["volumeId"] for one in maker.attached(server)}
    single = maker.volume(size=2, imageRef=id)  # it ended in error: "The image is empty."
    shown = maker.seen(single)
    assert shown and shown["snapshot_id"] == mapping[0]["snapshot_id"]
    assert maker.call.delete(f"{maker.api}/volumes/{single}").status == 202
    copy = maker.server(name="copy", imageRef=id)["id"]
    assert len(maker.attached(copy)) == 2
    for one in maker.attached(copy):
        volume = maker.seen(one["volumeId"])
        assert volume and volume["snapshot_id"] in snapshots
    maker.call.delete(f"/v2.1/servers/{copy}")
    eventually(lambda: len(maker.call.get(f"{maker.api}/volumes").json["volumes"]) == 2)


@pytest.mark.parametrize("on_volume", [False, True])
def test_who_requires_it_has_no_image_that_is_not_frozen(maker: Owner, on_volume: bool) -> None:
    """os_require_quiesce: guests that are paused cannot freeze their file systems."""
    frozen = maker.call.image("frozen", os_require_quiesce="yes")
    blocks = [block("image", frozen, boot_index=0, volume_size=2, delete_on_termination=True)]
    server = maker.server(**({"imageRef": "", "block_device_mapping_v2": blocks} if on_volume else {
        "imageRef": frozen}))["id"]
    id = make(maker, server)
    maker.call.settled(server)
    assert image(maker, id)["status"] == "active"
    maker.call.act(server, "pause")
    maker.call.settled(server)
    id = make(maker, server)
    found = maker.call.settled(server)
    assert found and found["status"] == "PAUSED"
    assert maker.call.get(f"{IMAGES}/{id}").json.get("status") in (None, "killed", "deleted")
    events = maker.call.get(f"/v2.1/servers/{server}/os-instance-actions", "2.100").json["instanceActions"]
    request = next(one["request_id"] for one in events if one["action"] == "createImage")
    told = str(maker.call.get(f"/v2.1/servers/{server}/os-instance-actions/{request}", "2.100").json)
    assert "os_require_quiesce" in told and "it is paused: let it run" in told
    maker.call.delete(f"/v2.1/servers/{server}")


def test_a_volume_of_another_host_cannot_be_copied(maker: Owner) -> None:
    blocks = [block("image", maker.call.image(), boot_index=0, volume_size=2, delete_on_termination=True)]
    server = maker.server(imageRef="", block_device_mapping_v2=blocks)["id"]
    far = maker.volume(host=maker.other(maker.host_of(server)))
    maker.attach(server, far)
    eventually(lambda: maker.state(far) == "in-use")
    id = make(maker, server)
    eventually(lambda: image(maker, id)["status"] == "killed")
    found = maker.call.settled(server)
    assert found and found["status"] == "ACTIVE"


def test_a_copy_that_the_host_keeps_does_not_fail_the_image(maker: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, delete = maker.server()["id"], Client.delete

    def kept(client: Client, kind: str, key: str, **more: Any) -> Any:
        if key.startswith("snapshot-"):
            raise HypervisorDown("libvirt does not answer.")
        return delete(client, kind, key, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "delete", kept)
        id = make(maker, server)
        maker.call.settled(server)
        assert image(maker, id)["status"] == "active"
        (last, *_others) = maker.call.get(f"/v2.1/servers/{server}/os-instance-actions").json["instanceActions"]
        assert (last["action"], last["message"]) == ("createImage", None)
        assert leftovers(maker) == [f"snapshot-{id}"]
    with maker.cloud.parts.agents.client(maker.cloud.hosts[maker.host_of(server)]) as client:
        client.event("server", server, "create_image", {"name": f"snapshot-{server}"})  # somebody else's
    remove_unused_images(maker.cloud.parts.working)
    assert leftovers(maker) == [f"snapshot-{server}"]
    with maker.cloud.parts.agents.client(maker.cloud.hosts[maker.host_of(server)]) as client:
        client.delete("image", f"snapshot-{server}")


def test_an_image_that_failed_after_its_content_came_is_whole(maker: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a service takes the content and then does not say so."""
    server, upload = maker.server()["id"], maker.cloud.services.image.upload

    def unsaid(*args: Any, **more: Any) -> None:
        upload(*args, **more)
        raise Conflict("The image service does not answer.")

    monkeypatch.setattr(maker.cloud.services.image, "upload", unsaid)
    id = make(maker, server)
    found = maker.call.settled(server)
    assert found and found.get("fault") is None
    assert image(maker, id)["status"] == "active" and leftovers(maker) == []


@pytest.mark.parametrize("pause", [0.0, 3.0])
def test_a_server_that_goes_while_its_image_waits(maker: Owner, monkeypatch: pytest.MonkeyPatch, pause: float) -> None:
    """Before its deletion begins, or after it has ended."""
    server, tried = maker.server()["id"], []

    def away(*_args: Any) -> None:
        tried.append(1)
        raise HostDown("The agent does not answer.")

    monkeypatch.setattr("magnetar_control.conductor.flows.server_create_image.upload_root_disk", away)
    monkeypatch.setattr("magnetar_control.conductor.worker.retry.AGAIN", pause)
    id = make(maker, server)
    eventually(lambda: tried)
    maker.call.delete(f"/v2.1/servers/{server}")
    eventually(lambda: image(maker, id)["status"] == "killed")


def test_snapshots_of_an_image_that_fails_go(maker: Owner) -> None:
    blocks = [block("image", maker.call.image(), boot_index=0, volume_size=2, delete_on_termination=True),
              block("blank", volume_size=1, delete_on_termination=True)]
    server = maker.server(imageRef="", block_device_mapping_v2=blocks)["id"]
    quota = f"{maker.api}/os-quota-sets/{maker.call.project_id}"
    assert maker.call.put(quota, {"quota_set": {"snapshots": 1}}).status == 200
    try:
        id = make(maker, server)
        eventually(lambda: image(maker, id)["status"] == "killed")
        eventually(lambda: maker.call.get(f"{maker.api}/snapshots").json["snapshots"] == [])
        assert maker.on_host("volume_snapshot", maker.host_of(server)) == []
    finally:
        maker.call.put(quota, {"quota_set": {"snapshots": 10}})


def test_images_of_servers_are_within_the_quota(maker: Owner) -> None:
    """Their number is known at once, their bytes when they come."""
    server, service = maker.server()["id"], maker.cloud.services.image

    def limited(**limits: int | None) -> None:
        with service.database.write() as connection:
            service.quota.set(connection, maker.call.project_id, limits)

    try:
        limited(image_count_total=len(maker.call.get(IMAGES).json["images"]))
        refused = maker.call.act(server, "createImage", {"name": "snap"}, "2.45")
        assert refused.status == 403 and "image_count_total is over limit" in str(refused.json), refused
        limited(image_count_total=None, image_size_total=0)
        id = make(maker, server)
        eventually(lambda: image(maker, id)["status"] == "killed")
        maker.call.settled(server)
        assert leftovers(maker) == []
    finally:
        limited(image_count_total=None, image_size_total=None)


def test_an_image_of_a_server_never_fills_the_disk(maker: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = maker.server()["id"]
    monkeypatch.setattr(maker.cloud.services.image.files, "reserve", 2**60)
    id = make(maker, server)
    eventually(lambda: image(maker, id)["status"] == "killed")
    maker.call.settled(server)
    assert not list(maker.cloud.services.image.files.folder.glob(f"{id}*"))


def test_an_admin_makes_an_image_of_the_server_of_another_project(maker: Owner) -> None:
    other = Owner(maker.cloud, maker.cloud.caller("jane", "janes"))
    maker.call.post("/v2.1/flavors", {"flavor": {"id": "disk", "name": "disk", "vcpus": 1, "ram": 64, "disk": 1}})
    source = other.call.image("janes")
    server = other.server(imageRef=source, flavorRef="disk")["id"]
    try:
        id = make(maker, server)
        other.call.settled(server)
        assert image(maker, id)["status"] == "active"
    finally:
        other.clear()
        other.call.delete(f"{IMAGES}/{source}")
        maker.call.delete("/v2.1/flavors/disk")


def test_an_image_whose_server_is_deleted_before_it_is_made_is_killed(maker: Owner) -> None:
    server = maker.server()["id"]
    with pytest.MonkeyPatch.context() as patched:
        unreachable(patched)
        id = make(maker, server)
        eventually(lambda: queued(maker, server, "createImage"))
    assert image(maker, id)["status"] == "queued"
    assert maker.call.delete(f"/v2.1/servers/{server}").status == 204
    assert maker.call.settled(server) is None
    assert image(maker, id)["status"] == "killed"


def test_a_volume_whose_server_is_deleted_before_it_has_it_is_free(maker: Owner) -> None:
    server, volume = maker.server()["id"], maker.volume()
    with pytest.MonkeyPatch.context() as patched:
        unreachable(patched)
        assert maker.attach(server, volume).status == 200
        eventually(lambda: queued(maker, server, "attach_volume"))
    assert maker.call.delete(f"/v2.1/servers/{server}").status == 204
    assert maker.call.settled(server) is None
    assert maker.state(volume) == "available"


def test_a_reset_of_the_state_leaves_nothing_behind(maker: Owner) -> None:
    """What is queued is ended by its own flow: the image gets content, or does not wait for it any more; a volume is
    attached, or free. A deletion goes on."""
    server, volume = maker.server()["id"], maker.volume()
    with pytest.MonkeyPatch.context() as patched:
        unreachable(patched)
        assert maker.attach(server, volume).status == 200
        eventually(lambda: queued(maker, server, "attach_volume"))
        id = make(maker, server)
        assert maker.call.act(server, "os-resetState", {"state": "active"}).status == 202
    go_on(maker, server)
    eventually(lambda: image(maker, id)["status"] in ("active", "killed"))
    eventually(lambda: maker.state(volume) in ("in-use", "available"))
    with pytest.MonkeyPatch.context() as patched:
        unreachable(patched)
        assert maker.call.delete(f"/v2.1/servers/{server}").status == 204
        eventually(lambda: queued(maker, server, "delete"))
        assert maker.call.act(server, "os-resetState", {"state": "active"}).status == 202
        assert maker.call.server(server)["OS-EXT-STS:task_state"] == "deleting"
        assert queued(maker, server, "delete")
    go_on(maker, server)
    assert maker.call.settled(server) is None
