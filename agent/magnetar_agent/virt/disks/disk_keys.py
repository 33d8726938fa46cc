# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of encrypted disks, for programs that read and write these.

libvirt has a key in its memory only (virSecretDefineXML, private and ephemeral) and only while it opens the disk.
qemu-img and qemu-nbd read theirs from a file without a name, so it stands in no argument and on no disk.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.storage import DiskKey
from magnetar_agent.virt.tools.process import unnamed

_XML = '<secret ephemeral="yes" private="yes"><uuid>{}</uuid></secret>'
_held: Counter[str] = Counter()
_guard = threading.Lock()


@contextmanager
def unlocked(conn: Any, keys: Iterable[DiskKey | None]) -> Iterator[None]:
    """libvirt has these keys meanwhile. Others may open the same disk at the same time."""
    mine = [key for key in keys if key is not None]
    with _guard:
        lend(conn, mine)
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


def lend(conn: Any, keys: Iterable[DiskKey]) -> None:
    """libvirt has these keys until they are taken back."""
    for key in keys:
        conn.secretDefineXML(_XML.format(key.id)).setValue(key.secret.encode())


def take_back(conn: Any, ids: Iterable[str]) -> None:
    """libvirt has the keys with these *ids* no more, but for what opens a disk just now."""
    with _guard:
        for id in ids:
            if not _held[id]:
                _forget(conn, id)


def _forget(conn: Any, id: str) -> None:
    with suppress(libvirt.libvirtError):
        conn.secretLookupByUUIDString(id).undefine()


def name_of(number: int) -> str:
    """The name of the object for a key, for ``key-secret``."""
    return f"key{number}"


@contextmanager
def handed(keys: Sequence[DiskKey]) -> Iterator[tuple[list[str], list[int]]]:
    """Options that make objects of the keys, called ``name_of`` their place, and descriptors that the program needs."""
    words, files = [], []
    with ExitStack() as held:
        for number, key in enumerate(keys):
            files.append(unnamed(held, key.secret.encode()))
            words += ["--object", f"secret,id={name_of(number)},file=/proc/self/fd/{files[-1]}"]
        yield words, files
