# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a migration, sent in frames between the lines of JSON (``link.rpc``).

A frame is offset, length and half of a SHA-256 of the data (for which CPUs have instructions), so that a byte which
changed on its way is noticed; a frame of length 0 is the end, and its offset the size of the file. Holes are not sent.
An interrupted file is resumed after the last byte that is on the receiver's disk, as long as its content is the same:
the sender tells the state of the content, the receiver notes it, and throws away what came of another state.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from magnetar_agent.documents import sync_folder, write_atomically
from magnetar_agent.link.rpc import Rpc
from magnetar_core.errors import HypervisorError, InvalidRequest, NoSpace

_FRAME = struct.Struct(">QI16s")
#: Bytes in a frame, and bytes after which the receiver flushes them to disk.
PIECE, SURE = 1 << 20, 64 << 20
#: Ends of names: of an incomplete file, and of the note of its state and of how many bytes are flushed.
PART, NOTE = ".part", ".part.at"
#: What a file of a server may be called.
NAME = re.compile(r"[a-z][a-z0-9.-]{0,63}")


# Sending --------------------------------------------------------------------------------------------------------
def send(talk: Rpc, path: Path, offset: int, sent: Callable[[int], None], rate: int | None = None) -> int:
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
def checked_name(name: Any) -> str:
    """What the source calls a file. Raises ``InvalidRequest`` where no file of a server is called so."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.endswith((".part", ".at")):
        raise InvalidRequest(f"The source sends a file with the name {name!r}, which no file of a server has.")
    return name


def kept(place: Path, files: list[str], states: Mapping[str, Any]) -> dict[str, Any]:
    """How much of each file is here of the state that the source has now. All else in the folder goes, such as a disk
    that the server had at an earlier attempt only."""
    names = {checked_name(name) for name in files}
    for path in place.iterdir():
        if path.name.removesuffix(NOTE).removesuffix(PART) not in names and (path.is_symlink() or not path.is_dir()):
            path.unlink()
    return {name: bytes_present(place / name, states.get(name)) for name in sorted(names)}


def bytes_present(path: Path, state: str | None) -> int | None:
    """How many bytes of a file are flushed to disk here; ``None``: all of it. Bytes of another or unknown *state* are
    thrown away."""
    part, note = (path.with_name(path.name + end) for end in (PART, NOTE))
    of, sure = _noted(note)
    if state is not None and of == state:
        if path.is_file() and not path.is_symlink():
            return None
        if part.is_file() and not part.is_symlink() and part.stat().st_size >= sure > 0:
            return sure
    for old in (path, part, note):
        old.unlink(missing_ok=True)
    sync_folder(path.parent)
    return 0


def _noted(note: Path) -> tuple[str | None, int]:
    """The state of the content that is here, and how many bytes of it are sure."""
    try:
        said = json.loads(note.read_bytes())
        return said["state"], int(said["sure"])
    except (OSError, ValueError, TypeError, KeyError):  # an earlier agent noted the bytes only
        return None, 0


def receive(talk: Rpc, path: Path, offset: int, append: bool = False, state: str | None = None) -> int:
    """Receive a file as ``send`` sends it; it gets its name when all of it is on the disk. Returns its size.

    *append*: the frames are written behind what another process writes to the file at *path*. *state*: of its content,
    noted before the first byte and kept when it is whole; without it nothing is resumed."""
    part = path if append else path.with_name(path.name + PART)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    if not append:
        _clear(path, offset)
    descriptor = os.open(part, flags, 0o640)

    def sure(count: int) -> None:
        if append:
            return
        if not _is_same_file(part, descriptor):
            raise _gone(path)
        if state is not None:
            _note(path, state, count)

    try:
        if not append and os.fstat(descriptor).st_size < offset:
            raise _gone(path)
        sure(offset)
        # What is behind *offset* stays: it is of the same state, and an earlier attempt may still note that it is sure.
        size = _frames(talk, descriptor, sure, append)
        if not append:
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
        sure(size)
        if not append:
            part.rename(path)
            sync_folder(path.parent)
    except OSError as error:
        raise NoSpace(f"{path.name} of the server cannot be written: {error.strerror}. Free some room under "
                      f"{path.parent.parent} on the target.") from error
    finally:
        os.close(descriptor)
    return size


def _note(path: Path, state: str, count: int) -> None:
    note = {"state": state, "sure": count}
    write_atomically(path.with_name(path.name + NOTE), json.dumps(note).encode())


def _clear(path: Path, offset: int) -> None:
    """Nothing of another state may lie there when the new one is noted."""
    path.unlink(missing_ok=True)
    if not offset:
        for end in (NOTE, PART):
            path.with_name(path.name + end).unlink(missing_ok=True)
    sync_folder(path.parent)


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Whether the file at *path* is still the one that is open; a later attempt may have begun another."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _gone(path: Path) -> HypervisorError:
    return HypervisorError(f"What had come of {path.name} is not there any more: another attempt of the migration "
                           "threw it away, or somebody removed it. Repeat the call.")


def _frames(talk: Rpc, descriptor: int, sure: Callable[[int], None], append: bool) -> int:
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
            sure(start + length)
            since = 0


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]
