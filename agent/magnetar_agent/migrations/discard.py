# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a migration on one host without contact to the other host, for a server that will be deleted.

An abort first asks the other host where the server is, which does not matter before a deletion. Discarding a migration
neither starts nor resumes a guest, and needs no disk space."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from magnetar_agent.servers import server_folder
from magnetar_agent.servers.disks import disk_owner, rbd_images
from magnetar_core.errors import MagnetarError, NotFound

from . import MARK, target, volumes
from .coming_disks import SHARED
from .source_cleanup import is_here
from .transfer import NOTE

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: Name of the event that discards a migration.
EVENT = "discard"


def discard_migration(host: LocalHost, key: str) -> None:
    """Abandon the migration *key* (uuid or name) on this host, without asking the other host. If the server belongs to
    this host, the server stays and can be deleted; otherwise the server's incomplete copy is removed. Repeating the
    call is safe. Does nothing for a completed migration. Raises ``NotFound`` if this host has no such migration."""
    migration = host.documents.find("migration", key)
    if migration is None:
        raise NotFound(f"There is no migration {key!r} on this host.", kind="migration", key=key)
    with host.locks.hold("migration", migration.id):
        document = host.documents.get("migration", migration.id)
        if document is None or document.state.get("left") or document.state.get("settled"):
            return
        {"source": _at_source, "target": _at_target}[document.want["side"]](host, document)
        host.documents.remove(document)


def _at_source(host: LocalHost, document: Document) -> None:
    """End the migration on the source. The server's document may keep the mark that the server is being migrated:
    without the migration's document, the mark has no effect."""
    host.links.cut(document.id)
    host.progress.pop(document.id, None)
    id = document.want["server"]
    with host.locks.hold("server", id):
        server = host.documents.get("server", id)
        if server is None:
            volumes.forget_attachments(host, id)
        elif server.state.get(MARK) == document.id:
            with suppress(MagnetarError):
                host.hypervisor.abort_stale_job(id)
            volumes.revoke_sharing(host, id)
            shared = bool(document.state.get(SHARED))
            if (shared or rbd_images.uses_rbd_images(server.want)) and document.state.get("tried") and not is_here(
                    host, document):
                # Where the server is remains unknown: disks that the target may own must not be removed with its
                # remains here.
                rbd_images.hand_over(server)
                if shared:
                    disk_owner.hand_over_disks(server)
                host.documents.write(server)


def _at_target(host: LocalHost, document: Document) -> None:
    id = document.want["server"]
    host.links.withdraw(document.id)
    with host.locks.hold("server", id):
        if host.documents.get("server", id) is None:
            target.remove_copy(host, document)
            volumes.forget_attachments(host, id)
        else:
            for note in server_folder(host, id).glob(f"*{NOTE}"):
                note.unlink(missing_ok=True)
        shutil.rmtree(target.run_folder(host, document.id), ignore_errors=True)
