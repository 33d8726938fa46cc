# SPDX-License-Identifier: GPL-3.0-or-later
"""Empty qcow2 images and overlays, version 3 of QEMU's docs/interop/qcow2.txt. The agent writes them itself, which
saves a run of qemu-img per server.

An image has these clusters: the header, the table of reference counts, one block of reference counts (2 bytes each),
the L1 table."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.host.storage import Backing

MAGIC, VERSION = b"QFI\xfb", 3
CLUSTER_BITS = 16
CLUSTER = 1 << CLUSTER_BITS
#: Bytes that one entry of the L1 table covers: a cluster full of L2 entries of 8 bytes.
COVERED = CLUSTER // 8 * CLUSTER
#: Bytes of the largest L1 table that QEMU accepts.
L1_MAX = 32 * 2**20
REFCOUNT_ORDER = 4  # 16 bits
L1_AT = 3
BACKING_FORMAT = 0xE2792ACA
#: Bytes of the header's fixed part in version 3, and the longest name of a backing file.
HEADER, NAME_MAX = 104, 1023


def create_qcow2(path: Path, size: int, backing: Backing | None = None) -> None:
    """Create the empty qcow2 image *path* of *size* bytes, rounded up to a multiple of 512. The file is not flushed.
    Raises ``OSError``; ``HypervisorError`` if the *backing* file does not exist or the size is too large."""
    if backing is not None and not backing.path.is_file():
        raise HypervisorError(f"The disk {path} cannot be made: its backing file {backing.path} does not exist.")
    size = -(-size // 512) * 512
    entries = -(-size // COVERED)
    if entries * 8 > L1_MAX:
        raise HypervisorError(f"The disk {path} cannot be made: {size} bytes are more than a qcow2 can hold.")
    clusters = L1_AT + max(1, -(-entries * 8 // CLUSTER))
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb") as file:
        file.truncate(clusters * CLUSTER)
        file.write(_header(size, entries, backing))
        file.seek(CLUSTER)
        file.write(struct.pack(">Q", 2 * CLUSTER))
        file.seek(2 * CLUSTER)
        file.write(struct.pack(">H", 1) * clusters)


def _header(size: int, entries: int, backing: Backing | None) -> bytes:
    """Return the qcow2 header with its extensions and the name of the *backing* file. *size*: virtual size in bytes.
    *entries*: number of entries in the L1 table."""
    name, extensions = b"", b""
    if backing is not None:
        name, format_name = os.fsencode(backing.path), backing.format.encode()
        if len(name) > NAME_MAX:
            raise HypervisorError(f"The path {backing.path} of a disk is too long for an image to stand on it.")
        extensions = struct.pack(">II", BACKING_FORMAT, len(format_name)) + format_name.ljust(
            -(-len(format_name) // 8) * 8, b"\0")
    extensions += struct.pack(">II", 0, 0)
    return struct.pack(
        ">4sIQIIQIIQQIIQQQQII", MAGIC, VERSION, HEADER + len(extensions) if name else 0, len(name), CLUSTER_BITS, size,
        0, entries, L1_AT * CLUSTER, CLUSTER, 1, 0, 0, 0, 0, 0, REFCOUNT_ORDER, HEADER) + extensions + name
