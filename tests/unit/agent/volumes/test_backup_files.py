# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of backups in each storage: what is written comes back, in few requests."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.volumes import backup_files, bucket_storage
from magnetar_agent.volumes.backup_files import BackupCatalogue
from magnetar_agent.volumes.backup_storage import BackupStorage, DirectoryStorage
from magnetar_agent.volumes.bucket_storage import BucketStorage
from magnetar_core.errors import Conflict
from magnetar_core.http import s3
from magnetar_core.http.s3 import S3Bucket, S3Error
from tests.support.s3 import FakeS3

CHUNK = 1 << 10


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    monkeypatch.setattr(s3, "LONGEST", 0.001)
    monkeypatch.setattr(bucket_storage, "PACK", 4 * CHUNK)
    with FakeS3(tmp_path).running() as running:
        yield running


@pytest.fixture(params=["directory", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> BackupStorage:
    if request.param == "bucket":
        return BucketStorage(S3Bucket(request.getfixturevalue("store").location()))
    (tmp_path / "backups").mkdir()
    return DirectoryStorage(tmp_path / "backups")


def catalogue(size: int, parent: str | None = None, content_size: int | None = None) -> BackupCatalogue:
    return BackupCatalogue(str(uuid.uuid4()), parent, "volume", "name", size, "target", "2026-11-30T00:00:00Z",
                           chunk_size=CHUNK, content_size=content_size, key_hash="k" if content_size else "")


def write(storage: BackupStorage, folder: Path, content: bytes, entry: BackupCatalogue) -> BackupCatalogue:
    source = folder / "source"
    source.write_bytes(content)
    return backup_files.write_backup(storage, entry, source, lambda *_numbers: None)


def assemble(storage: BackupStorage, folder: Path, id: str) -> bytes:
    path = folder / "restored"
    done: list[tuple[int, int]] = []
    backup_files.assemble_backup(storage, id, path, lambda now, total: done.append((now, total)))
    assert done == sorted(done) and done[-1][0] == done[-1][1]
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_of_any_changes_comes_back(storage: BackupStorage, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    content, parent, written = bytearray(draw.randbytes(20 * CHUNK + 77)), None, []
    for _link in range(4):
        for _change in range(draw.randrange(8)):
            at = draw.randrange(len(content) // CHUNK) * CHUNK
            content[at:at + CHUNK] = draw.choice((bytes(CHUNK), draw.randbytes(CHUNK), written[0][1][at:at + CHUNK]
                                                  if written else bytes(CHUNK)))
        if draw.random() < 0.3:
            content += draw.randbytes(draw.randrange(3 * CHUNK))
        made = write(storage, tmp_path, bytes(content), catalogue(len(content), parent))
        parent = made.id
        written.append((made, bytes(content)))
    for made, expected in written:
        assert assemble(storage, tmp_path, made.id) == expected
    assert backup_files.dependent_backups(storage, written[0][0].id) == [written[1][0].id]
    for made, _expected in reversed(written):
        backup_files.remove_backup(storage, made.id)
        assert not storage.has_files(made.id)


def test_content_that_is_longer_than_its_volume_comes_back(storage: BackupStorage, tmp_path: Path) -> None:
    """As encrypted content, with the header of LUKS before it."""
    content = random.Random(1).randbytes(7 * CHUNK + 5)
    made = write(storage, tmp_path, content, catalogue(5 * CHUNK, content_size=len(content)))
    assert assemble(storage, tmp_path, made.id) == content


def test_a_bucket_is_asked_for_runs_of_chunks(store: FakeS3, tmp_path: Path) -> None:
    storage = BucketStorage(S3Bucket(store.location()))
    content = bytearray(random.Random(2).randbytes(16 * CHUNK))
    first = write(storage, tmp_path, bytes(content), catalogue(len(content)))
    content[5 * CHUNK:6 * CHUNK] = random.Random(3).randbytes(CHUNK)
    second = write(storage, tmp_path, bytes(content), catalogue(len(content), first.id))
    assert (second.stored_chunks, len([key for key in store.objects if "chunks" in key])) == (1, 5)
    store.requests.clear()
    assert assemble(storage, tmp_path, second.id) == content
    asked = [request.split("/")[-2:] for request in store.requests]
    assert asked == [[second.id, "backup.json"], [first.id, "backup.json"], [second.id, "map"], [first.id, "map"],
                     [second.id, "chunks.00000000"], *([first.id, f"chunks.0000000{n}"] for n in (0, 1, 1, 2, 3))]
    del store.objects[next(key for key in store.objects if key.endswith("2"))]
    with pytest.raises(Conflict, match=rf"damaged: s3://backups/magnetar/lab/{first.id}/chunks cannot be used, because "
                                       "chunk 8 has another checksum"):
        assemble(storage, tmp_path, second.id)


def test_a_store_that_fails_removes_no_parent(storage: BackupStorage, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose catalogue cannot be read now may depend on it; one whose catalogue is damaged does not count."""
    parent = write(storage, tmp_path, b"x" * CHUNK, catalogue(CHUNK))
    child = write(storage, tmp_path, b"y" * CHUNK, catalogue(CHUNK, parent.id))
    if isinstance(storage, DirectoryStorage):
        (storage.folder / str(uuid.uuid4())).touch()
    assert backup_files.dependent_backups(storage, parent.id) == [child.id]
    with monkeypatch.context() as failing:
        failing.setattr(S3Bucket, "get_object", raise_error(S3Error("GET was answered with 503", 503)))
        failing.setattr(Path, "read_bytes", raise_error(OSError(5, "Input/output error")))
        with pytest.raises(Conflict, match="cannot be read"):
            backup_files.dependent_backups(storage, parent.id)
    monkeypatch.setattr(S3Bucket, "get_object", lambda *_args, **_more: b"[]")
    monkeypatch.setattr(Path, "read_bytes", lambda _path: b"damaged")
    assert backup_files.dependent_backups(storage, parent.id) == []


def raise_error(error: Exception) -> Callable[..., bytes]:
    def fail(*_args: Any, **_more: Any) -> bytes:
        raise error
    return fail


def test_only_the_objects_of_a_backup_are_listed(store: FakeS3, tmp_path: Path) -> None:
    storage = BucketStorage(S3Bucket(store.location()))
    made = write(storage, tmp_path, b"x" * CHUNK, catalogue(CHUNK))
    assert backup_files.dependent_backups(storage, made.id) == []
    backup_files.remove_backup(storage, made.id)
    lists = [request for request in store.requests if "list-type" in request]
    assert len(lists) == 3 and all(f"prefix=magnetar%2Flab%2F{made.id}%2F" in request for request in lists)


def test_a_store_that_lists_too_much_keeps_other_backups(store: FakeS3, tmp_path: Path) -> None:
    storage = BucketStorage(S3Bucket(store.location()))
    made = write(storage, tmp_path, b"x" * CHUNK, catalogue(CHUNK))
    store.ignores, before = ("prefix",), dict(store.objects)
    with pytest.raises(Conflict, match="cannot be removed: The endpoint listed the key"):
        storage.remove_backup(str(uuid.uuid4()), None)
    assert store.objects == before and storage.has_backup(made.id)


@pytest.mark.parametrize(("fault", "message"), [
    ((403, "AccessDenied"), "Check the keys in the credentials file.*Then repeat the call"),
    ((404, "NoSuchBucket"), "Create the bucket"), ((503, "SlowDown"), "503 SlowDown")])
def test_an_object_store_that_refuses(store: FakeS3, tmp_path: Path, fault: tuple[int, str], message: str) -> None:
    storage = BucketStorage(S3Bucket(store.location()))
    store.faults = [fault] * 5
    with pytest.raises(Conflict, match=f"The backups in the bucket backups at http.*cannot be written.*{message}"):
        write(storage, tmp_path, b"x" * CHUNK, catalogue(CHUNK))
    store.faults.clear()
    assert not store.objects
    store.credentials_file.chmod(0o644)
    with pytest.raises(Conflict, match="Run: chmod 600"):
        storage.has_backup(str(uuid.uuid4()))
