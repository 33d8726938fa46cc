# SPDX-License-Identifier: GPL-3.0-or-later
"""The pool of a server's own disks, if they are not files: the agent's setting ``root_pool``.

``document.state["pool"]`` records the name of the pool that has a server's disks (``name``), so later settings do not
matter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from magnetar_agent.volumes import pools
from magnetar_agent.volumes.storage import StoragePool
from magnetar_core.errors import Conflict, InvalidField

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: The root formats, which are also types of pools, and a word for their disks.
LVM, RBD = "lvm", "rbd"
WHAT = {LVM: "logical volumes", RBD: "RBD images"}
#: Key of a server's state.
NOTE = "pool"


def type_of(host: LocalHost, name: str | None) -> str | None:
    """Return the type (such as lvm or rbd) of the storage pool *name* in the settings; ``None`` if there is no such
    pool."""
    return host.settings.pools.get(name or "", {}).get("type")


def check_host(host: LocalHost, field: str, format: str) -> None:
    """Check that this host can store disks with the root format *format* (lvm or rbd). Raises ``InvalidField`` naming
    *field* if the setting ``root_pool`` names no pool of this type, and ``Conflict`` if that pool cannot be used at
    present."""
    if type_of(host, host.settings.root_pool) != format:
        raise InvalidField(field, f"cannot be {format} on host {host.name}: the agent's setting root_pool names no "
                                  f"pool of type {format} for it", format)
    configured_root_pool(host, format).check_usable()


def configured_root_pool(host: LocalHost, format: str) -> StoragePool:
    """Return the storage pool for new disks, which the setting ``root_pool`` names. Raises ``Conflict`` if its type is
    not *format* (lvm or rbd)."""
    return find_root_pool(host, host.settings.root_pool, "new servers", format)


def root_pool_of_server(host: LocalHost, document: Document, format: str) -> StoragePool:
    """Return the storage pool that contains the server's disks. Raises ``Conflict`` if the settings do not have this
    pool any more. *format*: the server's root format, lvm or rbd."""
    note = document.state.get(NOTE)
    return find_root_pool(host, note["name"] if note else host.settings.root_pool, f"server {document.name!r}", format)


def find_root_pool(host: LocalHost, name: str | None, owner: str, format: str) -> StoragePool:
    """Return the storage pool *name*. Raises ``Conflict`` if the settings have no pool *name* of the type *format* (lvm
    or rbd). *owner*: description of the disks' server for the error message."""
    with suppress(InvalidField):
        pool = pools.find_pool(host, name) if name else None
        if isinstance(pool, StoragePool) and type_of(host, name) == format:
            return pool
    raise Conflict(f"The disks of {owner} are {WHAT[format]} of the pool {name!r}, which the agent's settings do not "
                   f"have as a pool of type {format}. Put it back there (pools, root_pool), and restart the agent.")
