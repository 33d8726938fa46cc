# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a server that migrates: of its encrypted disks, and the secret of its TPM, if the host stores the secret.
They are sent over the link, and the target seals them with its own key.

In a live migration the target's libvirt opens disks and TPM at the request of the source's libvirt. So the target's
libvirt has the keys in its memory, from when the files have come until the source has finished. The keys belong to one
connection of the source: when an old connection ends late, the keys of a later one stay."""

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

#: The lock for the keys in libvirt, and for the record which connection they belong to.
LENT = "lent keys"


def export_server_keys(host: LocalHost, server: Document) -> dict[str, str | None]:
    """Return the server's disk key and the secret of its TPM for the target, as arguments of ``begin``, the first call
    that the source's agent sends to the target's; each is ``None`` if the server has no such key."""
    return {"key": encryption.export_disk_key(host, server), "tpm_secret": tpm.export_tpm_secret(host, server)}


def import_server_keys(host: LocalHost, server: Fields, sent: Fields) -> None:
    """Store the keys in *sent* (the arguments of ``begin``, the call that the source's agent sends first) in *server*
    (a server's document as a dict), sealed with this host's key."""
    encryption.import_disk_key(host, server, sent.get("key"))
    tpm.import_tpm_secret(host, server, sent.get("tpm_secret"))


def lend_server_keys(host: LocalHost, server: Document, talk: Rpc) -> DiskKey | None:
    """Store the keys of a server that migrates live to this host as secrets in libvirt, until the connection *talk*
    ends. Return the disk key, ``None`` without encryption."""
    disk_key = encryption.open_disk_key(host, server)
    secret = tpm.open_tpm_secret(host, server, None)
    if disk_key or secret:
        with host.locks.hold(LENT, server.id):
            host.lent_keys[server.id] = talk
            host.hypervisor.lend_keys(server.id, [disk_key] if disk_key else [], secret)
    return disk_key


def take_back_keys(host: LocalHost, server: str, talk: Rpc | None = None) -> None:
    """Remove the secrets of *server* (uuid) from libvirt if ``lend_server_keys`` stored them for the connection *talk*.
    With ``None``, remove them if an earlier process of the agent stored them, but not if this process did. Errors are
    ignored, because a libvirt that has stopped has no secrets any more."""
    with host.locks.hold(LENT, server):
        if host.lent_keys.get(server) is not talk:
            return
        host.lent_keys.pop(server, None)
        with suppress(MagnetarError):
            host.hypervisor.take_back_keys(server, [encryption.disk_key_uuid(server)])
