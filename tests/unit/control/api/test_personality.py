# SPDX-License-Identifier: GPL-3.0-or-later
"""Injected files, which Nova had until 2.56: from the request to the config drive of the guest, and quotas."""

import base64
import json

import pytest

from tests.support.control.cloud import Cloud

PATH = "/etc/motd"
WELCOME, FAREWELL = b"Welcome to this very guest.\n", b"Farewell to that other guest.\n"


def given(*contents, path=PATH):
    return [{"path": path, "contents": base64.b64encode(one).decode()} for one in contents]


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


def drive(cloud, id):
    """The config drive that the guest has; its files are in it as they are."""
    (found,) = (cloud.folder / "kvm1" / "state").glob(f"**/{id}/config.iso")
    return found.read_bytes()


def listed(cloud, id):
    """What meta_data.json says of files."""
    content = drive(cloud, id)
    start = content.index(b'"files": [') + len(b'"files": ')
    return json.JSONDecoder().raw_decode(content[start:start + 2048].decode("latin-1"))[0]


def test_the_guest_gets_them_and_a_rebuild_replaces_them(cloud):
    id = cloud.admin.boot(version="2.56", personality=given(WELCOME, b"second"))["id"]
    assert WELCOME in drive(cloud, id)
    assert listed(cloud, id) == [{"content_path": "/content/0000", "path": PATH},
                                 {"content_path": "/content/0001", "path": PATH}]
    image = cloud.admin.image()
    # Left out, they stay; given, they are replaced; an empty list takes them away.
    for more, there in (({}, WELCOME), ({"personality": given(FAREWELL)}, FAREWELL), ({"personality": []}, None)):
        assert cloud.admin.act(id, "rebuild", {"imageRef": image, **more}, "2.56").status == 202
        assert cloud.admin.settled(id)["status"] == "ACTIVE"
        content = drive(cloud, id)
        assert [one for one in (WELCOME, FAREWELL) if one in content] == ([there] if there else [])
    assert b'"files"' not in drive(cloud, id)
    assert base64.b64encode(WELCOME) not in json.dumps(cloud.admin.server(id)).encode()
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None


OVER = [
    (given(*[b""] * 6), "injected_files is 6"),
    (given(b"x" * 10241), "injected_file_content_bytes is 10241"),
    (given(b"", path="/" + "\u00fc" * 128), "injected_file_path_bytes is 257"),
]


@pytest.mark.parametrize(("files", "words"), OVER)
def test_over_quota_is_403_and_changes_nothing(cloud, files, words):
    image = cloud.admin.image()
    id = cloud.admin.boot()["id"]
    for reply in (
        cloud.admin.post("/v2.1/servers", {"server": {
            "name": "over", "flavorRef": "1", "imageRef": image, "personality": files}}, "2.1"),
        cloud.admin.act(id, "rebuild", {"imageRef": image, "personality": files}, "2.1"),
    ):
        assert reply.status == 403, reply
        assert words in reply.json["forbidden"]["message"]
    assert cloud.admin.server(id)["OS-EXT-STS:task_state"] is None
    assert not cloud.admin.get("/v2.1/servers?name=over").json["servers"]


def test_the_limits_are_quotas(cloud):
    path = f"/v2.1/os-quota-sets/{cloud.admin.project_id}"
    assert cloud.admin.put(path, {"quota_set": {"injected_file_content_bytes": 20000}}, "2.1").status == 200
    files = given(WELCOME * 700)
    id = cloud.admin.boot(version="2.1", personality=files, networks=[])["id"]
    assert WELCOME * 700 in drive(cloud, id)
    assert cloud.admin.delete(path).status == 202
