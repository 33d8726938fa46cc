# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of images in a folder: ``<id>`` when complete, ``<id>.part`` during an upload.

The process that writes a part holds a lock on it. The lock ends with the process, so a part without a lock was left by
a crash.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar_core import image_format
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, ImageRefused, InvalidRequest, NoSpace, TooLarge
from magnetar_core.reconcile import UUID

PIECE = 1 << 20
PART = ".part"
FULL = "There is no room left for the content of images. An operator must make some."
_ZEROS = bytes(PIECE)


class Content:
    """The folder with the content of images. *limit*: largest content in bytes. *max_virtual*: largest virtual size in
    bytes. *reserve*: bytes that stay free on the file system, which may also hold the databases."""

    def __init__(self, folder: Path, limit: int, max_virtual: int, reserve: int) -> None:
        self.folder, self.limit, self.max_virtual, self.reserve = folder, limit, max_virtual, reserve

    @contextmanager
    def part(self, id: str) -> Iterator[int]:
        """Yield the file descriptor of an empty, locked temporary file for the upload of the image *id*. Remove this
        file when the ``with`` block ends. Raises ``Conflict`` when another process uploads content to the image."""
        path = self._path(id, PART)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = _locked(path, os.O_CREAT)
        if part is not None and os.fstat(part).st_size:  # left by a crash; it may also be the kept content
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

    def write(self, part: int, chunks: Iterable[bytes], claimed: str, empty: bool = False,
              encrypted: bool = False) -> Document:
        """Write *chunks* to the file descriptor *part* and inspect the content. Return the values of the image's
        columns size, virtual_size (in bytes), checksum and os_hash_value.

        *claimed*: the image's disk_format. *empty*: allow empty content. *encrypted*: accept only qcow2 encrypted with
        LUKS. Raises ``InvalidRequest``, ``TooLarge``, ``NoSpace``.
        """
        md5, sha512 = hashlib.md5(usedforsecurity=False), hashlib.sha512()
        head, size = bytearray(), 0
        for chunk in chunks:
            size += len(chunk)
            self.check_length(size)
            md5.update(chunk)
            sha512.update(chunk)
            head += chunk[:image_format.HEAD - len(head)]
            self._write(part, chunk)
        os.ftruncate(part, size)  # the content may end in a hole
        virtual = 0 if empty and not size else self._inspected(part, bytes(head), size, claimed, encrypted)
        os.fsync(part)
        return {"size": size, "virtual_size": virtual, "checksum": md5.hexdigest(), "os_hash_value": sha512.hexdigest()}

    def check_length(self, length: int) -> None:
        """Raise ``TooLarge`` for a *length* above the limit for the content of an image, in bytes."""
        if length > self.limit:
            raise TooLarge(f"The content has more than the {self.limit} bytes that an image may have here.")

    def _inspected(self, part: int, head: bytes, size: int, claimed: str, encrypted: bool) -> int:
        """Return the virtual size in bytes of the image content in the file descriptor *part*. *head*: the first bytes
        of the content. *size*: its length in bytes. *claimed*: the image's disk_format. *encrypted*: accept only qcow2
        encrypted with LUKS. Raises ``InvalidRequest`` if the content has another format than *claimed*, an unaccepted
        format, or a virtual size above the limit."""
        try:
            format, virtual = image_format.inspect_image(head, size, claimed, encrypted,
                                                         lambda at, length: os.pread(part, length, at))
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
        """Append *chunk* to the file descriptor *part*; a chunk of zeros becomes a hole in the file. Raises ``NoSpace``
        when less than the reserve would stay free."""
        if chunk == _ZEROS[:len(chunk)]:
            os.lseek(part, len(chunk), os.SEEK_CUR)
            return
        filesystem = os.fstatvfs(part)
        if filesystem.f_bavail * filesystem.f_frsize < self.reserve + len(chunk):
            raise NoSpace(FULL)
        try:
            remaining = memoryview(chunk)
            while remaining:
                remaining = remaining[os.write(part, remaining):]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(FULL) from error
            raise

    def keep(self, id: str) -> None:
        """Make the completely uploaded content of the image *id* permanent: link the temporary upload file under its
        final name. The temporary file and its lock remain until the ``with`` block of ``part`` ends."""
        self.remove(id)  # left by an upload whose image never became active
        self._path(id).hardlink_to(self._path(id, PART))
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, id: str, start: int = 0) -> Iterator[bytes] | None:
        """Return an iterator over the content of the image *id*, beginning at byte *start*; ``None`` when there is no
        content. The file is opened immediately, so it can be read even if the content is removed meanwhile."""
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
        """Remove the content of an image, if there is any."""
        self._path(id).unlink(missing_ok=True)

    def abandoned(self) -> list[str]:
        """Delete the temporary files of uploads whose process has ended, and return the ids of their images."""
        ids = []
        for path in self.folder.glob(f"*{PART}"):
            part = _locked(path, 0)
            if part is not None:
                path.unlink(missing_ok=True)
                os.close(part)
                ids.append(path.name.removesuffix(PART))
        return ids

    def complete_ids(self) -> list[str]:
        """Return the ids of the images whose content is stored completely. Images whose upload is still running are
        left out."""
        return [path.name for path in self.folder.glob("*") if UUID.fullmatch(path.name)]

    def _path(self, id: str, end: str = "") -> Path:
        return self.folder / f"{uuid.UUID(id)}{end}"  # UUID() makes sure that an id is not a path


def _locked(path: Path, flags: int) -> int | None:
    """Open and lock the file *path* (*flags* of ``os.open``), and return its descriptor; ``None`` when another process
    has the lock, or the file is gone."""
    try:
        part = os.open(path, os.O_RDWR | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(part).st_ino:  # otherwise removed between opening and locking
            return part
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(part)
    return None
