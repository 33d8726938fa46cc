# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage of images' content: ``<state_dir>/images/<image uuid>/<sha256>``, read-only.

The name is the digest, and a file never changes. Servers keep hard links to it, so their backing files stay right when
the image is removed, or recreated with other content under the same uuid. Content is written into a ``.part`` file,
which its writer locks; an unlocked part was left by a crash. Content that replaces other content waits as ``.ready``
until the old content is removed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from magnetar_agent.host.write_errors import NO_ROOM
from magnetar_agent.reconcile.documents import sync_folder
from magnetar_core.errors import ImageRefused, InvalidRequest, NoSpace, TooLarge

from .sources import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from magnetar_agent.reconcile.locks import Locks

#: The lock of a sweep, and of code that puts content in place.
SWEEP = ("", "images")
#: Digests that are stored for all content, so that a checksum of either kind can be compared.
ALGORITHMS = ("sha256", "sha512")
_ZEROS = bytes(CHUNK)
#: Readable by QEMU's user through its group; writable by no user.
MODE = 0o440


class ContentPart:
    """A file with the content of an image while it is being written. *digests*: hex digest by algorithm, set by
    ``write_chunks`` or ``measure``. *member*: empty, unless the content was an archive and was replaced by a file in
    it; then the name of that file in the archive. *digests* are still those of the archive."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.size, self.member = 0, ""
        self.digests: dict[str, str] = {}

    def write_chunks(self, chunks: Iterable[bytes], length: int | None, limit: int,
                     advance: Callable[[int], None]) -> None:
        """Write all *chunks* to the file, sparsely, and compute the digests. *length*: the announced number of bytes,
        if known. *advance*: called with the number of bytes written so far. Raises ``TooLarge`` for more than *limit*
        bytes, ``InvalidRequest`` if the length is wrong."""
        hashes = {name: hashlib.new(name) for name in ALGORITHMS}
        for chunk in chunks:
            self.size += len(chunk)
            check_length(self.size, limit)
            if length is not None and self.size > length:
                raise InvalidRequest(f"More content came than the {length} bytes that were announced.")
            for digest in hashes.values():
                digest.update(chunk)
            self._write(chunk)
            advance(self.size)
        if length is not None and self.size < length:
            raise InvalidRequest(f"The content ended after {self.size} of {length} bytes. Send it again.")
        os.ftruncate(self.descriptor, self.size)
        self.digests = {name: digest.hexdigest() for name, digest in hashes.items()}

    def measure(self, advance: Callable[[int], None]) -> None:
        """Compute size and digests of content that is already in the file. *advance*: called with the number of bytes
        read so far."""
        hashes = {name: hashlib.new(name) for name in ALGORITHMS}
        while chunk := os.pread(self.descriptor, CHUNK, self.size):
            self.size += len(chunk)
            for digest in hashes.values():
                digest.update(chunk)
            advance(self.size)
        self.digests = {name: digest.hexdigest() for name, digest in hashes.items()}

    def _write(self, chunk: bytes) -> None:
        for at in range(0, len(chunk), CHUNK):
            view = memoryview(chunk)[at:at + CHUNK]
            if view == _ZEROS[:len(view)]:
                os.lseek(self.descriptor, len(view), os.SEEK_CUR)
                continue
            while view:
                view = view[os.write(self.descriptor, view):]

    def replace(self, file: Path) -> None:
        """Replace the content by the file *file*, which is moved. *file* is locked before it gets its temporary name
        (``.part``), so that ``ImageStore.sweep`` does not remove it. Raises ``OSError``, with nothing changed, if
        *file* cannot be moved."""
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            file.rename(self.path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self.descriptor)
        self.descriptor = descriptor
        os.fchown(descriptor, os.geteuid(), os.getegid())

    @property
    def file_name(self) -> str:
        """Return the file name for the complete content in the image store: the SHA-256 digest of the content as it was
        delivered. For a file from an archive, the name is computed from the archive's digest and *member*. Different
        files of one archive thus have different names."""
        digest = self.digests["sha256"]
        return hashlib.sha256(f"{digest}/{self.member}".encode()).hexdigest() if self.member else digest

    def check_digests(self, checksum: str | None) -> None:
        """Raise ``ImageRefused`` unless the content has the *checksum* (``sha256:…`` or ``sha512:…``); ``None``: do
        nothing."""
        check_digests(self.digests, checksum)

    def make_read_only(self) -> None:
        """Flush the content to disk and make the file read-only, as ``ImageStore.commit`` requires."""
        os.fchmod(self.descriptor, MODE)
        os.fsync(self.descriptor)


def check_length(length: int, limit: int) -> None:
    """Raise ``TooLarge`` if content of *length* bytes is longer than *limit* bytes."""
    if length > limit:
        raise TooLarge(f"The content is longer than {limit} bytes, which is all that this host takes in. Raise "
                       "image_max_bytes in the agent's settings if that is too little.")


def check_digests(digests: Mapping[str, str], checksum: str | None) -> None:
    """Raise ``ImageRefused`` unless *checksum* (``sha256:…`` or ``sha512:…``) equals the content's digest. *digests*:
    hex digest by algorithm. ``None``: do nothing."""
    if checksum is None:
        return
    name, _colon, expected = checksum.partition(":")
    if digests[name] != expected:
        raise ImageRefused(f"checksum: the content has {name}:{digests[name]}, and {checksum} was asked for. It was "
                           "damaged on its way, or is another version.",
                           field="checksum", expected=checksum, found=f"{name}:{digests[name]}")


class ImageStore:
    """The folder with the contents of all images of a host."""

    def __init__(self, root: Path, locks: Locks) -> None:
        self.root, self.locks = root, locks

    def path(self, image: str, digest: str) -> Path:
        """Return the path for content of the image with the uuid *image* and the SHA-256 *digest*. The file need not
        exist."""
        return self.root / image / digest

    def check_room(self, length: int, freed: int = 0) -> None:
        """Raise ``NoSpace`` when *length* bytes do not fit on the disk. *freed*: bytes that will be removed first."""
        free = shutil.disk_usage(next(folder for folder in (self.root, *self.root.parents) if folder.exists())).free
        if length > free + freed:
            raise NoSpace(f"The image needs up to {length} bytes, and {free + freed} are free under {self.root}. Free "
                          "some room there.")

    @contextmanager
    def part(self, image: str, length: int | None) -> Iterator[ContentPart]:
        """Yield a new empty temporary file for content of the image with the uuid *image*. After the block the file is
        removed, unless ``commit`` has renamed it. Raises ``NoSpace`` if the disk gets full, or has no space for
        *length* bytes (if known)."""
        folder = self.root / image
        part = None
        try:
            part = _create(folder)
            if length is not None:
                self.check_room(length)
            yield part
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise NoSpace(f"No room is left for the image under {self.root} ({error.strerror}); nothing of it was "
                          "kept. Free some, and try again.") from error
        finally:
            if part:
                part.path.unlink(missing_ok=True)
                os.close(part.descriptor)
            with suppress(OSError):
                folder.rmdir()  # fails unless it is empty

    @contextmanager
    def adopt(self, image: str, file: Path, limit: int, advance: Callable[[int], None]) -> Iterator[ContentPart]:
        """Move *file* to a temporary file for new content of the image with the uuid *image*, compute the digests, and
        yield the temporary file. No process may still write to *file*. A file on another file system is copied instead
        (at most *limit* bytes). *advance*: called with the number of bytes done."""
        size = file.stat().st_size
        with self.part(image, None) as part:
            try:
                part.replace(file)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with file.open("rb") as stream:
                    part.write_chunks(iter(lambda: stream.read(CHUNK), b""), size, limit, advance)
            else:
                part.measure(advance)
            yield part

    def ready(self, image: str, checksum: str) -> Path:
        """Return the path at which new content of the image with the uuid *image* is stored, after its download, until
        it replaces the old content. *checksum*: ``ALGORITHM:HEX``, from which the file name is made. The file need not
        exist."""
        return self.root / image / f"{checksum.partition(':')[2]}.ready"

    def keep_ready(self, part: ContentPart, path: Path) -> None:
        """Move the complete content in the temporary file *part* (``part.make_read_only`` was called) to *path*, a
        result of ``ready``."""
        part.path.rename(path)
        sync_folder(path.parent)
        sync_folder(self.root)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Prevent ``sweep``, which removes content that no document refers to, during the block. Needed while content
        gets its final name and the document that refers to it is written."""
        with self.locks.hold(*SWEEP):
            yield

    def commit(self, image: str, part: ContentPart) -> Path:
        """Rename the temporary file *part* to its final name, flush the folder, and return the new path. *part* has the
        complete content of the image with the uuid *image*, and the caller has called ``part.make_read_only``. The
        caller must be in a block of ``still``. It must also have recorded the path in the document, so that ``sweep``
        does not remove the file."""
        path = self.path(image, part.file_name)
        part.path.rename(path)
        sync_folder(path.parent)
        sync_folder(self.root)
        return path

    def sweep(self, keep: Callable[[], Iterable[Path]]) -> None:
        """Remove all content except the paths that *keep* returns, and all ``.part`` files that no process is writing.
        """
        with self.still():
            kept_paths = set(keep())
            for folder in list(self.root.iterdir()) if self.root.is_dir() else []:
                with suppress(FileNotFoundError):  # its last part has gone, and the folder with it
                    for path in list(folder.iterdir()):
                        if path not in kept_paths:
                            _remove(path)
                with suppress(OSError):
                    folder.rmdir()


def _create(folder: Path) -> ContentPart:
    while True:
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / f"{uuid.uuid4()}.part"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # a sweep has removed the empty folder in between
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return ContentPart(path, descriptor)
        os.close(descriptor)  # a sweep has removed it before it was locked


def _remove(path: Path) -> None:
    """Remove the file at *path*, unless it is a ``.part`` file that its writer has locked. The lock is held during the
    removal: a writer that has just created the file, and waits for the lock, then notices that the file was removed."""
    if path.suffix != ".part":
        path.unlink(missing_ok=True)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # removed meanwhile
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
