# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage of backups: a directory of the host (``DirectoryStorage``), or a bucket of an object store
(``bucket_storage``). ``backup_files`` describes the files.

In every storage the catalogue is written last and removed first. So a backup with a catalogue is complete, whenever
the agent dies.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from magnetar_agent.host.write_errors import convert_write_error
from magnetar_agent.reconcile.documents import sync_folder, write_atomically
from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from typing import BinaryIO

CATALOGUE, MAP, CHUNKS, PART = "backup.json", "map", "chunks", ".part"


class BackupWriter(Protocol):
    """The writer of one backup."""

    def add_chunk(self, chunk: bytes) -> None:
        """Append *chunk* to the chunks of the backup."""

    def write_catalogue(self, map: bytes, catalogue: bytes) -> None:
        """Write the map and the catalogue, after all chunks. Then the backup is complete."""


class BackupStorage(Protocol):
    """The interface of storages of backups. *id*: the uuid of a backup. ``str()`` of a storage is a noun phrase for
    error messages. Every method may raise ``Conflict`` if the storage cannot be used."""

    #: Whether a question to the storage is a request over the network, so that lists of backups ask nothing.
    costly: bool

    def has_backup(self, id: str) -> bool:
        """Return whether the storage has the complete backup *id*."""

    def has_files(self, id: str) -> bool:
        """Return whether the storage has any file of the backup *id*."""

    def place_of(self, id: str, name: str) -> str:
        """Return the place of the file *name* of a backup, for error messages."""

    def read_file(self, id: str, name: str) -> bytes | None:
        """Return the content of the file *name* (``CATALOGUE`` or ``MAP``) of a backup; ``None`` if it is missing."""

    def read_chunks(self, id: str, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Yield chunks of a backup. *places*: offset and length of each, in ascending order. A chunk that is cut off
        is yielded as far as it goes."""

    def new_backup(self, id: str, parent: str | None) -> AbstractContextManager[BackupWriter]:
        """Return a context manager that yields the writer of the backup *id*. Files of an interrupted attempt are
        removed first. If an error occurs, nothing of the backup is kept. *parent*: the uuid of an incremental backup's
        parent; ``None`` for a full backup. Raises ``NoSpace``."""

    def children_of(self, id: str) -> list[str]:
        """Return the names in the storage that may be uuids of incremental backups with the parent *id*. The caller
        must check the catalogues of these backups."""

    def remove_backup(self, id: str, parent: str | None) -> None:
        """Remove the backup *id*, complete or incomplete. A missing backup is ignored. *parent*: the uuid of an
        incremental backup's parent; ``None`` for a full backup."""


class DirectoryStorage:
    """Backups in the directory *folder*, each in a folder that is named by its uuid. The folder gets this name when
    it is complete."""

    costly = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return f"the backup directory {self.folder}"

    def has_backup(self, id: str) -> bool:
        return (self.folder / id / CATALOGUE).is_file()

    def has_files(self, id: str) -> bool:
        return (self.folder / id).exists()

    def place_of(self, id: str, name: str) -> str:
        return str(self.folder / id / name)

    def read_file(self, id: str, name: str) -> bytes | None:
        path = self.folder / id / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Conflict(f"{path} cannot be read: {error.strerror}. Look at the backup directory.") from error

    def read_chunks(self, id: str, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        path = self.folder / id / CHUNKS
        try:
            with path.open("rb") as file:
                for position, length in places:
                    yield os.pread(file.fileno(), length, position)
        except OSError as error:
            raise Conflict(f"{path} cannot be read: {error.strerror}. Look at the backup directory, then repeat the "
                           "call.") from error

    @contextmanager
    def new_backup(self, id: str, parent: str | None) -> Iterator[BackupWriter]:
        part = self.folder / f"{id}{PART}"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
            with (part / CHUNKS).open("xb") as chunks:
                yield _FolderWriter(part, self.folder / id, chunks)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise convert_write_error(error, "backup", self.folder, "Delete backups, or enlarge the file system",
                                      "backup directory") from error
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def children_of(self, id: str) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []

    def remove_backup(self, id: str, parent: str | None) -> None:
        try:
            shutil.rmtree(self.folder / f"{id}{PART}", ignore_errors=True)
            (self.folder / id / CATALOGUE).unlink(missing_ok=True)
            if (self.folder / id).exists():
                shutil.rmtree(self.folder / id)
                sync_folder(self.folder)
        except NotADirectoryError:
            return
        except OSError as error:
            raise Conflict(f"The backup {self.folder / id} cannot be removed: {error.strerror}. Look at the backup "
                           "directory, then delete the backup again.") from error


class _FolderWriter:
    """The writer of a backup in the folder *part*, which is renamed to *folder* when the backup is complete."""

    def __init__(self, part: Path, folder: Path, chunks: BinaryIO) -> None:
        self.part, self.folder, self.chunks = part, folder, chunks

    def add_chunk(self, chunk: bytes) -> None:
        self.chunks.write(chunk)

    def write_catalogue(self, map: bytes, catalogue: bytes) -> None:
        self.chunks.flush()
        os.fsync(self.chunks.fileno())
        write_atomically(self.part / MAP, map)
        write_atomically(self.part / CATALOGUE, catalogue)
        sync_folder(self.part)
        self.part.rename(self.folder)
        sync_folder(self.folder.parent)
