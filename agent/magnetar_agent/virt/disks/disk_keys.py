# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of encrypted disks, for the programs that open these disks.

libvirt has a key in its memory only (virSecretDefineXML, private and ephemeral) and only while it opens the disk.
qemu-img and qemu-nbd read a key from a file without a name, so the key is in no argument and on no disk.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.storage import DiskKey
from magnetar_agent.virt.tools.process import unnamed_file

_XML = '<secret ephemeral="yes" private="yes"><uuid>{}</uuid></secret>'
_held: Counter[str] = Counter()
_guard = threading.Lock()


@contextmanager
def unlocked_disks(conn: Any, keys: Iterable[DiskKey | None]) -> Iterator[None]:
    """Define the encryption *keys* as libvirt secrets during the ``with`` block, so that QEMU can open the disks. A key
    that several callers use at the same time is removed after its last use."""
    mine = [key for key in keys if key is not None]
    with _guard:
        lend_disk_keys(conn, mine)
        _held.update(key.id for key in mine)
    try:
        yield
    finally:
        with _guard:
            for key in mine:
                _held[key.id] -= 1
                if not _held[key.id]:
                    del _held[key.id]
                    _forget(conn, key.id)


def lend_disk_keys(conn: Any, keys: Iterable[DiskKey]) -> None:
    """Define the encryption *keys* as libvirt secrets. ``take_back_disk_keys`` removes them."""
    for key in keys:
        conn.secretDefineXML(_XML.format(key.id)).setValue(key.secret.encode())


def take_back_disk_keys(conn: Any, ids: Iterable[str]) -> None:
    """Remove the libvirt secrets with these *ids*, except those that ``unlocked_disks`` is using."""
    with _guard:
        for id in ids:
            if not _held[id]:
                _forget(conn, id)


def _forget(conn: Any, id: str) -> None:
    with suppress(libvirt.libvirtError):
        conn.secretLookupByUUIDString(id).undefine()


def key_object_name(number: int) -> str:
    """Return the name of the QEMU secret object for the key with index *number*, as value of the option ``key-secret``.
    """
    return f"key{number}"


@contextmanager
def qemu_key_options(keys: Sequence[DiskKey]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield command line options ``--object`` that pass the encryption *keys* to a QEMU program, and the file
    descriptors that the program must inherit. The key with index n is named ``key_object_name(n)``."""
    words, files = [], []
    with ExitStack() as stack:
        for number, key in enumerate(keys):
            files.append(unnamed_file(stack, key.secret.encode()))
            words += ["--object", f"secret,id={key_object_name(number)},file=/proc/self/fd/{files[-1]}"]
        yield words, files
