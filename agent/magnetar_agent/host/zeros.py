# SPDX-License-Identifier: GPL-3.0-or-later
"""Zeros in block devices and files: overwriting old data, and detection, so that zeros need not be sent."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import suppress

#: Bytes of one write, and of one request to the kernel, which cannot be interrupted.
PIECE, REQUEST = 1 << 20, 1 << 30
#: ``BLKZEROOUT``: the kernel makes the device write zeros where it can, and otherwise writes them itself.
_ZEROOUT, _RANGE = 0x127F, struct.Struct("=QQ")
_ZEROS = bytes(PIECE)


def is_zero(data: bytes) -> bool:
    """Return whether *data*, of at most ``PIECE`` bytes, consists of zeros only."""
    return data == _ZEROS[:len(data)]


def open_file_size(descriptor: int) -> int:
    """Return the size in bytes of the open file or block device *descriptor*."""
    return os.lseek(descriptor, 0, os.SEEK_END)


def write_zeros(descriptor: int, start: int, end: int) -> None:
    """Write zeros to the open file or block device *descriptor*, from offset *start* up to *end*, with the device's own
    command for that if it has one. Raises ``OSError``."""
    block = stat.S_ISBLK(os.fstat(descriptor).st_mode)
    while start < end:
        length = min(end - start, REQUEST)
        if block and not (start | length) % 512:
            with suppress(OSError):  # a device without ``BLKZEROOUT`` is written to
                fcntl.ioctl(descriptor, _ZEROOUT, _RANGE.pack(start, length))
                start += length
                continue
        start += os.pwrite(descriptor, _ZEROS[:min(length, PIECE)], start)
