# SPDX-License-Identifier: GPL-3.0-or-later
"""What two agents say to each other during a migration: lines of JSON, and files in frames.

A frame is offset, length and half of a SHA-256 of the data (for which CPUs have instructions), so that a byte which
changed on its way is noticed; a frame of length 0 is the end, and its offset the size of the file. Holes are not sent.
A file that broke off goes on where the receiver has it for sure.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from magnetar_agent.documents import sync_folder, write_atomically
from magnetar_agent.link.talk import Talk
from magnetar_core.errors import HypervisorError, InvalidRequest, NoSpace

_FRAME = struct.Struct(">QI16s")
#: Bytes in a frame, and bytes after which the receiver makes sure of them.
PIECE, SURE = 1 << 20, 64 << 20
#: Ends the names of a file that is on its way, and of the note of how much of it is sure.
PART, NOTE = ".part", ".part.at"


# Sending --------------------------------------------------------------------------------------------------------
def send(talk: Talk, path: Path, offset: int, sent: Callable[[int], None], rate: int | None = None) -> int:
    """Send the file *path* from *offset* on; returns its size. *sent(bytes)* after each frame; *rate* is bytes/s."""
    began, total = time.monotonic(), 0
    with path.open("rb") as file:
        for start, data in pieces(file.fileno(), offset):
            talk.write(_FRAME.pack(start, len(data), _digest(data)))
            talk.write(data)
            total += len(data)
            sent(len(data))
            if rate:
                time.sleep(max(0.0, began + total / rate - time.monotonic()))
        size = os.fstat(file.fileno()).st_size
    talk.write(_FRAME.pack(size, 0, _digest(b"")))
    talk.flush()
    return size


def pieces(descriptor: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Offset and data of all of a file that is no hole, from *offset* on."""
    size = os.fstat(descriptor).st_size
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        while start < end:
            data = os.pread(descriptor, min(PIECE, end - start), start)
            if not data:
                return
            yield start, data
            start += len(data)
        offset = end


# Receiving ------------------------------------------------------------------------------------------------------
def have(path: Path) -> int | None:
    """How many bytes of a file are here for sure; ``None``: all of it."""
    if path.exists():
        return None
    try:
        return int(path.with_name(path.name + NOTE).read_text())
    except (OSError, ValueError):
        return 0


def receive(talk: Talk, path: Path, offset: int, append: bool = False) -> int:
    """Receive a file as ``send`` sends it; it gets its name when all of it is on the disk. Returns its size.

    *append*: the frames are written behind what another process writes to the file at *path*."""
    part = path if append else path.with_name(path.name + PART)
    note = path.with_name(path.name + NOTE)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    descriptor = os.open(part, flags, 0o640)
    try:
        if not append:
            os.ftruncate(descriptor, offset)
        size = _frames(talk, descriptor, note, append)
        if not append:
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    except OSError as error:
        raise NoSpace(f"{path.name} of the server cannot be written: {error.strerror}. Free some room under "
                      f"{path.parent.parent} on the target.") from error
    finally:
        os.close(descriptor)
    if not append:
        part.rename(path)
        note.unlink(missing_ok=True)
        sync_folder(path.parent)
    return size


def _frames(talk: Talk, descriptor: int, note: Path, append: bool) -> int:
    since = 0
    while True:
        start, length, digest = _FRAME.unpack(talk.read(_FRAME.size))
        if length > PIECE:
            raise InvalidRequest("The other agent sent a frame that is too long.")
        data = talk.read(length)
        if _digest(data) != digest:
            raise HypervisorError("What the other agent sent was changed on its way. Repeat the call; if that comes "
                                  "again, look for bad memory or a bad network card on both hosts.")
        if not length:
            return int(start)
        if append:
            os.write(descriptor, data)
            continue
        os.pwrite(descriptor, data, start)
        since += length
        if since >= SURE:
            os.fdatasync(descriptor)
            write_atomically(note, str(start + length).encode())
            since = 0


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]
