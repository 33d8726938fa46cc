# SPDX-License-Identifier: GPL-3.0-or-later
"""The targets of backups, as tests look at them and damage them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.support.s3 import PREFIX, FakeS3


class BackupPlace(Protocol):
    """A target of backups. *id*: the uuid of a backup."""

    settings: dict[str, Any]

    def names(self) -> set[str]:
        """Return the names of all backups, also of incomplete ones."""

    def read(self, id: str, file: str) -> bytes:
        """Return the content of a file of a backup: backup.json, map or chunks."""

    def write(self, id: str, file: str, content: bytes) -> None:
        """Write a file of a backup."""

    def take_away(self, id: str) -> Callable[[], None]:
        """Remove a backup; return a function that brings it back."""


class DirectoryPlace:
    """The backup directory *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {"backup_directory": folder}

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()

    def read(self, id: str, file: str) -> bytes:
        return (self.folder / id / file).read_bytes()

    def write(self, id: str, file: str, content: bytes) -> None:
        (self.folder / id).mkdir(exist_ok=True)
        (self.folder / id / file).write_bytes(content)

    def take_away(self, id: str) -> Callable[[], None]:
        aside = self.folder.with_name(f"{id}.aside")
        shutil.move(self.folder / id, aside)
        return lambda: shutil.move(aside, self.folder / id) and None


class BucketPlace:
    """The bucket of *store*."""

    def __init__(self, store: FakeS3) -> None:
        self.store, self.settings = store, store.settings()

    def names(self) -> set[str]:
        return {key.removeprefix(f"{PREFIX}/").partition("/")[0] for key in self.store.objects}

    def read(self, id: str, file: str) -> bytes:
        return self.store.objects[self._key(id, file)]

    def write(self, id: str, file: str, content: bytes) -> None:
        self.store.objects[self._key(id, file)] = content

    def take_away(self, id: str) -> Callable[[], None]:
        taken = {key: content for key, content in self.store.objects.items() if key.startswith(f"{PREFIX}/{id}/")}
        for key in taken:
            del self.store.objects[key]
        return lambda: self.store.objects.update(taken)

    def _key(self, id: str, file: str) -> str:
        return f"{PREFIX}/{id}/{'chunks.00000000' if file == 'chunks' else file}"


@contextmanager
def backup_place(kind: str, root: Path) -> Iterator[BackupPlace]:
    """Yield the target of backups of this *kind*: directory, pool or bucket."""
    if kind == "directory":
        yield DirectoryPlace(root / "backups")
    elif kind == "pool":
        place = DirectoryPlace(root / "pool" / "backups")
        place.settings = {"backup_pool": "cold", "pools": {"cold": {"type": "dir", "path": str(root / "pool")}}}
        yield place
    else:
        with FakeS3(root).running() as store:
            yield BucketPlace(store)
