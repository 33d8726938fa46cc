# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of disks out of OVA archives."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from magnetar_core.errors import ImageRefused
from magnetar_core.images.ovf import refuse_ova

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_core.images.ova import ArchivedDisk

_PIECE = 1 << 20


def copy_archived_disk(descriptor: int, disk: ArchivedDisk, target: int, advance: Callable[[int], None]) -> None:
    """Copy *disk* from the archive in the open file *descriptor* to the empty open file *target*. *advance*: called
    with the copied bytes. Raises ``ImageRefused`` if the content does not fit the archive's manifest."""
    digest = hashlib.new(disk.algorithm, usedforsecurity=False) if disk.algorithm else None
    done, size = 0, disk.member.size
    while done < size:
        piece = os.pread(descriptor, min(_PIECE, size - done), disk.member.offset + done)
        if not piece:
            raise refuse_ova("it is cut short")
        if digest is not None:
            digest.update(piece)
        view, at = memoryview(piece), done
        done += len(piece)
        while view:
            count = os.pwrite(target, view, at)
            view, at = view[count:], at + count
        advance(done)
    if digest is not None and digest.hexdigest() != disk.digest:
        raise ImageRefused(f"The disk {disk.member.name!r} of the OVA has another digest ({disk.algorithm}) than the "
                           "archive's manifest says. It was damaged on its way. Export it again.")
