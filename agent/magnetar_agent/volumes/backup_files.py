# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of backups, in any storage (``backup_storage``).

A volume is divided into chunks. A backup has the file ``map`` with an entry for each chunk of the volume, the file
``chunks`` with the chunks that this backup stores, and the catalogue ``backup.json``. A backup without a parent stores
all chunks that are not zero; a backup with a parent stores the chunks whose hash differs from the parent's.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import struct
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict, NoSpace

from .backup_storage import CATALOGUE, CHUNKS, MAP, PART

if TYPE_CHECKING:
    from typing import BinaryIO

    from magnetar_agent.host.storage import Progress

    from .backup_storage import BackupStorage, BackupWriter

#: Bytes of a chunk. Every backup states its own, so that a later version can choose another size.
CHUNK = 1 << 20
#: Version of the format; a catalogue of another version is refused.
VERSION = 1
#: An entry of the map: SHA-256 of the chunk (zeros for a chunk of zeros), and the chunk's position in the file
#: ``chunks``, or ``ELSEWHERE``: the chunk is zero, or an earlier backup of the chain stores it.
ENTRY = struct.Struct(">32sq")
ELSEWHERE = -1
ZERO = bytes(32)


@dataclass(frozen=True)
class BackupCatalogue:
    """The content of the file ``backup.json``, which describes a volume backup and is sufficient to restore it without
    any database.

    - *size*: bytes of the volume. *content_size*: for encrypted content, its bytes including the LUKS header; otherwise
      ``None``.
    - *stored_bytes*, *stored_chunks*: the data in this backup, without that of its parents.
    - *checksum*, *map_checksum*: SHA-256 of the files ``chunks`` and ``map``.
    - *target*: the result of ``target_identity`` for the directory or bucket of the backup. *record*: the backup's
      fields in the control plane's database.
    - *key_hash*: result of ``hash_key`` for an encrypted volume; otherwise empty.
    """

    id: str
    parent: str | None
    volume: str
    name: str
    size: int
    target: str
    created_at: str
    bootable: bool = False
    chunk_size: int = CHUNK
    stored_bytes: int = 0
    stored_chunks: int = 0
    checksum: str = ""
    map_checksum: str = ""
    version: int = VERSION
    record: dict[str, Any] = field(default_factory=dict)
    content_size: int | None = None
    key_hash: str = ""

    @property
    def content_bytes(self) -> int:
        """Return the size in bytes of the backed-up content, which is stored in chunks of ``chunk_size`` bytes."""
        return self.size if self.content_size is None else self.content_size

    @property
    def chunk_count(self) -> int:
        """Return the number of chunks of the content."""
        return -(-self.content_bytes // self.chunk_size)

    def as_json(self) -> str:
        """Return the JSON text for the file ``backup.json``. The fields for encryption are left out for an unencrypted
        volume, because agents of earlier releases refuse unknown fields."""
        fields = dataclasses.asdict(self)
        if not self.key_hash:
            del fields["content_size"], fields["key_hash"]
        return json.dumps(fields, indent=1)


def hash_key(id: str, key: str) -> str:
    """Return a hash of *key*, the encryption key of the backup *id*, to check whether a key is the right one."""
    return hashlib.sha256(f"{id}:{key}".encode()).hexdigest()


def read_catalogue(storage: BackupStorage, id: str) -> BackupCatalogue:
    """Read the file ``backup.json`` of the backup *id* in *storage*. Raises ``Conflict`` if it is missing or not valid.
    """
    content, place = storage.read_file(id, CATALOGUE), storage.place_of(id, CATALOGUE)
    if content is None:
        raise Conflict(f"There is no backup {id} in {storage}. Restore its files there, or name another backup.")
    try:
        catalogue = BackupCatalogue(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise Conflict(f"The catalogue {place} cannot be read: {error}. Restore the file, or name another "
                       "backup.") from None
    if catalogue.version != VERSION or catalogue.id != id or not _is_sound(catalogue):
        raise Conflict(f"The catalogue {place} is not one of the backup {id} that this agent can read. Restore the "
                       "file, or name another backup.")
    return catalogue


def _is_sound(catalogue: BackupCatalogue) -> bool:
    numbers = (catalogue.size, catalogue.content_bytes, catalogue.chunk_size, catalogue.stored_bytes,
               catalogue.stored_chunks)
    return all(isinstance(number, int) and number >= 0 for number in numbers) and catalogue.chunk_size > 0 and \
        isinstance(catalogue.record, dict) and isinstance(catalogue.key_hash, str) and \
        (catalogue.parent is None or _is_uuid(catalogue.parent))


def _is_uuid(text: Any) -> bool:
    try:
        return isinstance(text, str) and str(uuid.UUID(text)) == text
    except ValueError:
        return False


def read_chain(storage: BackupStorage, id: str) -> list[BackupCatalogue]:
    """Return the catalogues (contents of ``backup.json``) of the backup *id*, its parent, and so on up to the full
    backup. Raises ``Conflict`` if one of them is missing."""
    chain: list[BackupCatalogue] = []
    link: str | None = id
    while link is not None:
        if any(catalogue.id == link for catalogue in chain):
            raise Conflict(f"The backup {id} cannot be read: its parents form a circle at {link}.")
        try:
            chain.append(read_catalogue(storage, link))
        except Conflict as error:
            if not chain:
                raise
            raise Conflict(f"The backup {id} is incremental and needs the backup {link}, which is missing. "
                           f"{error.message}", missing=link) from None
        link = chain[-1].parent
    return chain


def dependent_backups(storage: BackupStorage, id: str) -> list[str]:
    """Return the uuids of the incremental backups in *storage* whose parent is the backup *id*. Raises ``Conflict`` if
    the storage cannot be read: a backup must not be removed while it is not known whether others need it."""
    dependants = []
    for child in storage.children_of(id):
        content = storage.read_file(child, CATALOGUE) if _is_uuid(child) else None
        with suppress(ValueError, AttributeError):  # a damaged catalogue prevents no removal
            if content is not None and json.loads(content).get("parent") == id:
                dependants.append(child)
    return dependants


def remove_backup(storage: BackupStorage, id: str) -> None:
    """Remove the backup *id*, complete or incomplete, from *storage*. A missing backup is ignored."""
    parent = None
    with suppress(Conflict):
        parent = read_catalogue(storage, id).parent
    storage.remove_backup(id, parent)


def write_backup(storage: BackupStorage, catalogue: BackupCatalogue, source: Path,
                 progress: Progress) -> BackupCatalogue:
    """Write the raw disk file *source* to *storage* as the backup described by *catalogue*. Return the catalogue with
    sizes and checksums. *progress*: called with the processed and the total bytes. Raises ``NoSpace``, or ``Conflict``
    if a parent is missing or damaged; an incomplete backup is removed."""
    known = b"" if catalogue.parent is None else read_map(storage, read_chain(storage, catalogue.parent)[0])
    with source.open("rb") as content, storage.new_backup(catalogue.id, catalogue.parent) as writer:
        complete, map = _write_chunks(writer, catalogue, content, known, progress)
        writer.write_catalogue(map, complete.as_json().encode())
    return complete


def _write_chunks(writer: BackupWriter, catalogue: BackupCatalogue, content: BinaryIO, known: bytes,
                  progress: Progress) -> tuple[BackupCatalogue, bytes]:
    """Write the chunks that differ from those in the parent backup. Return *catalogue* with sizes and checksums, and
    the content of the file ``map``: for each chunk of the volume its hash and its offset in ``chunks``. *content*: the
    raw disk file. *known*: content of the parent's file ``map``; empty for a full backup."""
    stored, stored_bytes, checksum, map = 0, 0, hashlib.sha256(), bytearray()
    for number, chunk in enumerate(_chunks(content, catalogue)):
        digest = hashlib.sha256(chunk).digest() if chunk else ZERO
        position = ELSEWHERE
        if chunk and known[number * ENTRY.size:number * ENTRY.size + len(digest)] != digest:
            position = stored_bytes
            writer.add_chunk(chunk)
            checksum.update(chunk)
            stored, stored_bytes = stored + 1, stored_bytes + len(chunk)
        map += ENTRY.pack(digest, position)
        progress(min((number + 1) * catalogue.chunk_size, catalogue.content_bytes), catalogue.content_bytes)
    return dataclasses.replace(catalogue, stored_chunks=stored, stored_bytes=stored_bytes,
                               checksum=checksum.hexdigest(), map_checksum=hashlib.sha256(map).hexdigest()), bytes(map)


def _chunks(content: BinaryIO, catalogue: BackupCatalogue) -> Iterator[bytes]:
    """Yield the chunks of *content*, an open raw disk file; ``b""`` for a chunk that contains only zeros. Holes of the
    file are not read."""
    descriptor, data = content.fileno(), 0
    for start in range(0, catalogue.content_bytes, catalogue.chunk_size):
        length = min(catalogue.chunk_size, catalogue.content_bytes - start)
        if data < start + length:
            data = _next_data(descriptor, max(data, start), catalogue.content_bytes)
        if data >= start + length:
            yield b""
            continue
        chunk = os.pread(descriptor, length, start).ljust(length, b"\0")
        data = start + length
        yield chunk if chunk.count(0) != length else b""


def _next_data(descriptor: int, start: int, end: int) -> int:
    """Return the offset of the first data at or after *start* in the open file *descriptor*; *end* if only holes
    follow."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        return start  # the file system has no holes


def read_map(storage: BackupStorage, catalogue: BackupCatalogue) -> bytes:
    """Return the content of the file ``map`` of a backup in *storage*: for each chunk of the volume its hash, and its
    offset in the file ``chunks`` if this backup stores the chunk. Raises ``Conflict`` if the file is damaged."""
    entries, place = storage.read_file(catalogue.id, MAP), storage.place_of(catalogue.id, MAP)
    if entries is None:
        raise _damage(place, "it is missing")
    if len(entries) != catalogue.chunk_count * ENTRY.size or \
            hashlib.sha256(entries).hexdigest() != catalogue.map_checksum:
        raise _damage(place, "its checksum is wrong")
    return entries


def _damage(place: str, why: str) -> Conflict:
    return Conflict(f"The backup is damaged: {place} cannot be used, because {why}. Restore the file from a copy, or "
                    "name an earlier backup. Nothing was changed.")


def assemble_backup(storage: BackupStorage, id: str, path: Path, progress: Progress) -> BackupCatalogue:
    """Restore the content of the backup *id* from *storage* into the raw disk file *path*, checking the hash of each
    chunk. Return its catalogue. *progress*: called with the written and the total bytes. Raises ``NoSpace``, or
    ``Conflict`` if a backup of its chain is missing or damaged."""
    chain = read_chain(storage, id)
    newest = chain[0]
    if any(catalogue.chunk_size != newest.chunk_size for catalogue in chain):
        raise Conflict(f"The backup {id} and its parents have chunks of different sizes, so it cannot be restored.")
    maps, part = [read_map(storage, catalogue) for catalogue in chain], path.with_name(path.name + PART)
    try:
        with part.open("wb") as content:
            content.truncate(newest.content_bytes)
            written = 0
            for number, chunk in _stored_chunks(storage, chain, maps):
                os.pwrite(content.fileno(), chunk, number * newest.chunk_size)
                written += len(chunk)
                progress(written, newest.content_bytes)
            progress(newest.content_bytes, newest.content_bytes)
            os.fsync(content.fileno())
        part.rename(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise NoSpace(f"{path}, the temporary file of a restore, cannot be written: {error.strerror}. Free some room "
                      "there, then repeat the call.") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return newest


def _stored_chunks(storage: BackupStorage, chain: Sequence[BackupCatalogue],
                   maps: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield index and content of the chunks of the first backup in *chain*, except chunks of zeros, and check their
    hashes. They are read from one backup after the other. *maps*: for each backup in *chain*, the content of its file
    ``map``."""
    newest, owners = chain[0], _chunk_owners(storage, chain, maps)
    for owner, (catalogue, map) in enumerate(zip(chain, maps, strict=True)):
        numbers = [number for number, index in enumerate(owners) if index == owner]
        places = ((ENTRY.unpack_from(map, number * ENTRY.size)[1],
                   min(newest.chunk_size, newest.content_bytes - number * newest.chunk_size)) for number in numbers)
        for number, chunk in zip(numbers, storage.read_chunks(catalogue.id, places), strict=True):
            if hashlib.sha256(chunk).digest() != ENTRY.unpack_from(maps[0], number * ENTRY.size)[0]:
                raise _damage(storage.place_of(catalogue.id, CHUNKS), f"chunk {number} has another checksum")
            yield number, chunk


def _chunk_owners(storage: BackupStorage, chain: Sequence[BackupCatalogue], maps: Sequence[bytes]) -> array[int]:
    """Return, for each chunk of the first backup in *chain*, the index of the newest backup that stores it; -1 for a
    chunk of zeros. *maps*: as in ``_stored_chunks``."""
    owners = array("i")
    for number, (wanted, position) in enumerate(ENTRY.iter_unpack(maps[0])):
        owner = 0
        if wanted == ZERO:
            owner = -1
        elif position == ELSEWHERE:
            owner = next((index for index, map in enumerate(maps) if (number + 1) * ENTRY.size <= len(map) and
                          _stores(map, number, wanted)), len(maps))
        if owner == len(maps):
            raise _damage(storage.place_of(chain[0].id, MAP), f"no backup of its chain stores chunk {number}")
        owners.append(owner)
    return owners


def _stores(map: bytes, number: int, digest: bytes) -> bool:
    found, position = ENTRY.unpack_from(map, number * ENTRY.size)
    return bool(found == digest and position != ELSEWHERE)
