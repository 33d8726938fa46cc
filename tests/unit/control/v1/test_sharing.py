# SPDX-License-Identifier: GPL-3.0-or-later
"""Flavors and images that some projects may use: flavor_access and image_member."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Caller, Cloud
from tests.support.control.modules import examples
from tests.support.control.servers import ensure

from .play import play, prepared

ABSENT = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
SIZES = {"vcpus": 1, "ram": 64}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture
def ann(cloud: Cloud) -> Caller:
    return cloud.caller("ann", "red")


@pytest.fixture
def bob(cloud: Cloud) -> Caller:
    return cloud.caller("bob", "blue")


def names(caller: Caller, kind: str) -> list[str]:
    return [one["name"] for one in caller.get(f"/v1/{kind}").json[f"{kind}s"]]


def test_a_flavor_for_one_project(cloud: Cloud, ann: Caller, bob: Caller) -> None:
    made = ensure(cloud.admin, "flavor/wide", {**SIZES, "is_public": False})
    assert made.json["resource"]["is_public"] is False and "wide" not in names(ann, "flavor")
    assert not ensure(cloud.admin, "flavor/wide", SIZES).json["changed"]
    refused = ensure(cloud.admin, "flavor/wide", {"is_public": True})
    assert refused.status == 409 and "is_public cannot change" in str(refused.json)
    would = ensure(cloud.admin, "flavor_access/red:wide", {}, dry_run=True)
    done = ensure(cloud.admin, "flavor_access/red:wide", {})
    assert would.json["changed"] and done.json["changed"] and would.json["diff"] == done.json["diff"]
    assert "wide" in names(ann, "flavor") and "wide" not in names(bob, "flavor")
    access = done.json["resource"]
    assert (access["flavor"], access["flavor_id"]) == ("wide", made.json["resource"]["id"])
    for key in ("red:wide", f"{access['project']}:{access['flavor_id']}", access["id"]):
        assert not ensure(cloud.admin, f"flavor_access/{key}", {}).json["changed"], key
    assert cloud.admin.get("/v1/flavor_access?flavor=wide").json["flavor_accesses"] == [access]
    assert ann.get("/v1/flavor_access").status == 403
    assert ensure(ann, "flavor_access/red:wide", {}).status == 403
    gone = cloud.admin.delete("/v1/flavor_access/red:wide?wait=20")
    assert gone.json["changed"] and "wide" not in names(ann, "flavor")
    assert not cloud.admin.delete("/v1/flavor_access/red:wide?wait=20").json["changed"]


@pytest.mark.parametrize(("key", "want", "field"), [
    ("large", {}, "key"), ("red:", {}, "key"), ("nobody:small", {}, "project"), ("red:open", {}, "flavor"),
    ("red:none", {}, "flavor"), ("red:open", {"flavor_id": "1"}, "flavor_id"), (":open", {}, "project")])
def test_wrong_accesses(cloud: Cloud, ann: Caller, key: str, want: dict[str, str], field: str) -> None:
    assert ensure(cloud.admin, "flavor/open", SIZES).status == 200
    refused = ensure(cloud.admin, f"flavor_access/{key}", want)
    assert refused.status == 400 and refused.json["error"]["details"]["field"] == field, refused


def test_an_image_goes_to_another_project(cloud: Cloud, ann: Caller, bob: Caller) -> None:
    image = ensure(ann, "image/tool", {"source": {"upload": True}}).json["resource"]["id"]
    blue = str(bob.get("/v1").json and cloud.admin.get("/identity/v3/projects?name=blue").json["projects"][0]["id"])
    would = ensure(ann, f"image_member/{blue}:tool", {}, dry_run=True)
    done = ensure(ann, f"image_member/{blue}:tool", {})
    assert would.json["diff"] == done.json["diff"] and done.json["resource"]["status"] == "pending"
    assert not ensure(ann, f"image_member/{blue}:{image}", {}).json["changed"]
    assert "tool" not in names(bob, "image")
    refused = ensure(ann, f"image_member/{blue}:tool", {"status": "accepted"})
    assert refused.status == 403 and "Only the project with which" in str(refused.json)
    for status, listed in (("accepted", True), ("rejected", False), ("accepted", True)):
        answered = ensure(bob, f"image_member/:{image}", {"status": status})
        assert answered.json["changed"] and ("tool" in names(bob, "image")) is listed
        assert not ensure(bob, f"image_member/:{image}", {"status": status}).json["changed"]
    assert not ensure(ann, f"image_member/{blue}:tool", {}).json["changed"]  # and the answer stays
    for caller in (ann, bob):
        (member,) = caller.get("/v1/image_member").json["image_members"]
        assert (member["image"], member["project"], member["status"]) == (image, blue, "accepted")
    stranger = cloud.caller("eve", "green")
    assert stranger.get("/v1/image_member").json["image_members"] == []
    assert ensure(stranger, f"image_member/:{image}", {"status": "accepted"}).status == 400
    assert bob.delete(f"/v1/image_member/:{image}?wait=20").status == 403
    assert ann.delete(f"/v1/image_member/{blue}:tool?wait=20").json["changed"]
    assert not ann.delete(f"/v1/image_member/{blue}:tool?wait=20").json["changed"]
    assert "tool" not in names(bob, "image")


@pytest.mark.parametrize(("key", "want", "field"), [
    ("tool", {}, "key"), (f"{ABSENT}:no-such-image", {}, "image"), (f"{ABSENT}:{ABSENT}", {}, "image"),
    ("blue:tool", {}, "project"), (f"{ABSENT}:tool", {"status": "yes"}, "status")])
def test_wrong_members(ann: Caller, bob: Caller, key: str, want: dict[str, str], field: str) -> None:
    assert ensure(ann, "image/tool", {"source": {"upload": True}}).status == 200
    refused = ensure(ann, f"image_member/{key}", want)
    assert refused.status == 400 and refused.json["error"]["details"]["field"] == field, refused


@pytest.mark.slow
def test_by_modules(cloud: Cloud, tmp_path: Path) -> None:
    cloud.caller("sue", "shop")
    folder = prepared(tmp_path, cloud, "mycloud")
    image = ensure(cloud.admin, "image/debian", {"source": {"upload": True}}).json["resource"]["id"]
    accept = {"image_member": {"image": image, "state": "accepted"}}
    tasks = [*examples("flavor_access")[:2], *examples("flavor_access_info"), *examples("flavor_access")[2:],
             *examples("image_member")[:1], *examples("image_member_info"), *examples("image_member")[2:]]
    first = play(folder, tasks, {"cloud": "mycloud"}, "--diff")
    assert [one["changed"] for one in first] == [True, True, False, False, True, True, False, False, True]
    assert first[3]["flavor_accesses"][0]["flavor"] == "large" and first[6]["image_members"][0]["image"] == image
    again = play(folder, tasks[4:5] + tasks[8:], {"cloud": "mycloud"})
    assert not any(one["changed"] for one in again)
    share = {"image_member": {"image": "debian", "project": "admin"}}
    shared = play(folder, [share, share, {**accept, "check_mode": True}, accept, accept, share], {"cloud": "mycloud"})
    assert [one["changed"] for one in shared] == [True, False, True, True, False, False]
    assert shared[-1]["image_member"]["status"] == "accepted"
    empty, missing = play(folder, [
        {"flavor_access": {"flavor": "", "project": "shop"}, "ignore_errors": True},
        {"image_member": {"image": "debian"}, "ignore_errors": True}], {"cloud": "mycloud"})
    assert "flavor: must have 1 to 255" in empty["msg"] and "project" in missing["msg"]
