# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of images in a folder: ``<id>`` when it is complete, ``<id>.part`` while it comes. A part is locked by the
process that writes it. The lock goes with the process, so a part that nobody holds is what a crash left behind."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar_control.services import Document
from magnetar_core import image_format
from magnetar_core.errors import Conflict, ImageRefused, InvalidRequest, NoSpace, TooLarge
from magnetar_core.reconcile import UUID

PIECE = 1 << 20
PART = ".part"
FULL = "There is no room left for the content of images. An operator must make some."
_ZEROS = bytes(PIECE)


class Content:
    """*limit*: largest content in bytes; *max_virtual*: largest that a guest may see of it; *reserve*: bytes that stay
    free on the file system, which may be that of the databases."""

    def __init__(self, folder: Path, limit: int, max_virtual: int, reserve: int) -> None:
        self.folder, self.limit, self.max_virtual, self.reserve = folder, limit, max_virtual, reserve

    @contextmanager
    def part(self, id: str) -> Iterator[int]:
        """The file descriptor of an empty part that nobody else writes; gone at the end. Raises ``Conflict``."""
        path = self._path(id, PART)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = _locked(path, os.O_CREAT)
        if part is not None and os.fstat(part).st_size:  # left behind by a crash; it may be the kept content too
            path.unlink()
            os.close(part)
            part = _locked(path, os.O_CREAT)
        if part is None:
            raise Conflict("The content of this image is being uploaded already; wait for its end.")
        try:
            yield part
        finally:
            path.unlink(missing_ok=True)
            os.close(part)

    def take(self, part: int, chunks: Iterable[bytes], claimed: str, empty: bool = False,
             encrypted: bool = False) -> Document:
        """Write *chunks* to the *part* and look at them; *empty*: there may be none. *encrypted*: see
        ``image_format.inspect``. Gives the image's columns about
        them, sizes in bytes. Raises ``InvalidRequest``, 413 or 507; nothing is kept then."""
        md5, sha512 = hashlib.md5(usedforsecurity=False), hashlib.sha512()
        head, size = bytearray(), 0
        for chunk in chunks:
            size += len(chunk)
            self.check_length(size)
            md5.update(chunk)
            sha512.update(chunk)
            head += chunk[:image_format.HEAD - len(head)]
            self._write(part, chunk)
        virtual = 0 if empty and not size else self._inspected(bytes(head), size, claimed, encrypted)
        os.ftruncate(part, size)  # it may end in a hole
        os.fsync(part)
        return {"size": size, "virtual_size": virtual, "checksum": md5.hexdigest(), "os_hash_value": sha512.hexdigest()}

    def check_length(self, length: int) -> None:
        """Raises ``TooLarge`` for content that no image may have."""
        if length > self.limit:
            raise TooLarge(f"The content has more than the {self.limit} bytes that an image may have here.")

    def _inspected(self, head: bytes, size: int, claimed: str, encrypted: bool) -> int:
        """The virtual size of content in bytes. Raises ``InvalidRequest`` unless it is taken, and as *claimed*."""
        try:
            format, virtual = image_format.inspect(head, size, claimed, encrypted)
            if format != claimed:
                raise ImageRefused(f"disk_format says {claimed}, and the content is {format}. Give the right "
                                   "disk_format.")
        except ImageRefused as error:
            raise InvalidRequest(f"{error.message} The content was not kept.") from error
        if virtual > self.max_virtual:
            raise InvalidRequest(f"The image claims a virtual size of {virtual} bytes; at most {self.max_virtual} are "
                                 "taken.")
        return virtual

    def _write(self, part: int, chunk: bytes) -> None:
        """Write all of it; zeros become a hole. Raises ``NoSpace`` where less than the reserve would stay free."""
        if chunk == _ZEROS[:len(chunk)]:
            os.lseek(part, len(chunk), os.SEEK_CUR)
            return
        there = os.fstatvfs(part)
        if there.f_bavail * there.f_frsize < self.reserve + len(chunk):
            raise NoSpace(FULL)
        try:
            left = memoryview(chunk)
            while left:
                left = left[os.write(part, left):]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(FULL) from error
            raise

    def keep(self, id: str) -> None:
        """The part is complete: give it its name. It stays a part besides, with its lock, until ``part`` ends."""
        self.remove(id)  # what an upload left whose image never became active
        self._path(id).hardlink_to(self._path(id, PART))
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, id: str, start: int = 0) -> Iterator[bytes] | None:
        """The content from *start*, piece by piece; ``None`` when there is none. It is open from now on, so a removal
        does not disturb it."""
        try:
            file = self._path(id).open("rb", buffering=0)
        except FileNotFoundError:
            return None

        def pieces() -> Iterator[bytes]:
            with file:
                file.seek(start)
                while piece := file.read(PIECE):
                    yield piece

        return pieces()

    def remove(self, id: str) -> None:
        """Remove the content; nothing when there is none."""
        self._path(id).unlink(missing_ok=True)

    def abandoned(self) -> list[str]:
        """Ids of images whose upload ended with its process; their parts are removed."""
        found = []
        for path in self.folder.glob(f"*{PART}"):
            part = _locked(path, 0)
            if part is not None:
                path.unlink(missing_ok=True)
                os.close(part)
                found.append(path.name.removesuffix(PART))
        return found

    def kept(self) -> list[str]:
        """Ids of all content."""
        return [path.name for path in self.folder.glob("*") if UUID.fullmatch(path.name)]

    def _path(self, id: str, end: str = "") -> Path:
        return self.folder / f"{uuid.UUID(id)}{end}"  # an id is never a path


def _locked(path: Path, flags: int) -> int | None:
    """A file descriptor with the lock of *path*; ``None`` when somebody holds it, or it is gone."""
    try:
        part = os.open(path, os.O_RDWR | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(part).st_ino:  # else it was removed between opening and locking
            return part
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(part)
    return None
