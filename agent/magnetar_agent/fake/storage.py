# SPDX-License-Identifier: GPL-3.0-or-later
"""Storage pools of the fake: folders named ``pool-NAME`` next to its state, with a file for each volume. A file
``room`` in such a folder sets the capacity of the pool in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar_agent.host.storage import CephImage, Disk, NetworkSource, PoolContent, Progress
from magnetar_core.errors import Conflict, HypervisorError, NoSpace

from .disks import copy_sparse, read_fake_disk
from .exports import Exports
from .rbd import FakeRbdPool

#: Bytes of a pool without a size.
PLENTY = 2**40


class Storage(Exports):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for storage pools. A
    volume is a file that the fake reports as a block device."""

    def add_pool(self, name: str, room: int | None = None) -> Path:
        """Simulate that an operator defines and starts a pool with a capacity of *room* bytes (``None``: unlimited).
        Return its folder."""
        folder = self._pool(name)
        folder.mkdir(parents=True)
        if room is not None:
            (folder / "room").write_text(str(room))
        return folder

    @contextmanager
    def export_image(self, image: CephImage) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the size of a Ceph image and an iterator over its content. The image is the file
        ``ceph/FSID/POOL/NAME@SNAPSHOT`` in the folder of the fake's state."""
        with self._call("export_image"):
            pool = (self._folder or Path("/nonexistent")) / "ceph" / image.fsid / image.pool
            path = pool / f"{image.name}@{image.snapshot}"
            if not path.exists():
                raise HypervisorError(f"rbd could not read the image {image.name}: (2) No such file or directory.")
        content = path.read_bytes()
        yield len(content), iter([content[:4096], content[4096:]])

    def check_pool(self, pool: str) -> None:
        with self._call("check_pool"):
            self._there(pool)

    def contents(self, pool: str) -> dict[str, PoolContent]:
        with self._call("contents"):
            return {path.name: _content(path) for path in self._there(pool).iterdir()
                    if path.name != "room" and "@" not in path.name}

    def content(self, pool: str, name: str) -> PoolContent | None:
        with self._call("content"):
            path = self._there(pool) / name
            return _content(path) if path.exists() else None

    def make_content(self, pool: str, name: str, size: int) -> None:
        with self._call("make_content"):
            path = self._there(pool) / name
            if path.exists():
                raise Conflict(f"The storage pool {pool!r} has content called {name} already.")
            self._check_room(path.parent, size)
            with path.open("wb") as stream:
                stream.truncate(size)

    def grow_content(self, pool: str, name: str, size: int) -> None:
        with self._call("grow_content"):
            path = self._there(pool) / name
            if not path.exists():
                raise HypervisorError(f"The content {name} is gone from the storage pool {pool!r}. Restore it there.")
            more = size - path.stat().st_size
            if more > 0:
                self._check_room(path.parent, more)
                with path.open("r+b") as stream:
                    stream.truncate(size)

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        with self._call("remove_content"):
            path = self._there(pool) / name
            if wipe is not None and path.exists():
                self.wiped.append(name)
            path.unlink(missing_ok=True)

    def pool_room(self, pool: str) -> tuple[int, int]:
        with self._call("pool_room"):
            folder = self._there(pool)
            room = folder / "room"
            total = int(room.read_text()) if room.exists() else PLENTY
            return total, max(0, total - _used(folder))

    def pool_identity(self, pool: str) -> str:
        """Return the real path of the pool's folder, without symbolic links. Two hosts share a pool if this path is the
        same on both hosts."""
        with self._call("pool_identity"):
            return str(self._there(pool).resolve())

    def rbd_pool(self, pool: str) -> FakeRbdPool:
        with self._call("rbd_pool"):
            return FakeRbdPool(self._there(pool), self._call)

    def rbd_room(self, pool: str) -> tuple[int, int]:
        return self.pool_room(pool)

    def copy_into(self, source: Path | NetworkSource, source_format: str, target: Disk, progress: Progress,
                  blank: bool = False) -> None:
        with self._call("copy_into", needs_libvirt=False):
            source_disk = read_fake_disk(source, source_format) if isinstance(source, Path) else None
            if source_disk is None or not isinstance(source, Path):
                raise HypervisorError(f"The disk {source} cannot be copied: it does not exist.")
            progress(0, source_disk.virtual_size)
            place = self._behind(target.remote).path if target.remote else target.path
            size = place.stat().st_size
            if source_disk.virtual_size > size:
                raise HypervisorError(f"The disk {source} does not fit into {place}.")
            if source_format == "raw":
                copy_sparse(source, place)
                with place.open("r+b") as stream:
                    stream.truncate(size)
            progress(source_disk.virtual_size, source_disk.virtual_size)

    def _pool(self, name: str) -> Path:
        folder = self._folder or Path("/nonexistent")
        return folder / f"pool-{name}"

    def _there(self, name: str) -> Path:
        folder = self._pool(name)
        if not folder.is_dir():
            raise Conflict(f"libvirt has no storage pool {name!r}. Define it on the host (virsh pool-define) and "
                           "start it, then repeat the call.")
        return folder

    def _check_room(self, folder: Path, more: int) -> None:
        room = folder / "room"
        if room.exists() and _used(folder) + more > int(room.read_text()):
            raise NoSpace(f"The storage pool {folder.name} has insufficient free space. Free some, then repeat the "
                          "call.")


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != "room")


def _content(path: Path) -> PoolContent:
    return PoolContent(path.stat().st_size, Disk(path, "", "raw", block_device=True))
