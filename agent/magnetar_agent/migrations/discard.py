# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's half of a migration ends without a word to the other host: for a server that is deleted, wherever it is.

An abort finds out first where the server is, and so needs the other host; a deletion does not care. Nothing starts or
runs on for it, and it needs no room on the disk.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from magnetar_agent.servers import folder
from magnetar_agent.servers.disks import rbd_images
from magnetar_core.errors import MagnetarError, NotFound

from . import MARK, target, volumes
from .source_cleanup import is_here
from .transfer import NOTE

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: Name of the event.
EVENT = "discard"


def discard(host: LocalHost, key: str) -> None:
    """End migration *key* here. What this host has of the server as a server stays, and can be deleted; what had only
    come goes. May be done twice; one that has ended stays as a record. Raises ``NotFound``."""
    found = host.documents.find("migration", key)
    if found is None:
        raise NotFound(f"There is no migration {key!r} on this host.", kind="migration", key=key)
    with host.locks.hold("migration", found.id):
        document = host.documents.get("migration", found.id)
        if document is None or document.state.get("left") or document.state.get("settled"):
            return
        {"source": _at_source, "target": _at_target}[document.want["side"]](host, document)
        host.documents.remove(document)


def _at_source(host: LocalHost, document: Document) -> None:
    """The server's mark means nothing without the half, so it need not be written."""
    host.links.cut(document.id)
    host.progress.pop(document.id, None)
    id = document.want["server"]
    with host.locks.hold("server", id):
        server = host.documents.get("server", id)
        if server is None:
            volumes.forget(host, id)
        elif server.state.get(MARK) == document.id:
            with suppress(MagnetarError):
                host.hypervisor.stray(id)
            volumes.revoke(host, id)
            if rbd_images.are_wanted(server.want) and document.state.get("tried") and not is_here(host, document):
                # Nobody asks where it is: what may be the target's by now is not removed with what is left here.
                rbd_images.hand_over(server)
                host.documents.write(server)


def _at_target(host: LocalHost, document: Document) -> None:
    id = document.want["server"]
    host.links.withdraw(document.id)
    with host.locks.hold("server", id):
        if host.documents.get("server", id) is None:
            target.remove_copy(host, document)
            volumes.forget(host, id)
        else:
            for note in folder(host, id).glob(f"*{NOTE}"):
                note.unlink(missing_ok=True)
        shutil.rmtree(target.run_folder(host, document.id), ignore_errors=True)
