# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of volumes on a fake host, in a directory and in a bucket: full, incremental, restored, removed; damage, full
targets, and killed agents."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host import host_check, inventory, mounts
from magnetar_agent.settings import AgentSettings
from magnetar_agent.volumes import backup_files, backup_storage, bucket_storage, keys, pool_reports, pools
from magnetar_core.errors import Cancelled, Conflict, InvalidField, InvalidSettings, MagnetarError, NoSpace
from magnetar_core.http import s3
from magnetar_core.http.s3 import S3Bucket
from magnetar_core.operations import Operation
from tests.support.agent.backup_places import BackupPlace, BucketPlace, DirectoryPlace, backup_place
from tests.support.agent.crash import lives
from tests.support.waiting import eventually
from tests.unit.agent.conftest import Host

MIB = 1 << 20


KINDS = ("directory", "pool", "bucket")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackupPlace]:
    """The target of backups."""
    monkeypatch.setattr(s3, "LONGEST", 0.001)
    monkeypatch.setattr(bucket_storage, "PACK", 2 * MIB)
    with backup_place(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def host(tmp_path: Path, place: BackupPlace) -> Iterator[Host]:
    """A host with a target of backups."""
    found = Host(tmp_path / "host", **place.settings)
    found.start()
    yield found
    found.agent.close()


def disk(host: Host, name: str = "data") -> Path:
    document = host.agent.host.documents.find("volume", name)
    assert document is not None
    return host.root / "state/volumes" / document.id


def written(host: Host, name: str = "data", **places: bytes) -> None:
    """Write texts into the volume; ``at3=b"x"`` writes at 3 MiB."""
    with disk(host, name).open("r+b") as stream:
        for place, text in places.items():
            stream.seek(int(place[2:]) * MIB)
            stream.write(text)


def read(host: Host, at: int, name: str = "data", length: int = 4) -> bytes:
    with disk(host, name).open("rb") as stream:
        stream.seek(at * MIB)
        return stream.read(length)


def volume(host: Host, name: str = "data", **want: Any) -> str:
    return str(host.ensure("volume", name, {"size": 1, "format": "raw", **want}).resource["id"])


def backup(host: Host, name: str, **want: Any) -> dict[str, Any]:
    return host.ensure("volume_backup", name, {"volume": "data", **want}).resource


def restore(host: Host, backup_id: str, name: str = "data", request: str = "", **want: Any) -> dict[str, Any]:
    asked = {"backup": backup_id, "request": request or str(uuid.uuid4())}
    return host.ensure("volume", name, {**want, "reimage": asked}).resource


def temporary(host: Host) -> list[Path]:
    folder = host.root / "state/backups"
    return [*folder.iterdir()] if folder.exists() else []


def test_a_backup_outlives_its_volume_and_comes_back(host: Host, place: BackupPlace) -> None:
    id = volume(host)
    written(host, at0=b"head", at700=b"tail")
    assert [one.verb for one in host.ensure("volume_backup", "b1", {"volume": "data"}, dry_run=True).steps] == [
        "record", "make"]
    made = backup(host, "b1", record={"project_id": "red"})
    assert (made["status"], made["size"], made["volume"], made["stored_chunks"], made["stored_bytes"]) == (
        "available", 1, id, 2, 2 * MIB)
    assert not host.ensure("volume_backup", "b1", {"volume": "data"}).changed
    catalogue = json.loads(place.read(made["id"], "backup.json"))
    assert (catalogue["volume"], catalogue["record"], catalogue["checksum"]) == (
        id, {"project_id": "red"}, made["checksum"])
    host.ensure("volume", "data", None)
    assert not host.ensure("volume_backup", "b1", {"description": "kept"}).steps[1:]
    restore(host, made["id"], "again", size=2, format="raw")
    assert (read(host, 0, "again"), read(host, 700, "again"), read(host, 5, "again")) == (b"head", b"tail", bytes(4))
    assert host.fake.disk(disk(host, "again"), "raw").virtual_size == 2 << 30
    assert not temporary(host)
    host.ensure("volume_backup", "b1", None)
    assert not place.names()


def test_an_incremental_backup_stores_what_changed(host: Host, place: BackupPlace) -> None:
    volume(host)
    written(host, at0=b"one ", at5=b"same", at9=b"gone")
    first = backup(host, "b1")
    written(host, at0=b"two ", at9=bytes(4), at11=b"more")
    second = backup(host, "b2", parent=first["id"])
    assert (second["stored_chunks"], second["parent"]) == (2, first["id"])
    third = backup(host, "b3", parent=second["id"])
    assert third["stored_bytes"] == 0
    written(host, at0=b"lost", at5=b"lost", at11=b"lost")
    restore(host, third["id"])
    assert [read(host, at) for at in (0, 5, 9, 11)] == [b"two ", b"same", bytes(4), b"more"]
    restore(host, first["id"])
    assert [read(host, at) for at in (0, 5, 9, 11)] == [b"one ", b"same", b"gone", bytes(4)]
    with pytest.raises(Conflict, match=f"parent of {second['id']}. Delete these first"):
        host.ensure("volume_backup", "b1", None)
    for name in ("b3", "b2", "b1"):
        host.ensure("volume_backup", name, None)
    assert not place.names()


def test_a_volume_that_grew_and_a_snapshot(host: Host) -> None:
    id = volume(host)
    written(host, at0=b"one ")
    first = backup(host, "b1")
    host.ensure("volume_snapshot", "s1", {"volume": "data"})
    host.ensure("volume", "data", {"size": 2})
    written(host, at0=b"two ", at1500=b"far ")
    grown = backup(host, "b2", parent=first["id"])
    assert (grown["size"], grown["stored_chunks"]) == (2, 2)
    taken = backup(host, "b3", snapshot="s1", parent=first["id"])
    assert (taken["size"], taken["stored_chunks"], taken["volume"]) == (1, 0, id)
    with pytest.raises(MagnetarError, match="at least 2 GiB"):
        restore(host, grown["id"], "small", size=1, format="raw")
    restore(host, taken["id"])
    assert (read(host, 0), read(host, 1500)) == (b"one ", bytes(4))
    volume(host, "other")
    with pytest.raises(InvalidField, match="must be a snapshot of the volume"):
        host.ensure("volume_backup", "b4", {"volume": "other", "snapshot": "s1"})


def test_a_chain_without_a_link_is_refused(host: Host, place: BackupPlace) -> None:
    volume(host)
    written(host, at0=b"one ")
    first = backup(host, "b1")
    second = backup(host, "b2", parent=first["id"])
    bring_back = place.take_away(first["id"])
    written(host, at0=b"new ")
    with pytest.raises(InvalidField, match=f"needs the backup {first['id']}, which is missing"):
        restore(host, second["id"])
    with pytest.raises(InvalidField, match=first["id"]):
        backup(host, "b3", parent=second["id"])
    with pytest.raises(Conflict, match="are gone from the backup target"):
        backup(host, "b1")
    assert read(host, 0) == b"new "
    bring_back()
    restore(host, second["id"])
    assert read(host, 0) == b"one "


@pytest.mark.parametrize("file", ["chunks", "map", "backup.json"])
def test_damage_is_found_before_the_volume_is_touched(host: Host, place: BackupPlace, file: str) -> None:
    volume(host)
    written(host, at0=b"one ")
    made = backup(host, "b1")
    good = place.read(made["id"], file)
    place.write(made["id"], file, b"X" + good[1:])
    written(host, at0=b"new ")
    for _again in range(2):
        with pytest.raises(MagnetarError, match="damaged|cannot be read"):
            restore(host, made["id"])
        assert read(host, 0) == b"new " and not temporary(host)
        assert host.ensure("volume", "data", {}).resource["status"] == "available"
    place.write(made["id"], file, good)
    restore(host, made["id"])
    assert read(host, 0) == b"one "


def test_a_full_target_keeps_nothing(host: Host, place: BackupPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    volume(host)
    written(host, at0=b"one ", at1=b"two ", at2=b"tri ")

    def full(*_args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        if isinstance(place, BucketPlace):
            broken.setattr(place.store, "capacity", 2 * MIB + 100)
        else:
            broken.setattr(backup_storage._FolderWriter, "add_chunk", full)
        with pytest.raises(NoSpace, match="No room is left for the backup in .*nothing of (it|the backup) was kept"):
            backup(host, "b1")
    assert not place.names() and not temporary(host)
    assert backup(host, "b1")["status"] == "available"


class Killed(BaseException):
    """The end of the process."""


def dies(*_args: Any, **_more: Any) -> Any:
    raise Killed


def test_an_agent_that_dies_writes_it_again(host: Host, place: BackupPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    volume(host)
    written(host, at0=b"one ", at3=b"tail", at9=b"last")
    with monkeypatch.context() as broken:
        broken.setattr(backup_storage._FolderWriter, "write_catalogue", dies)
        broken.setattr(bucket_storage._BucketWriter, "write_catalogue", dies)
        broken.setattr(backup_storage.shutil, "rmtree", lambda *_args, **_more: None)
        broken.setattr(S3Bucket, "list_objects", lambda *_args, **_more: iter(()))
        with pytest.raises(Killed):
            backup(host, "b1")
    document = host.agent.host.documents.find("volume_backup", "b1")
    assert document and {name.removesuffix(".part") for name in place.names()} == {document.id}
    written(host, at3=bytes(4), at9=bytes(4))  # so that the second attempt has fewer objects
    host.restart()
    made = backup(host, "b1")
    assert (made["status"], made["stored_chunks"]) == ("available", 1)
    assert place.names() == {made["id"]} and not temporary(host)
    if isinstance(place, BucketPlace):
        assert sorted(key.rpartition("/")[2] for key in place.store.objects) == [
            "backup.json", "chunks.00000000", "map"]


@pytest.mark.parametrize("part", ["chunks", "map", "backup.json"])
def test_an_unfinished_backup_is_removed(host: Host, place: BackupPlace, part: str,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the agent wrote last before it died, a deletion leaves nothing, also without a new attempt."""
    volume(host)
    written(host, at0=b"one ", at3=b"tail", at9=b"last")
    first = backup(host, "b1")
    written(host, at0=b"new ")
    put = S3Bucket.put_object

    def put_until(self: S3Bucket, key: str, body: bytes) -> None:
        if key.endswith(part):
            raise Killed
        put(self, key, body)

    with monkeypatch.context() as broken:
        broken.setattr(backup_storage, "write_atomically", dies)
        broken.setattr(backup_storage.shutil, "rmtree", lambda *_args, **_more: None)
        broken.setattr(S3Bucket, "put_object", put_until)
        broken.setattr(S3Bucket, "delete_object", lambda *_args: None)
        if part == "chunks":
            broken.setattr(bucket_storage._BucketWriter, "_put_pack", dies)
            broken.setattr(backup_storage._FolderWriter, "add_chunk", dies)
        with pytest.raises(Killed):
            backup(host, "b2", parent=first["id"])
    assert len(place.names()) == 2 or part == "chunks"
    host.ensure("volume_backup", "b2", None)
    assert place.names() == {first["id"]}
    host.ensure("volume_backup", "b1", None)
    assert not place.names()


def test_a_restore_that_dies_is_repeated(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    volume(host)
    written(host, at0=b"one ")
    made = backup(host, "b1")
    written(host, at0=b"new ")
    asked = str(uuid.uuid4())
    with monkeypatch.context() as broken:
        broken.setattr("magnetar_agent.volumes.pools.FolderPool.fill", dies)
        broken.setattr(Path, "unlink", lambda *_args, **_more: None)
        with pytest.raises(Killed):
            restore(host, made["id"], request=asked)
    host.restart()
    assert restore(host, made["id"], request=asked)["status"] == "available"
    assert read(host, 0) == b"one " and not temporary(host)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_the_agent_may_die_at_each_change(tmp_path: Path, kind: str, late: bool,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a full and an incremental backup, a restore and a removal, each repeated by the next agent."""
    monkeypatch.setattr(bucket_storage, "PACK", 2 * MIB)
    with ExitStack() as places:
        _die_at_each_change(tmp_path, kind, late, places)


def _die_at_each_change(tmp_path: Path, kind: str, late: bool, places: ExitStack) -> None:
    place: BackupPlace | None = None

    def story(host: Host) -> None:
        first = backup(host, "b1")
        backup(host, "b2", parent=first["id"])
        written(host, at0=b"new ")
        restore(host, first["id"], request="one")
        host.ensure("volume_backup", "b2", None)

    def prepared(host: Host) -> None:
        nonlocal place
        place = places.enter_context(backup_place(kind, host.root))
        host.settings.update(place.settings)
        host.agent.host.settings = dataclasses.replace(host.agent.host.settings, **host.settings)

    for life in lives(tmp_path, late, most=80, prepared=prepared, more=(
            (backup_files, ("_write_chunks", "_stored_chunks")), (backup_storage, ("write_atomically", "sync_folder")),
            (S3Bucket, ("put_object", "delete_object")), (shutil, ("rmtree",)), (Path, ("rename", "mkdir")))):
        host = life.host
        assert place is not None
        volume(host)
        written(host, at0=b"one ", at3=b"two ", at5=b"tri ")
        life.ends_in(story, host)
        host.restart()
        known = {one.id for one in host.agent.host.documents.list("volume_backup")}
        assert {name.partition(".")[0] for name in place.names()} <= known
        first = backup(host, "b1")
        restore(host, first["id"], request="one")
        assert read(host, 0) == b"one "
        second = backup(host, "b2", parent=first["id"])
        assert place.names() == {first["id"], second["id"]} and not temporary(host)
        for name in ("b2", "b1"):
            host.ensure("volume_backup", name, None)
        assert not place.names()


def test_a_cancelled_backup_leaves_nothing(host: Host, place: BackupPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    volume(host)
    monkeypatch.setattr(Operation, "advance", lambda self, *_args, **_more: (_ for _ in ()).throw(Cancelled()))
    with pytest.raises(Cancelled):
        backup(host, "b1")
    assert not place.names() and not temporary(host)


def test_a_backup_that_lies_there_is_adopted(host: Host) -> None:
    volume(host)
    written(host, at0=b"one ")
    first = backup(host, "b1")
    second = backup(host, "b2", parent=first["id"])
    for made in (first, second):
        (host.root / "state/documents/volume_backup" / f"{made['id']}.json").unlink()
    host.restart()
    assert not host.agent.host.documents.list("volume_backup")
    for made in (first, second):
        done = host.ensure("volume_backup", made["id"], {"name": f"backup-{made['id']}"}).resource
        assert (done["status"], done["checksum"], done["stored_chunks"]) == (
            "available", made["checksum"], made["stored_chunks"])
    absent = str(uuid.uuid4())
    with pytest.raises(InvalidField, match=f"There is no backup {absent} in "):
        host.ensure("volume_backup", absent, {"name": "none"})
    with pytest.raises(Conflict):
        host.ensure("volume_backup", first["id"], None)
    written(host, at0=b"new ")
    restore(host, second["id"])
    assert read(host, 0) == b"one "


def test_what_cannot_be_backed_up(host: Host, place: BackupPlace, tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="must name a volume of this host"):
        host.ensure("volume_backup", "b1", {"volume": "none"})
    volume(host)
    id = str(uuid.uuid4())
    place.write(id, "map", b"")
    with pytest.raises(Conflict, match="There is a backup .* already"):
        host.ensure("volume_backup", id, {"name": "b1", "volume": "data"})
    place.take_away(id)
    bare = dataclasses.replace(host.agent.host.settings, backup_directory=None, backup_pool=None,
                               backup_s3_endpoint_url=None, backup_s3_store_bucket=None)
    host.agent.host.settings = bare
    with pytest.raises(Conflict, match="has no backup target. Set backup_directory,"):
        host.ensure("volume_backup", "b2", {"volume": "data"})
    mounted = dataclasses.replace(bare, backup_directory=tmp_path / "nfs", backup_mounted=True)
    host.agent.host.settings = mounted
    with pytest.raises(Conflict, match="nothing is mounted at"):
        host.ensure("volume_backup", "b2", {"volume": "data"})
    assert not (tmp_path / "nfs").exists()


def test_a_restore_is_refused_while_a_server_runs_with_the_volume(host: Host) -> None:
    volume(host)
    written(host, at0=b"one ")
    made = backup(host, "b1")
    host.server("web1")
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    written(host, at0=b"new ")
    with pytest.raises(Conflict, match="is in use: server 'web1' is"):
        restore(host, made["id"])
    assert read(host, 0) == b"new "
    used = backup(host, "b2", parent=made["id"])  # by QEMU, while the server runs
    assert used["status"] == "available" and not temporary(host)


def test_a_directory_that_hangs_delays_no_call(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    volume(host)
    with monkeypatch.context() as hanging:
        hanging.setattr(pool_reports, "seconds_of_silence", lambda *_args: 60.0)
        with pytest.raises(Conflict, match="has not answered for 60 s"):
            backup(host, "b1")
    assert backup(host, "b1")["status"] == "available"


def reported(host: Host) -> dict[str, Any]:
    return next(one for one in pool_reports.report_pools(host.agent.host) if one["kind"] == "backup")


def found_by_check(host: Host) -> tuple[bool, str]:
    seen = inventory.host_resource(host.agent.drivers)
    return {name: (fine, remark) for name, fine, remark in host_check.host_findings(seen)}["backups"]


def test_the_target_is_reported_like_a_pool(host: Host, place: BackupPlace) -> None:
    eventually(lambda: reported(host)["state"] == "up")
    report = reported(host)
    assert found_by_check(host) == (True, report["identity"].removeprefix("backup:"))
    if isinstance(place, BucketPlace):
        assert report == report | {"name": "backup_s3", "shared": True, "total_gb": None, "free_gb": None,
                                   "identity": f"backup:{place.store.endpoint_url}/backups/magnetar/lab"}
    else:
        assert isinstance(place, DirectoryPlace)
        assert report["identity"] == f"backup:{host.agent.host.name}:{place.folder}"
        assert report["name"] == "backup_directory" and report["total_gb"] > 0


def test_a_store_that_refuses_is_reported_as_down(tmp_path: Path) -> None:
    with backup_place("bucket", tmp_path) as place:
        assert isinstance(place, BucketPlace)
        place.store.secret = "changed"
        host = Host(tmp_path / "host", **place.settings)
        host.start()
        eventually(lambda: "403 Forbidden. Check the keys in the credentials file" in found_by_check(host)[1])
        assert not found_by_check(host)[0]
        host.agent.close()


def test_a_pool_must_be_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, backup_pool="nfs", pools={"nfs": {"type": "nfs", "path": str(tmp_path / "nfs")}})
    host.start()
    volume(host)
    with pytest.raises(Conflict, match=f"nothing is mounted at {tmp_path / 'nfs'}. Mount it"):
        backup(host, "b1")
    (tmp_path / "nfs").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "nfs")
    monkeypatch.setattr(mounts, "mount_source", lambda _folder: "filer:/export")
    made = backup(host, "b1")
    assert made["target"] == "backup:filer:/export/backups" and (tmp_path / "nfs/backups" / made["id"]).is_dir()
    assert pools.find_pool(host.agent.host, "nfs").names() == []
    host.agent.close()


@pytest.mark.parametrize(("settings", "message"), [
    ({"pools": {"backup_directory": {"type": "dir", "path": "/srv/x"}}}, "Choose another name for the pool"),
    ({"pools": {"backup_s3": {"type": "dir", "path": "/srv/x"}}}, "Choose another name for the pool"),
    ({"backup_mounted": True}, "needs backup_directory"),
    ({"backup_s3_store_bucket": "backups"}, "needs backup_s3_store_bucket, and the other way round"),
    ({"backup_s3_store_bucket": "b/c"}, "backup_s3_store_bucket: must have 3 to 63 letters"),
    ({"backup_s3_endpoint_url": "s3.example.com"}, "backup_s3_endpoint_url: must be a URL"),
    ({"backup_s3_endpoint_url": "https://key@s3.example.com"}, "without keys"),
    ({"backup_s3_prefix": "/clouds"}, "backup_s3_prefix: must have words"),
    ({"backup_s3_region": "a b"}, "backup_s3_region: must have letters"),
    ({"backup_s3_endpoint_url": "https://s3", "backup_s3_store_bucket": "backups",
      "backup_directory": Path("/srv/backups")}, "backup_directory: excludes backup_s3_store_bucket"),
    ({"backup_pool": "ceph", "pools": {"ceph": {"type": "rbd"}, "nfs": {"type": "nfs", "path": "/srv/x"}}},
     "backup_pool: must be a pool of type dir or nfs .*; the setting pools has nfs"),
    ({"backup_pool": "default"}, "the setting pools has none")])
def test_wrong_settings_of_targets(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        AgentSettings(**settings)


def test_an_encrypted_volume_is_backed_up_as_it_is(host: Host, place: BackupPlace) -> None:
    volume(host, "data", format="luks")
    written(host, at0=b"LUKS", at3=b"code")
    made = backup(host, "b1")
    assert made["encrypted"] and made["stored_chunks"] == 2
    catalogue = json.loads(place.read(made["id"], "backup.json"))
    assert len(catalogue["key_hash"]) == 64 and catalogue["content_size"] == disk(host).stat().st_size
    written(host, at3=b"lost")
    second = backup(host, "b2", parent=made["id"])
    assert second["stored_chunks"] == 1
    restore(host, made["id"])
    assert read(host, 3) == b"code" and read(host, 0) == b"LUKS"
    restore(host, second["id"], "new", size=1, format="luks")
    assert read(host, 3, "new") == b"lost" and temporary(host) == []
    documents = [host.agent.host.documents.find("volume", name) for name in ("data", "new")]
    sealed = [keys.open_sealed_key(host.agent.host, document, keys.SEALED) for document in documents if document]
    assert len(sealed) == 2 and sealed[0] == sealed[1]


def test_an_encrypted_backup_needs_its_key(host: Host, place: BackupPlace) -> None:
    volume(host, "data", format="luks")
    volume(host, "other", format="luks")
    volume(host, "plain")
    written(host, "other", at0=b"mine")
    made = backup(host, "b1")
    with pytest.raises(InvalidField, match="another key than the volume has"):
        restore(host, made["id"], "other")
    with pytest.raises(InvalidField, match="must have the format luks"):
        restore(host, made["id"], "plain")
    with pytest.raises(InvalidField, match="another key than the volume has"):
        restore(host, made["id"], "new", size=1, format="luks", key="0" * 64)
    assert read(host, 0, "other") == b"mine"
    plain = host.ensure("volume_backup", "b2", {"volume": "plain"}).resource
    catalogue = place.read(plain["id"], "backup.json")
    assert not plain["encrypted"] and b"key_hash" not in catalogue


def test_a_backup_outlives_its_key_on_the_host_if_the_cloud_has_it(host: Host, place: BackupPlace) -> None:
    key = "5" * 64
    volume(host, "data", format="luks", key=key)
    written(host, at5=b"safe")
    made = backup(host, "b1")
    host.ensure("volume", "data", None)
    files = {name: place.read(made["id"], name) for name in ("backup.json", "map", "chunks")}
    host.ensure("volume_backup", "b1", None)
    for name, content in files.items():
        place.write(made["id"], name, content)
    assert host.ensure("volume_backup", made["id"], {"name": "b1"}).resource["encrypted"]  # adopted without the key
    with pytest.raises(InvalidField, match="another key"):
        restore(host, made["id"], "new", size=1, format="luks")
    restore(host, made["id"], "new", size=1, format="luks", key=key)
    assert read(host, 5, "new") == b"safe"
