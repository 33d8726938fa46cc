# SPDX-License-Identifier: GPL-3.0-or-later
"""The pool in which a server's own disks lie, where they are no files: the agent's setting ``root_pool``.

``document.state["pool"]`` says where a server's disks lie, whatever the settings say by now: ``name`` is the pool's.
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

#: The root formats, which are types of pools too, and what disks are there.
LVM, RBD = "lvm", "rbd"
WHAT = {LVM: "logical volumes", RBD: "RBD images"}
#: The note of a server's state.
NOTE = "pool"


def type_of(host: LocalHost, name: str | None) -> str | None:
    """The type of one of the settings' pools."""
    return host.settings.pools.get(name or "", {}).get("type")


def check_host(host: LocalHost, field: str, format: str) -> None:
    """Raise ``InvalidField`` naming *field* where servers of this host cannot have disks of this root *format*,
    ``Conflict`` where they cannot now."""
    if type_of(host, host.settings.root_pool) != format:
        raise InvalidField(field, f"cannot be {format} on host {host.name}: the agent's setting root_pool names no "
                                  f"pool of type {format} for it", format)
    of_settings(host, format).check_usable()


def of_settings(host: LocalHost, format: str) -> StoragePool:
    """The pool in which new disks lie."""
    return named(host, host.settings.root_pool, "new servers", format)


def of(host: LocalHost, document: Document, format: str) -> StoragePool:
    """The pool in which a server's disks lie. Raises ``Conflict`` where the settings do not have it any more."""
    note = document.state.get(NOTE)
    return named(host, note["name"] if note else host.settings.root_pool, f"server {document.name!r}", format)


def named(host: LocalHost, name: str | None, whose: str, format: str) -> StoragePool:
    """The pool *name*, in which the disks of somebody lie. Raises ``Conflict``."""
    with suppress(InvalidField):
        found = pools.named(host, name) if name else None
        if isinstance(found, StoragePool) and type_of(host, name) == format:
            return found
    raise Conflict(f"The disks of {whose} are {WHAT[format]} of the pool {name!r}, which the agent's settings do not "
                   f"have as a pool of type {format}. Put it back there (pools, root_pool), and restart the agent.")
