# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume goes from one project to another, by the API and by the module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.control.cloud import Caller, Cloud
from tests.support.control.modules import examples
from tests.support.control.servers import ensure, verbs

from .play import play, prepared

ABSENT = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"


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


def offered(ann: Caller, name: str) -> dict[str, str]:
    """Return a new transfer of a new volume."""
    assert ensure(ann, f"volume/{name}", {"size": 1}).status == 200
    made = ensure(ann, f"volume_transfer/{name}", {"volume": name})
    assert made.status == 200 and verbs(made) == ["record"], made
    transfer: dict[str, str] = made.json["resource"]
    return transfer


def test_the_key_is_shown_once(cloud: Cloud, ann: Caller, bob: Caller) -> None:
    would = ensure(ann, "volume_transfer/none", {"volume": ABSENT}, dry_run=True)
    assert would.status == 404 and ABSENT in str(would.json)
    transfer = offered(ann, "once")
    assert len(transfer["auth_key"]) == 32
    again = ensure(ann, "volume_transfer/once", {"volume": transfer["volume"]})
    assert not again.json["changed"] and again.json["resource"] == {**transfer, "auth_key": None}
    for path in ("volume_transfer", "volume_transfer/once", f"volume_transfer/{transfer['id']}", "operations"):
        assert transfer["auth_key"] not in json.dumps(ann.get(f"/v1/{path}").json), path
    assert bob.get("/v1/volume_transfer").json["volume_transfers"] == []
    everywhere = cloud.admin.get("/v1/volume_transfer?all_projects=true").json["volume_transfers"]
    assert transfer["id"] in {shown["id"] for shown in everywhere}
    second = ensure(ann, "volume_transfer/twice", {"volume": "once"})
    assert second.status == 400 and "awaiting-transfer" in str(second.json)


def test_operations_with_keys_are_private(cloud: Cloud, ann: Caller) -> None:
    """An operation that nobody has waited for is seen by its user only: its result has the key."""
    assert ensure(ann, "volume/quiet", {"size": 1}).status == 200
    begun = ensure(ann, "volume_transfer/quiet", {"volume": "quiet"}, wait=0)
    assert begun.status in (200, 202)
    if begun.status == 202:
        path = f"/v1/operations/{begun.json['operation']['id']}"
        assert len(ann.get(f"{path}?wait=20").json["result"]["resource"]["auth_key"]) == 32
        other = cloud.caller("eve", "red")
        assert other.get(path).status == 404
        assert "volume_transfer" not in json.dumps(other.get("/v1/operations").json)


def test_another_project_accepts_once(ann: Caller, bob: Caller) -> None:
    transfer = offered(ann, "moves")
    path, accept = f"volume_transfer/{transfer['id']}", {"accept": transfer["auth_key"], "volume": transfer["volume"]}
    wrong = ensure(bob, path, {"accept": "0" * 32, "volume": transfer["volume"]})
    assert wrong.status == 400 and "invalid auth key" in str(wrong.json)
    would = ensure(bob, path, accept, dry_run=True)
    assert would.json["changed"] and verbs(would) == ["accept"]
    assert bob.get(f"/v1/volume/{transfer['volume']}").status == 404
    done = ensure(bob, path, accept)
    assert done.json["changed"] and done.json["diff"] == would.json["diff"]
    assert bob.get("/v1/volume/moves").json["status"] == "available"
    assert ann.get(f"/v1/volume/{transfer['volume']}").status == 404
    again = ensure(bob, path, accept)
    assert again.status == 200 and not again.json["changed"]
    assert ensure(bob, path, {"accept": transfer["auth_key"]}).status == 404


@pytest.mark.parametrize(("key", "want", "field"), [
    ("a-name", {"accept": "x"}, "id"), (ABSENT, {"accept": "x", "volume": "data"}, "volume"),
    ("new", {}, "volume"), ("new", {"volume": "no-such-volume"}, "volume"), (ABSENT, {"volume": ABSENT}, "id"),
    ("new", {"volume": ABSENT, "auth_key": "x"}, "auth_key"), ("new", {"volume": ABSENT, "no_snapshots": 1},
                                                                "no_snapshots")])
def test_wrong_requests(ann: Caller, key: str, want: dict[str, str], field: str) -> None:
    # A dry run assumes that an earlier task makes the volume.
    for dry_run in (False,) if field == "volume" else (True, False):
        refused = ensure(ann, f"volume_transfer/{key}", want, dry_run=dry_run)
        assert refused.status == 400 and refused.json["error"]["details"]["field"] == field, refused


def test_another_volume_under_the_same_name(ann: Caller) -> None:
    transfer = offered(ann, "first")
    assert ensure(ann, "volume/second", {"size": 1}).status == 200
    refused = ensure(ann, "volume_transfer/first", {"volume": "second"})
    assert refused.status == 409 and "volume cannot change" in str(refused.json)
    made = ensure(ann, "volume_transfer/first", {"volume": "second"}, on_immutable="recreate")
    assert made.status == 200 and made.json["resource"]["auth_key"] not in (None, transfer["auth_key"])
    assert ann.get("/v1/volume/first").json["status"] == "available"
    gone = ann.delete("/v1/volume_transfer/first?wait=20")
    assert gone.status == 200 and gone.json["changed"]
    assert ann.get("/v1/volume/second").json["status"] == "available"


@pytest.mark.slow
def test_by_the_module(cloud: Cloud, tmp_path: Path) -> None:
    folder = prepared(tmp_path, cloud, "mycloud")
    (login,) = yaml.safe_load((folder / "clouds.yaml").read_text())["clouds"].values()
    cloud.caller("ann", "red"), cloud.caller("bob", "blue")
    offer = {"volume_transfer": {"name": "by-module", "volume": "data"}, "register": "offer"}
    accept = {"volume_transfer": {
        "id": "{{ offer.volume_transfer.id }}", "auth_key": "{{ offer.volume_transfer.auth_key }}",
        "volume": "{{ offer.volume_transfer.volume }}", "state": "accepted"}}
    kept, again = {**offer}, {"volume_transfer": offer["volume_transfer"]}
    assert login["auth"]["project_name"] == "admin"
    found = play(folder, [
        {"volume": {"name": "data", "size": 1}}, {**offer, "check_mode": True, "register": "would"}, kept, again,
        {**accept, "check_mode": True}, {"volume_transfer_info": {"name": "by-*"}}, accept, accept,
        {"volume_transfer_info": {}},
        {"volume_transfer": {"name": "by-module", "state": "absent"}},
        {"volume_transfer": {"name": "x", "state": "accepted"}, "ignore_errors": True},
        {"volume_transfer": {"name": "x", "volume": "data", "auth_key": "y"}, "ignore_errors": True},
    ], {"cloud": "mycloud"}, "--diff")
    assert [result["changed"] for result in found[1:8]] == [True, True, False, True, False, True, False], found
    assert found[2]["volume_transfer"]["auth_key"] and found[3]["volume_transfer"]["auth_key"] is None
    assert len(found[5]["volume_transfers"]) == 1 and found[8]["volume_transfers"] == [] and not found[9]["changed"]
    assert "auth_key" in found[10]["msg"] and "goes with state accepted" in found[11]["msg"]
    shown = play(folder, [*examples("volume_transfer"), *examples("volume_transfer_info")], {}, "--diff")
    assert [result["changed"] for result in shown] == [True, True, False, False, False]
