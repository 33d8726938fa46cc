# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of backups: in the backup directory, each backup has a folder that is named by its uuid.

A volume is divided into chunks. The folder has the file ``map`` with an entry for each chunk of the volume, the file
``chunks`` with the chunks that this backup stores, and the catalogue ``backup.json``. A backup without a parent stores
all chunks that are not zero; a backup with a parent stores the chunks whose hash differs from the parent's.

The folder gets its name when it is complete. A removal begins with the catalogue. So a folder with a catalogue is
complete, whenever the agent dies.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.documents import sync_folder, write_atomically
from magnetar_core.errors import Conflict, MagnetarError, NoSpace

if TYPE_CHECKING:
    from typing import BinaryIO

    from magnetar_agent.host.storage import Progress

#: Bytes of a chunk. Every backup states its own, so that a later version can choose another size.
CHUNK = 1 << 20
#: Version of the format; a catalogue of another version is refused.
VERSION = 1
CATALOGUE, MAP, CHUNKS, PART = "backup.json", "map", "chunks", ".part"
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
    - *target*: a text that identifies the backup directory and is equal on all hosts that share it. *record*: the
      backup's fields in the control plane's database.
    - *key_hash*: result of ``hash_key`` for an encrypted volume; otherwise empty."""

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


def has_backup(directory: Path, id: str) -> bool:
    """Return whether the backup directory *directory* contains the complete backup *id*."""
    return (directory / id / CATALOGUE).is_file()


def read_catalogue(directory: Path, id: str) -> BackupCatalogue:
    """Read the file ``backup.json`` of the backup *id* in the backup directory *directory*. Raises ``Conflict`` if it
    is missing or not valid."""
    path = directory / id / CATALOGUE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        catalogue = BackupCatalogue(**content)
    except FileNotFoundError:
        raise Conflict(f"There is no backup {id} in {directory}. Restore its folder there, or name another "
                       "backup.") from None
    except (OSError, ValueError, TypeError) as error:
        raise Conflict(f"The catalogue {path} cannot be read: {error}. Restore the file, or name another "
                       "backup.") from None
    if catalogue.version != VERSION or catalogue.id != id or not _is_sound(catalogue):
        raise Conflict(f"The catalogue {path} is not one of the backup {id} that this agent can read. Restore the "
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


def read_chain(directory: Path, id: str) -> list[BackupCatalogue]:
    """Return the catalogues (contents of ``backup.json``) of the backup *id*, its parent, and so on up to the full
    backup. Raises ``Conflict`` if one of them is missing."""
    chain: list[BackupCatalogue] = []
    link: str | None = id
    while link is not None:
        if any(catalogue.id == link for catalogue in chain):
            raise Conflict(f"The backup {id} cannot be read: its parents form a circle at {link}.")
        try:
            chain.append(read_catalogue(directory, link))
        except Conflict as error:
            if not chain:
                raise
            raise Conflict(f"The backup {id} is incremental and needs the backup {link}, which is missing. "
                           f"{error.message}", missing=link) from None
        link = chain[-1].parent
    return chain


def dependent_backups(directory: Path, id: str) -> list[str]:
    """Return the uuids of the incremental backups in the backup directory *directory* whose parent is the backup *id*.
    """
    dependants = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        with suppress(Conflict):  # a damaged catalogue prevents no removal
            if _is_uuid(path.name) and has_backup(directory, path.name) and \
                    read_catalogue(directory, path.name).parent == id:
                dependants.append(path.name)
    return dependants


def remove_backup(directory: Path, id: str) -> None:
    """Remove the backup *id*, complete or incomplete, from the backup directory *directory*. A missing backup is
    ignored."""
    try:
        shutil.rmtree(directory / f"{id}{PART}", ignore_errors=True)
        (directory / id / CATALOGUE).unlink(missing_ok=True)
        if (directory / id).exists():
            shutil.rmtree(directory / id)
            sync_folder(directory)
    except NotADirectoryError:
        return
    except OSError as error:
        raise Conflict(f"The backup {directory / id} cannot be removed: {error.strerror}. Look at the backup "
                       "directory, then delete the backup again.") from error


def write_backup(directory: Path, catalogue: BackupCatalogue, source: Path, progress: Progress) -> BackupCatalogue:
    """Write the raw disk file *source* to the backup directory *directory* as the backup described by *catalogue*.
    Return the catalogue with sizes and checksums. *progress*: called with the processed and the total bytes. Raises
    ``NoSpace``, or ``Conflict`` if a parent is missing or damaged; an incomplete backup is removed."""
    part, folder = directory / f"{catalogue.id}{PART}", directory / catalogue.id
    known = b"" if catalogue.parent is None else read_map(directory, read_chain(directory, catalogue.parent)[0])
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        complete = _write_chunks(part, catalogue, source, known, progress)
        write_atomically(part / CATALOGUE, complete.as_json().encode())
        sync_folder(part)
        part.rename(folder)
        sync_folder(directory)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise _write_error(directory, error) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return complete


def _write_error(directory: Path, error: OSError) -> MagnetarError:
    """Convert *error*, raised while a backup was written to *directory*, to ``NoSpace`` or ``Conflict``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(f"No room is left for the backup in {directory} ({error.strerror}); nothing of it was kept. "
                       "Delete backups, or enlarge the file system, then repeat the call.")
    return Conflict(f"The backup cannot be written to {directory}: {error.strerror or error}. Nothing of it was kept. "
                    "Look at the backup directory, then repeat the call.")


