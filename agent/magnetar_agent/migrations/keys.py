# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a server that moves: of its encrypted disks, and the secret of its TPM where its host keeps that.

They go over the link, and are sealed at the target as its own. A guest that goes on running is opened there by libvirt,
which the source's libvirt asks: so libvirt has them in its memory, from when the files are there until the source has
done what it began. They are lent to the talk with the source: one that ends late leaves what a later one was lent.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from magnetar_agent.servers.disks import encryption
from magnetar_agent.servers.hardware import tpm
from magnetar_core.errors import MagnetarError

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import DiskKey
    from magnetar_agent.link.rpc import Rpc
    from magnetar_agent.reconcile.documents import Document, Fields

#: The lock of what libvirt has of a server's keys, and to whom they are lent.
LENT = "lent keys"


def leave(host: LocalHost, server: Document) -> dict[str, str | None]:
    """What is sent of them."""
    return {"key": encryption.leave(host, server), "tpm_secret": tpm.leave(host, server)}


def arrive(host: LocalHost, server: Fields, sent: Fields) -> None:
    """Seal what was *sent* with a *server*, parts of a document."""
    encryption.arrive(host, server, sent.get("key"))
    tpm.arrive(host, server, sent.get("tpm_secret"))


def lend(host: LocalHost, server: Document, talk: Rpc) -> DiskKey | None:
    """Let libvirt open what comes of a guest that goes on running, until *talk* ends. Returns the key of its disks."""
    own = encryption.of(host, server)
    secret = tpm.secret(host, server, None)
    if own or secret:
        with host.locks.hold(LENT, server.id):
            host.lent_keys[server.id] = talk
            host.hypervisor.lend_keys(server.id, [own] if own else [], secret)
    return own


def take_back(host: LocalHost, server: str, talk: Rpc | None = None) -> None:
    """libvirt has no keys of the *server* (its uuid) any more that were lent to *talk*, or, without one, to a process
    before this one; fine where it had none, or is away: it forgets them."""
    with host.locks.hold(LENT, server):
        if host.lent_keys.get(server) is not talk:
            return
        host.lent_keys.pop(server, None)
        with suppress(MagnetarError):
            host.hypervisor.take_back_keys(server, [encryption.name_of(server)])
