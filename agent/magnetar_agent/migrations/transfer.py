# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a migration, sent in frames between the lines of JSON (``link.rpc``).

A frame has offset, length and half of a SHA-256 of the data (CPUs have instructions for that hash), which detects bytes
changed on the way. A frame of length 0 ends the file; its offset is the size of the file. Holes are not sent, nor zeros
of a logical volume, which has no holes.

An interrupted transfer continues after the last byte that is flushed to the receiver's disk, if the content is the
same: the sender sends the state of the content, the receiver notes it, and removes data of another state.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from magnetar_agent.host import zeros
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import sync_folder, write_atomically
from magnetar_core.errors import HypervisorError, InvalidRequest, NoSpace

_FRAME = struct.Struct(">QI16s")
#: The most bytes in a frame, and the bytes after which the receiver flushes to disk.
PIECE, SURE = 1 << 20, 64 << 20
#: Suffixes of names: of an incomplete file, and of the note with its state and the number of flushed bytes.
PART, NOTE = ".part", ".part.at"


# Sending --------------------------------------------------------------------------------------------------------
def send_file_frames(talk: Rpc, path: Path, offset: int, sent: Callable[[int], None], rate: int | None = None) -> int:
    """Send the file *path* from *offset* to its end over *talk*, in frames with checksums and without holes. Return the
    size of the file. *sent*: called with the number of bytes of each frame. *rate*: the limit in bytes/s."""
    began, total = time.monotonic(), 0
    with path.open("rb") as file:
        device = stat.S_ISBLK(os.fstat(file.fileno()).st_mode)
        for start, data in data_pieces(file.fileno(), offset):
            if device and zeros.is_zero(data):  # it has no holes, and the receiver writes zeros where nothing is sent
                sent(len(data))
                continue
            talk.write(_FRAME.pack(start, len(data), _digest(data)))
            talk.write(data)
            total += len(data)
            sent(len(data))
            if rate:
                time.sleep(max(0.0, began + total / rate - time.monotonic()))
        size = zeros.open_file_size(file.fileno())
    talk.write(_FRAME.pack(size, 0, _digest(b"")))
    talk.flush()
    return size


def stored_bytes(path: Path) -> int:
    """Return how many bytes the file occupies on disk; for a block device its size."""
    file_stat = path.stat()
    if not stat.S_ISBLK(file_stat.st_mode):
        return file_stat.st_blocks * 512
    with path.open("rb") as file:
        return zeros.open_file_size(file.fileno())


