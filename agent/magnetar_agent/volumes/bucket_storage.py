# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups in a bucket of an object store (S3).

A backup has the objects ``UUID/backup.json``, ``UUID/map`` and ``UUID/chunks.00000000`` and so on, below the prefix of
the settings. The last ones together are the file ``chunks``, in parts of ``PACK`` bytes, so a backup has few objects
and none is too long for one request. An incremental backup also has an empty object ``PARENT/children/UUID``, so that
the backups that depend on another one are found without a list of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, InvalidSettings, NoSpace
from magnetar_core.http.s3 import MOST_OBJECT, S3Bucket, S3Error

from .backup_storage import CATALOGUE, CHUNKS, MAP

if TYPE_CHECKING:
    from .backup_storage import BackupWriter

#: Bytes of an object with chunks: a multiple of the bytes of a chunk.
PACK = 32 << 20
CHILDREN = "children"
#: Bytes of a map that are read at most: a map has 40 bytes for each MiB of the volume.
MOST_MAP = 1 << 30


class BucketStorage:
    """The storage of backups in *bucket*."""

    costly = True

    def __init__(self, bucket: S3Bucket) -> None:
        self.bucket = bucket

    def __str__(self) -> str:
        return f"the bucket {self.bucket.location.bucket} at {self.bucket.location.endpoint_url}"

    def check_access(self) -> None:
        """Raise ``Conflict`` if the bucket cannot be used."""
        with self._reported("cannot be used"):
            self.bucket.check_access()

    def has_backup(self, id: str) -> bool:
        with self._reported("cannot be read"):
            return self.bucket.has_object(f"{id}/{CATALOGUE}")

    def has_files(self, id: str) -> bool:
        with self._reported("cannot be read"):
            return next(self.bucket.list_objects(f"{id}/", limit=1), None) is not None

    def place_of(self, id: str, name: str) -> str:
        return self.bucket.location.uri(id, name)

    def read_file(self, id: str, name: str) -> bytes | None:
        with self._reported("cannot be read"):
            try:
                return self.bucket.get_object(f"{id}/{name}", most=MOST_MAP if name == MAP else MOST_OBJECT)
            except S3Error as error:
                if error.missing:
                    return None
                raise

    def read_chunks(self, id: str, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        run: list[tuple[int, int]] = []
        for place in places:
            if run and (place[0] != sum(run[-1]) or place[0] // PACK != run[0][0] // PACK):
                yield from self._read_run(id, run)
                run = []
            run.append(place)
        if run:
            yield from self._read_run(id, run)

    def _read_run(self, id: str, run: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the chunks *run* of the backup *id*, read by a single request. *run*: pairs (offset, length) of chunks
        that follow each other in the same object."""
        start, end = run[0][0], sum(run[-1])
        content = b""
        with self._reported("cannot be read"):
            try:
                content = self.bucket.get_object(_pack_key(id, start // PACK), start % PACK, end - start)
            except S3Error as error:
                if not error.missing and error.status != 416:
                    raise  # otherwise the object is missing or too short: the caller finds the chunk damaged
        for position, length in run:
            yield content[position - start:position - start + length]

    @contextmanager
    def new_backup(self, id: str, parent: str | None) -> Iterator[BackupWriter]:
        with self._reported("cannot be written"):
            self._remove_objects(id)
            try:
                yield _BucketWriter(self.bucket, id, parent)
            except BaseException as error:
                if not (isinstance(error, S3Error) and error.temporary):  # a store that is away would be asked in vain
                    with suppress(S3Error, InvalidSettings):
                        self._remove_objects(id)
                raise

    def children_of(self, id: str) -> list[str]:
        with self._reported("cannot be read"):
            return [key.rpartition("/")[2] for key in self.bucket.list_objects(f"{id}/{CHILDREN}/")]

    def remove_backup(self, id: str, parent: str | None) -> None:
        with self._reported("cannot be removed"):
            self._remove_objects(id)
            if parent is not None:
                self.bucket.delete_object(_child_key(parent, id))

    def _remove_objects(self, id: str) -> None:
        """Remove all objects of the backup *id*, its catalogue first."""
        self.bucket.delete_object(f"{id}/{CATALOGUE}")
        for key in list(self.bucket.list_objects(f"{id}/")):
            self.bucket.delete_object(key)

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Convert errors of the object store inside the ``with`` block to ``NoSpace`` if the store is full, otherwise
        to ``Conflict``. *what*: verb phrase for the error message, such as "cannot be read"."""
        try:
            yield
        except S3Error as error:
            if error.full:
                raise NoSpace(f"No room is left for the backup in {self}: {error.message}. {error.remedy} Then repeat "
                              "the call; nothing of the backup was kept.") from error
            raise Conflict(f"The backups in {self} {what}: {error.message}. {error.remedy} Then repeat the "
                           "call.") from error
        except InvalidSettings as error:
            raise Conflict(f"The backups in {self} {what}: {error.message}") from error
        except OSError as error:  # of the copy of the volume: see ``S3Bucket`` for those of the network
            raise Conflict(f"The backups in {self} {what}, because the copy of the volume cannot be read: "
                           f"{error.strerror}. Look at state_dir, then repeat the call.") from error


class _BucketWriter:
    """The writer of the backup *id* in *bucket*. *parent*: as in ``BackupStorage.new_backup``."""

    def __init__(self, bucket: S3Bucket, id: str, parent: str | None) -> None:
        self.bucket, self.id, self.parent = bucket, id, parent
        self.pack, self.count = bytearray(), 0

    def add_chunk(self, chunk: bytes) -> None:
        self.pack += chunk
        if len(self.pack) >= PACK:
            self._put_pack()

    def write_catalogue(self, map: bytes, catalogue: bytes) -> None:
        if self.pack:
            self._put_pack()
        self.bucket.put_object(f"{self.id}/{MAP}", map)
        if self.parent is not None:
            self.bucket.put_object(_child_key(self.parent, self.id), b"")
        self.bucket.put_object(f"{self.id}/{CATALOGUE}", catalogue)

    def _put_pack(self) -> None:
        self.bucket.put_object(_pack_key(self.id, self.count), bytes(self.pack))
        self.pack, self.count = bytearray(), self.count + 1


def _pack_key(id: str, number: int) -> str:
    return f"{id}/{CHUNKS}.{number:08}"


def _child_key(parent: str, id: str) -> str:
    return f"{parent}/{CHILDREN}/{id}"
