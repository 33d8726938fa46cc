# SPDX-License-Identifier: GPL-3.0-or-later
"""Images, by the agents' protocol for a cloud."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from magnetar_control.api.v1.image import read_image_head
from magnetar_core.image_format import HEAD, detect_image_format
from tests.support.control.cloud import Cloud
from tests.support.control.servers import ensure, verbs
from tests.unit.core.images import CPIO, iso, kernel, qcow2, sparse_vmdk, vmdk


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, links=True) as made:
        made.admin.image()
        yield made


def test_an_image_and_its_content(cloud: Cloud) -> None:
    admin, content = cloud.admin, b"\1" * 71680
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    want = {"source": {"upload": True}, "checksum": digest, "min_ram": 64, "properties": {"os_distro": "debian"}}
    made = ensure(admin, "image/up", want)
    assert made.json["resource"]["status"] == "queued" and verbs(made) == ["record"]
    octets = {"Content-Type": "application/octet-stream"}
    refused = admin.call("PUT", "/v1/image/up/data", b"else", headers=octets)
    assert refused.status == 400 and refused.json["error"]["code"] == "image-refused", refused
    assert admin.get("/v1/image/up").json["status"] == "queued"
    sent = admin.call("PUT", "/v1/image/up/data?wait=5", content, headers=octets)
    assert verbs(sent) == ["receive"] and sent.json["resource"]["status"] == "active"
    assert sent.json["resource"]["disk_format"] == "raw" and sent.json["resource"]["checksum"] == digest
    assert admin.get("/v1/image/up/data").content == content
    assert not ensure(admin, "image/up", want).json["changed"]
    changed = ensure(admin, "image/up", {"properties": {"a": "b"}, "description": "text", "min_ram": 0})
    assert changed.json["resource"]["properties"] == {"a": "b"} and changed.json["resource"]["description"] == "text"
    assert ensure(admin, "image/up", {"source": {"url": "https://example.org/x"}}).status == 400
    for key in ("image/up", "image/other"):
        assert ensure(admin, key, {"properties": {"visibility": "public"}}).status == 403
    assert verbs(admin.delete("/v1/image/up")) == ["drop", "forget"]


@pytest.mark.parametrize("format", [None, "raw"], ids=["found", "said"])
def test_an_image_without_content_takes_another_file(cloud: Cloud, format: str | None) -> None:
    """An upload that broke off says nothing about the next one."""
    admin, first, second = cloud.admin, b"\1" * 71680, qcow2()
    one, other = ({"source": {"upload": True}, "checksum": "sha256:" + hashlib.sha256(content).hexdigest()}
                  for content in (first, second))
    octets = {"Content-Type": "application/octet-stream"}
    ensure(admin, "image/broken", {**one, **({"disk_format": format} if format else {})})
    assert admin.call("PUT", "/v1/image/broken/data", first[:-512], headers=octets).status == 400  # it counts as raw
    assert ensure(admin, "image/broken", one).json["changed"] is False
    for dry_run in (True, False):
        changed = ensure(admin, "image/broken", other, dry_run=dry_run)
        assert verbs(changed) == ["record"], changed
        assert {leaf["path"] for leaf in changed.json["diff"]} == {"checksum", "disk_format"}
    sent = admin.call("PUT", "/v1/image/broken/data?wait=5", second, headers=octets)
    assert sent.json["resource"]["disk_format"] == "qcow2", sent
    assert ensure(admin, "image/broken", one).json["error"]["code"] == "immutable"
    again = ensure(admin, "image/broken", {**one, "min_ram": 1}, on_immutable="recreate")
    assert again.json["resource"]["status"] == "queued" and again.json["resource"]["disk_format"] is None, again
    assert admin.call("PUT", "/v1/image/broken/data?wait=5", first, headers=octets).status == 200
    assert admin.delete("/v1/image/broken").json["changed"]


def test_an_image_that_a_quota_has_no_room_for_is_refused_in_check_mode_too(cloud: Cloud) -> None:
    caller = cloud.caller("mia", "full")

    def limited(**limits: int) -> None:
        with cloud.services.image.database.write() as connection:
            cloud.services.image.quota.set(connection, caller.project_id, limits)

    def ensured(name: str, status: int, size: int = 4 * 2**20, said: str = "", **more: object) -> None:
        want = {"source": {"upload": True, "size": size}, "checksum": f"sha256:{size:064x}"}
        for dry_run in (True, False):
            reply = ensure(caller, f"image/{name}", want, dry_run=dry_run, **more)
            assert reply.status == status and said in reply.json.get("error", {}).get("message", ""), reply

    limited(image_count_total=1, image_size_total=4)
    ensured("large", 413, 5 * 2**20, "image_size_total is over limit of 4 due to current usage 0 and delta 5")
    assert caller.get("/v1/image/large").status == 404
    ensured("first", 200)
    ensured("second", 413, said="image_count_total is over limit of 1 due to current usage 1 and delta 1")
    limited(image_size_total=3)
    ensured("first", 413, said="image_size_total", on_immutable="recreate")
    ensured("first", 200, 3 * 2**20)
    content = bytes(3 * 2**20)
    limited(image_count_total=1, image_size_total=4)
    ensure(caller, "image/first", {"checksum": "sha256:" + hashlib.sha256(content).hexdigest()})
    sent = caller.call("PUT", "/v1/image/first/data?wait=5", content, headers={
        "Content-Type": "application/octet-stream"})
    assert sent.status == 200, sent
    ensured("first", 413, 5 * 2**20, "image_size_total", on_immutable="recreate")
    ensured("first", 200, on_immutable="recreate")
    assert caller.delete("/v1/image/first").json["changed"]


@pytest.mark.parametrize(("content", "format"), [(iso(), "iso"), (kernel(), "aki"), (CPIO, "ari"), (qcow2(), "qcow2")],
                         ids=["iso", "aki", "ari", "qcow2"])
def test_the_format_is_found_as_an_agent_finds_it(cloud: Cloud, content: bytes, format: str) -> None:
    ensure(cloud.admin, "image/found", {"source": {"upload": True}})
    sent = cloud.admin.call("PUT", "/v1/image/found/data?wait=5", content,
                            headers={"Content-Type": "application/octet-stream"})
    assert sent.json["resource"]["disk_format"] == format, sent
    assert cloud.admin.delete("/v1/image/found").json["changed"]


def test_a_server_of_a_vmdk(cloud: Cloud) -> None:
    """Its host makes a qcow2 of it; the image is what was uploaded."""
    caller = cloud.admin
    id = caller.image("sparse", sparse_vmdk(), disk_format="vmdk")
    assert caller.get(f"/image/v2/images/{id}").json["virtual_size"] == 4 << 20
    server = caller.boot("of-vmdk", imageRef=id)
    assert server["status"] == "ACTIVE", server.get("fault")
    assert caller.get("/v1/image/sparse").json["disk_format"] == "vmdk"
    assert caller.delete(f"/v2.1/servers/{server['id']}").status == 204


def test_what_has_no_format_that_is_taken_has_none(cloud: Cloud) -> None:
    ensure(cloud.admin, "image/found", {"source": {"upload": True}})
    refused = cloud.admin.call("PUT", "/v1/image/found/data", vmdk("/etc/shadow"),
                               headers={"Content-Type": "application/octet-stream"})
    assert refused.json["error"]["code"] == "image-refused" and "extents" in refused.json["error"]["message"]
    assert cloud.admin.get("/v1/image/found").json["disk_format"] is None
    assert cloud.admin.delete("/v1/image/found").json["changed"]


def test_the_format_is_looked_for_in_all_pieces_that_tell_it() -> None:
    content = iter([piece for at in range(0, 2**20, 1000) if (piece := iso()[at:at + 1000])])
    assert detect_image_format(read_image_head(content)) == "iso"
    endless = iter(lambda: bytes(2**16), None)
    assert len(read_image_head(endless)) == HEAD


def test_images_of_another_project(cloud: Cloud) -> None:
    other = cloud.caller("ann", "shop")
    id = other.image("theirs")
    assert other.get("/v1/image/theirs").json["id"] == id
    assert cloud.admin.get("/v1/image/theirs").status == cloud.admin.get(f"/v1/image/{id}").status == 404
    assert "theirs" not in [one["name"] for one in cloud.admin.get("/v1/image").json["images"]]
    assert not cloud.admin.delete("/v1/image/theirs").json["changed"]
    assert other.delete("/v1/image/theirs").json["changed"]


def test_anothers_community_image_is_meant_by_its_uuid_only(cloud: Cloud) -> None:
    """A name that anybody may give chooses no image, neither to be removed nor to boot from."""
    owner, other = cloud.caller("ann", "shop"), cloud.caller("joe", "mill")
    id = owner.image("open", visibility="community")
    for who in (cloud.admin, other):
        assert who.get("/v1/image/open").status == 404
        assert "open" not in [one["name"] for one in who.get("/v1/image").json["images"]]
        assert not who.delete("/v1/image/open").json["changed"]
        refused = ensure(who, "server/of-it", {"flavor": "tiny", "image": "open", "networks": []})
        assert refused.status == 400 and "image" in refused.json["error"]["message"], refused
        assert who.get(f"/v1/image/{id}").json["name"] == "open"
    found = ensure(cloud.admin, "server/of-it", {"flavor": "tiny", "image": id, "networks": []}, dry_run=True)
    assert found.status == 200, found
    assert owner.delete("/v1/image/open").json["changed"]


def test_an_image_is_found_behind_many_of_its_name(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_control.api.image.query.LARGEST_PAGE", 2)
    mine = cloud.admin.post("/image/v2/images", {"name": "often"}).json["id"]
    other = cloud.caller("ann", "shop")
    for _more in range(3):
        assert other.post("/image/v2/images", {"name": "often", "visibility": "community"}).status == 201
    assert cloud.admin.get("/v1/image/often").json["id"] == mine
