# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of volumes by /v1 and by the module: full and incremental, restored to new and to existing volumes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.control.cloud import Caller, Cloud, Reply
from tests.support.control.modules import examples
from tests.support.control.servers import ensure, verbs

from .play import play, prepared

ABSENT = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backups")


@pytest.fixture(scope="module")
def cloud(directory: Path) -> Iterator[Cloud]:
    with Cloud(hosts=1, agent={"backup_directory": str(directory)}) as made:
        yield made


@pytest.fixture
def ann(cloud: Cloud) -> Caller:
    return cloud.caller("ann", "red")


def backed_up(ann: Caller, name: str, **want: Any) -> dict[str, Any]:
    """Return a new backup of a new volume, both called *name*."""
    assert ensure(ann, f"volume/{name}", {"size": 1}).status == 200
    made = ensure(ann, f"volume_backup/{name}", {"volume": name, **want})
    assert made.status == 200 and verbs(made) == ["record", "make"], made
    backup: dict[str, Any] = made.json["resource"]
    return backup


def restore(ann: Caller, key: str, target: str, dry_run: bool = False, **more: Any) -> Reply:
    return ensure(ann, f"volume_backup/{key}", {"restore": {"volume": target, **more}}, dry_run=dry_run)


def test_a_backup_is_made_once(cloud: Cloud, ann: Caller) -> None:
    assert ensure(ann, "volume/once", {"size": 1}).status == 200
    would = ensure(ann, "volume_backup/once", {"volume": "once"}, dry_run=True)
    assert would.status == 200 and verbs(would) == ["record", "make"]
    assert ann.get("/v1/volume_backup/once").status == 404
    want = {"volume": "once", "description": "d", "metadata": {"keep": "30d"}, "container": "c"}
    backup = ensure(ann, "volume_backup/once", want).json["resource"]
    assert backup == backup | {"status": "available", "size": 1, "incremental": False, "parent": None, "fault": None,
                               "container": "c", "metadata": {"keep": "30d"}, "has_dependent_backups": False}
    assert not ensure(ann, "volume_backup/once", want).json["changed"]
    changed = ensure(ann, "volume_backup/once", {"volume": "once", "description": "e"})
    assert changed.json["changed"] and changed.json["resource"]["description"] == "e"
    later = ensure(ann, "volume_backup/twice", {"volume": "once", "incremental": True}).json["resource"]
    assert later["incremental"] and later["parent"] == backup["id"]
    assert ann.get("/v1/volume_backup/once").json["has_dependent_backups"]
    refused = ensure(ann, "volume_backup/twice", {"volume": "once", "incremental": False})
    assert refused.status == 409 and "incremental" in str(refused.json)
    needed = ann.delete("/v1/volume_backup/once?wait=20")
    assert needed.status == 400 and "Incremental backups exist" in str(needed.json)
    assert cloud.caller("bob", "blue").get("/v1/volume_backup").json["volume_backups"] == []
    everywhere = cloud.admin.get("/v1/volume_backup?all_projects=true").json["volume_backups"]
    assert backup["id"] in {shown["id"] for shown in everywhere}
    for name in ("twice", "once"):
        assert ann.delete(f"/v1/volume_backup/{name}?wait=20").json["changed"]
    assert not ann.delete("/v1/volume_backup/once?wait=20").json["changed"]


def test_a_restore_to_a_new_volume(ann: Caller) -> None:
    backup = backed_up(ann, "origin")
    would = restore(ann, "origin", "copy", dry_run=True)
    assert would.json["changed"] and verbs(would) == ["restore"] and ann.get("/v1/volume/copy").status == 404
    done = restore(ann, "origin", "copy")
    assert done.status == 200 and done.json["changed"], done
    volume = ann.get("/v1/volume/copy").json
    assert volume["status"] == "available" and volume["id"] == done.json["resource"]["restored_volume"]
    assert not restore(ann, "origin", "copy").json["changed"]
    assert not restore(ann, backup["id"], volume["id"]).json["changed"]
    # Metadata of users leaves the note of the restore in place.
    assert ensure(ann, "volume/copy", {"metadata": {"role": "db"}}).json["resource"]["metadata"] == {"role": "db"}
    assert not restore(ann, "origin", "copy").json["changed"]
    assert restore(ann, "origin", "copy", force=True).json["changed"]


def test_newer_content_is_kept_unless_forced(ann: Caller) -> None:
    backed_up(ann, "early")
    assert restore(ann, "early", "early", dry_run=True).json["changed"]
    assert ensure(ann, "volume_backup/late", {"volume": "early"}).status == 200
    assert ensure(ann, "volume/early", {"size": 2}).json["changed"]
    for dry_run in (True, False):
        refused = restore(ann, "late", "early", dry_run)
        assert refused.status == 409 and "Restore it to a new volume, or say force" in str(refused.json), refused
    done = restore(ann, "late", "early", force=True)
    assert done.status == 200 and done.json["changed"], done
    assert not restore(ann, "late", "early").json["changed"]
    assert restore(ann, "early", "early").status == 409


def test_an_unchanged_volume_is_restored(ann: Caller) -> None:
    backed_up(ann, "same")
    done = restore(ann, "same", "same")
    assert done.status == 200 and done.json["changed"] and not restore(ann, "same", "same").json["changed"]