def _write_chunks(part: Path, catalogue: BackupCatalogue, source: Path, known: bytes,
                  progress: Progress) -> BackupCatalogue:
    """Write two files of a backup into the folder *part*: ``chunks`` (the chunks, pieces of equal size, that differ
    from those in the parent backup) and ``map`` (for each chunk of the volume its hash and its offset in ``chunks``).
    *source*: the raw disk file. *known*: content of the parent's file ``map``; empty for a full backup. Return
    *catalogue* with sizes and checksums."""
    stored, stored_bytes, checksum, map_checksum = 0, 0, hashlib.sha256(), hashlib.sha256()
    with source.open("rb") as content, (part / MAP).open("xb") as map, (part / CHUNKS).open("xb") as chunks:
        for number, chunk in enumerate(_chunks(content, catalogue)):
            digest = hashlib.sha256(chunk).digest() if chunk else ZERO
            position = ELSEWHERE
            if chunk and known[number * ENTRY.size:number * ENTRY.size + len(digest)] != digest:
                position = stored_bytes
                chunks.write(chunk)
                checksum.update(chunk)
                stored, stored_bytes = stored + 1, stored_bytes + len(chunk)
            entry = ENTRY.pack(digest, position)
            map.write(entry)
            map_checksum.update(entry)
            progress(min((number + 1) * catalogue.chunk_size, catalogue.content_bytes), catalogue.content_bytes)
        for file in (map, chunks):
            file.flush()
            os.fsync(file.fileno())
    return dataclasses.replace(catalogue, stored_chunks=stored, stored_bytes=stored_bytes,
                               checksum=checksum.hexdigest(), map_checksum=map_checksum.hexdigest())


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


def read_map(directory: Path, catalogue: BackupCatalogue) -> bytes:
    """Return the content of the file ``map`` of a backup in the backup directory *directory*: for each chunk of the
    volume its hash, and its offset in the file ``chunks`` if this backup stores the chunk. Raises ``Conflict`` if the
    file is damaged."""
    path = directory / catalogue.id / MAP
    try:
        entries = path.read_bytes()
    except OSError as error:
        raise _damage(path, error.strerror or str(error)) from None
    if len(entries) != catalogue.chunk_count * ENTRY.size or \
            hashlib.sha256(entries).hexdigest() != catalogue.map_checksum:
        raise _damage(path, "its checksum is wrong")
    return entries


def _damage(path: Path, why: str) -> Conflict:
    return Conflict(f"The backup is damaged: {path} cannot be used, because {why}. Restore the file from a copy, or "
                    "name an earlier backup. Nothing was changed.")


def assemble_backup(directory: Path, id: str, path: Path, progress: Progress) -> BackupCatalogue:
    """Restore the content of the backup *id* from the backup directory *directory* into the raw disk file *path*,
    checking the hash of each chunk. Return its catalogue. *progress*: called with the written and the total bytes.
    Raises ``NoSpace``, or ``Conflict`` if a backup of its chain is missing or damaged."""
    chain = read_chain(directory, id)
    newest = chain[0]
    if any(catalogue.chunk_size != newest.chunk_size for catalogue in chain):
        raise Conflict(f"The backup {id} and its parents have chunks of different sizes, so it cannot be restored.")
    maps, part = [read_map(directory, catalogue) for catalogue in chain], path.with_name(path.name + PART)
    try:
        with ExitStack() as files, part.open("wb") as content:
            stores = [files.enter_context(_opened(directory, catalogue)) for catalogue in chain]
            content.truncate(newest.content_bytes)
            for number in range(newest.chunk_count):
                if chunk := _stored_chunk(directory, chain, maps, stores, number):
                    os.pwrite(content.fileno(), chunk, number * newest.chunk_size)
                progress(min((number + 1) * newest.chunk_size, newest.content_bytes), newest.content_bytes)
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


def _opened(directory: Path, catalogue: BackupCatalogue) -> BinaryIO:
    path = directory / catalogue.id / CHUNKS
    try:
        return path.open("rb")
    except OSError as error:
        raise _damage(path, error.strerror or str(error)) from None


def _stored_chunk(directory: Path, chain: Sequence[BackupCatalogue], maps: Sequence[bytes], stores: Sequence[BinaryIO],
                  number: int) -> bytes:
    """Return the chunk with index *number* of the first backup in *chain*, read from the newest backup that stores it;
    ``b""`` for a chunk of zeros. *maps*, *stores*: for each backup in *chain*, the content of its file ``map`` (hash
    and offset of each chunk), and its open file ``chunks``."""
    wanted, _position = ENTRY.unpack_from(maps[0], number * ENTRY.size)
    if wanted == ZERO:
        return b""
    length = min(chain[0].chunk_size, chain[0].size - number * chain[0].chunk_size)
    for catalogue, map, store in zip(chain, maps, stores, strict=True):
        if (number + 1) * ENTRY.size > len(map):
            continue
        digest, position = ENTRY.unpack_from(map, number * ENTRY.size)
        if digest == wanted and position != ELSEWHERE:
            chunk = os.pread(store.fileno(), length, position)
            if hashlib.sha256(chunk).digest() == wanted:
                return chunk
            raise _damage(directory / catalogue.id / CHUNKS, f"chunk {number} has another checksum")
    raise _damage(directory / chain[0].id / MAP, f"no backup of its chain stores chunk {number}")