def data_pieces(descriptor: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) for the parts of the open file *descriptor* that are not holes, from *offset* to the file's
    end. A block device has no holes and is read completely."""
    size, device = zeros.open_file_size(descriptor), stat.S_ISBLK(os.fstat(descriptor).st_mode)
    while offset < size:
        try:
            start = offset if device else os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        end = size if device else os.lseek(descriptor, start, os.SEEK_HOLE)
        while start < end:
            data = os.pread(descriptor, min(PIECE, end - start), start)
            if not data:
                return
            yield start, data
            start += len(data)
        offset = end


# Receiving ------------------------------------------------------------------------------------------------------
def bytes_present(path: Path, state: str | None, linked: bool = False) -> int | None:
    """Return how many bytes of the file *path* the receiver has flushed to disk; ``None`` if the file is complete. If
    *state*, the sender's ``file_state``, is unknown or differs from the recorded one, remove the file and return 0.
    *linked*: *path* is a symbolic link to a logical volume; only the link is removed."""
    part, note = (path.with_name(path.name + end) for end in (PART, NOTE))
    of, sure = _noted(note)
    if state is not None and of == state:
        if linked and path.is_symlink() and path.exists():
            return None
        if linked and part.is_symlink() and part.exists() and sure:
            return sure
        if not linked and path.is_file() and not path.is_symlink():
            return None
        if not linked and part.is_file() and not part.is_symlink() and part.stat().st_size >= sure > 0:
            return sure
    for old in (path, part, note):
        old.unlink(missing_ok=True)
    sync_folder(path.parent)
    return 0


def _noted(note: Path) -> tuple[str | None, int]:
    """Return the contents of the *note* file of a partly received file: its ``file_state``, and how many bytes are
    flushed to disk; ``None`` and 0 if the note cannot be read."""
    try:
        content = json.loads(note.read_bytes())
        return content["state"], int(content["sure"])
    except (OSError, ValueError, TypeError, KeyError):  # an earlier agent noted the bytes only
        return None, 0


def receive_file_frames(talk: Rpc, path: Path, offset: int, append: bool = False, state: str | None = None,
                        linked: bool = False) -> int:
    """Receive from *talk* a file that ``send_file_frames`` sends, from *offset* on. When it is complete and flushed to
    disk, rename it to *path*. Return its size.

    *append*: append the data to the existing file at *path* instead. *state*: the sender's ``file_state``, recorded so
    that an interrupted transfer can be continued; ``None``: the transfer cannot be continued. *linked*: the ``.part``
    file is a link to a logical volume; write to the volume, with zeros for holes.
    """
    part = path if append else path.with_name(path.name + PART)
    how = 0 if linked else os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    if not append:
        _clear(path, offset, linked)
    try:
        received = _ReceivedFile(path, part, _inode(part) if linked else None, os.open(part, os.O_WRONLY | how, 0o640),
                                 append)
    except FileNotFoundError:
        raise _lost_file(path) from None

    def sure(count: int) -> None:
        if append:
            return
        received.check()
        if state is not None:
            _note(path, state, count)

    try:
        return _receive(talk, received, offset, sure)
    except OSError as error:
        raise NoSpace(f"{path.name} of the server cannot be written: {error.strerror}. Free some room under "
                      f"{path.parent.parent} on the target.") from error
    finally:
        os.close(received.descriptor)


def _receive(talk: Rpc, received: _ReceivedFile, offset: int, sure: Callable[[int], None]) -> int:
    if not received.append and zeros.open_file_size(received.descriptor) < offset:
        raise _lost_file(received.path)
    sure(offset)
    # Data behind *offset* stays: it is of the same state, and an earlier attempt may still note that it is flushed.
    size = _frames(talk, received, sure, offset)
    if not received.append and received.link is None:
        os.ftruncate(received.descriptor, size)
    os.fsync(received.descriptor)
    sure(size)
    if not received.append:
        received.part.rename(received.path)
        sync_folder(received.path.parent)
    return size


@dataclass
class _ReceivedFile:
    """The open file into which a transfer is received. *part*: the file's temporary path. *path*: its final path.
    *link*: if *part* is a link to a logical volume, the ``_inode`` of the link, to detect that a later attempt has
    replaced the link. *append*: append to an existing file."""

    path: Path
    part: Path
    link: tuple[int, int] | None
    descriptor: int
    append: bool

    def write(self, data: bytes, start: int, end: int) -> None:
        """Write *data* at the offset *start*. On a logical volume, first write zeros from *end*, the end of the data so
        far, up to *start*."""
        if self.append:
            os.write(self.descriptor, data)
        elif self.link is None:
            os.pwrite(self.descriptor, data, start)
        else:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)  # so that none of this comes after a later attempt's data
            try:
                self.check()
                zeros.write_zeros(self.descriptor, end, start)
                while data:
                    written = os.pwrite(self.descriptor, data, start)
                    data, start = data[written:], start + written
            finally:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def check(self) -> None:
        """Raise ``HypervisorError`` if a later attempt of the migration has replaced the file."""
        if not (_is_same_file(self.part, self.descriptor) if self.link is None else _inode(self.part) == self.link):
            raise _lost_file(self.path)


def _inode(link: Path) -> tuple[int, int] | None:
    """Return inode and time of a symbolic link, to detect that it was replaced by another link; ``None`` if it does not
    exist."""
    try:
        link_stat = link.lstat()
    except FileNotFoundError:
        return None
    return link_stat.st_ino, link_stat.st_ctime_ns


def _note(path: Path, state: str, count: int) -> None:
    note = {"state": state, "sure": count}
    write_atomically(path.with_name(path.name + NOTE), json.dumps(note).encode())


def _clear(path: Path, offset: int, linked: bool) -> None:
    """Remove the complete file at *path*, before the note (a file that records the progress) of its new content is
    written.

    If *offset* is 0, also remove the note and the ``.part`` file of the former transfer. If *linked*, the ``.part``
    file stays: it is a link to a logical volume.
    """
    path.unlink(missing_ok=True)
    if not offset:
        for end in (NOTE,) if linked else (NOTE, PART):
            path.with_name(path.name + end).unlink(missing_ok=True)
    sync_folder(path.parent)


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether *path* is still the path of the open file *descriptor*. A later attempt may have replaced the
    file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lost_file(path: Path) -> HypervisorError:
    return HypervisorError(f"What had come of {path.name} is not there any more: another attempt of the migration "
                           "threw it away, or somebody removed it. Repeat the call.")


def _frames(talk: Rpc, received: _ReceivedFile, sure: Callable[[int], None], end: int) -> int:
    """Receive all frames of a file from *talk* and write them to *received*. Return the size of the file. *end*: the
    end of the data that the file has already. *sure*: called with the end offset whenever data has been flushed to
    disk."""
    since = 0
    while True:
        start, length, digest = _FRAME.unpack(talk.read(_FRAME.size))
        if length > PIECE:
            raise InvalidRequest("The other agent sent a frame that is too long.")
        data = talk.read(length)
        if _digest(data) != digest:
            raise HypervisorError("What the other agent sent was changed on its way. Repeat the call; if that comes "
                                  "again, look for bad memory or a bad network card on both hosts.")
        if length or received.link:
            received.write(data, start, end)
        if not length:
            return int(start)
        if received.append:
            continue
        end = start + length
        since += length
        if since >= SURE:
            os.fdatasync(received.descriptor)
            sure(end)
            since = 0


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]