def test_a_lost_backup_leaves_the_volume_as_it_is(ann: Caller, directory: Path) -> None:
    backup = backed_up(ann, "lost")
    shutil.rmtree(directory / backup["id"])
    failed = restore(ann, "lost", "lost")
    assert failed.status == 409 and backup["id"] in str(failed.json), failed
    assert ann.get("/v1/volume/lost").json["status"] == "available"
    assert backup["id"] in ann.get("/v1/volume_backup/lost").json["fault"]


def test_of_a_volume_in_use(cloud: Cloud) -> None:
    cloud.admin.boot("web1")
    assert ensure(cloud.admin, "volume/used", {"size": 1}).status == 200
    assert ensure(cloud.admin, "volume_attachment/web1:used", {}).status == 200
    refused = ensure(cloud.admin, "volume_backup/used", {"volume": "used"})
    assert refused.status == 400 and "force" in str(refused.json)
    assert ensure(cloud.admin, "volume_backup/used", {"volume": "used", "force": True}).json["changed"]
    busy = restore(cloud.admin, "used", "used", force=True)
    assert busy.status == 400 and "status must be available" in str(busy.json)
    assert cloud.admin.delete("/v1/volume_attachment/web1:used?wait=20").status == 200
    newer = restore(cloud.admin, "used", "used")
    assert newer.status == 409 and "after the content" in str(newer.json)


@pytest.mark.parametrize(("key", "want", "status", "text"), [
    ("new", {}, 400, "volume"), ("new", {"volume": "no-such-volume"}, 400, "no volume 'no-such-volume'"),
    ("new", {"volume": ABSENT}, 404, ABSENT), (ABSENT, {"volume": ABSENT}, 400, "id"),
    ("new", {"volume": "small", "incremental": True}, 400, "No backups available"),
    ("new", {"volume": "small", "snapshot": ABSENT}, 404, ABSENT), ("new", {"volume": "small", "size": 3}, 400, "size"),
    ("none", {"restore": {"volume": "x"}}, 404, "none"), ("new", {"restore": {}}, 400, "restore.volume"),
    ("new", {"restore": {"volume": "x"}, "volume": "small"}, 400, "goes with a new backup")])
def test_wrong_requests(ann: Caller, key: str, want: dict[str, Any], status: int, text: str) -> None:
    assert ensure(ann, "volume/small", {"size": 1}).status == 200
    refused = ensure(ann, f"volume_backup/{key}", want)
    assert refused.status == status and text in str(refused.json), refused
    assert ann.get("/v1/volume_backup?name=new").json["volume_backups"] == []


def test_targets_that_do_not_fit(ann: Caller) -> None:
    backed_up(ann, "big")
    assert restore(ann, "big", ABSENT).status == 400
    assert ensure(ann, "volume/grown", {"size": 2}).status == 200
    assert ensure(ann, "volume_backup/grown", {"volume": "grown"}).status == 200
    small = restore(ann, "grown", "big", force=True)
    assert small.status == 400 and "too small" in str(small.json)


@pytest.mark.slow
def test_by_the_module(cloud: Cloud, tmp_path: Path) -> None:
    folder = prepared(tmp_path, cloud, "mycloud")
    made = {"volume_backup": {"name": "by-module", "volume": "played"}}
    to_new = {"volume_backup": {"name": "by-module", "state": "restored", "restore_to": "played-copy"}}
    grown = {"volume": {"name": "played", "size": 2}}
    over = {"volume_backup": {"name": "by-module", "state": "restored", "restore_to": "played"}}
    gone = {"volume_backup": {"name": "by-module", "state": "absent"}}
    checked = {"check_mode": True}
    found = play(folder, [
        {**to_new, **checked}, {"volume": {"name": "played", "size": 1}}, {**made, **checked}, made, made,
        {**to_new, **checked}, to_new, to_new, grown, {**over, "ignore_errors": True},
        {"volume_backup": {**over["volume_backup"], "force": True}}, over, {"volume_backup_info": {"name": "by-*"}},
        {"volume_backup": {"name": "by-module", "state": "restored", "restore_to": "x", "volume": "y"},
         "ignore_errors": True},
        {"volume_backup": {"name": "z", "volume": "played", "restore_to": "x"}, "ignore_errors": True},
        gone, gone], {"cloud": "mycloud"}, "--diff")
    assert [found[at]["changed"] for at in (0, 2, 3, 4, 5, 6, 7, 8)] == [True, True, True, False, True, True, False,
                                                                       True], found
    assert "say force" in found[9]["msg"] and found[10]["changed"] and not found[11]["changed"]
    assert [one["name"] for one in found[12]["volume_backups"]] == ["by-module"]
    assert "goes with state present" in found[13]["msg"] and "goes with state restored" in found[14]["msg"]
    assert found[15]["changed"] and not found[16]["changed"]
    play(folder, [{"volume": {"name": "data", "size": 1}}], {"cloud": "mycloud"})
    shown = play(folder, [*examples("volume_backup"), *examples("volume_backup_info")], {}, "--diff")
    assert [result["changed"] for result in shown] == [True, True, True, True, True, False, False]
