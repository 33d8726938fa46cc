# SPDX-License-Identifier: GPL-3.0-or-later
"""Migration of a server between two agents: ``source`` sends it, ``target`` receives it, ``transfer`` copies its files.

The owner of the server changes once: when the target records the source's call ``arrive``, which confirms that the
guest is off on the source for good. Until then every step can be repeated or undone, and the guest does not run on the
target, except after a switch to post-copy, which cannot be undone. From then on the target's copy is the server, and
the source's copy is only removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: Names of the link's endpoints: the target's agent, its libvirtd, and QEMU's sockets for memory and disks.
AGENT, LIBVIRT, QEMU, DISKS = "agent", "libvirt", "qemu", "disks"
#: Note of a server: the id of the migration that has marked it.
MARK = "migration"
#: Note of a migration on both hosts: whether QEMU sends memory and disks directly to the target's QEMU (TLS).
NATIVE = "native_tls"
#: Note of an attachment: the id of the migration with which it comes.
ARRIVING = "arriving"


def arriving_servers(host: LocalHost) -> set[str]:
    """Return the uuids of the servers that are migrating to this host and have not arrived."""
    return {d.want["server"] for d in host.documents.list("migration")
            if d.want["side"] == "target" and not d.state.get("arrived")}


def unsettled_migration(host: LocalHost, server: str) -> str | None:
    """Return the id of the incoming migration of *server* (uuid) that has arrived but is not cleaned up yet; ``None``
    if there is none. Before this cleanup the server must not be deleted, because the migration would create it again.
    """
    return next((d.id for d in host.documents.peek("migration") if d.want["server"] == server
                 and d.want["side"] == "target" and d.state.get("arrived") and not d.state.get("settled")), None)


def migration_of_server(host: LocalHost, server: Document) -> str | None:
    """Return the id of the migration that moves the server, from the state field (mark) that the migration has set in
    the server's document; ``None`` if it is not set. A field that remained after its migration was removed from this
    host is ignored."""
    mark: str | None = server.state.get(MARK)
    return mark if mark and host.documents.peek_by_id("migration", mark) else None


def refuse_while_it_moves(host: LocalHost, server: Document | None, id: str | None = None) -> None:
    """Raise ``Conflict`` if the *server* is being migrated, because nothing else may change it. *id*: the uuid of the
    caller's own migration, which is no reason for the error. *server*: ``None`` to do nothing."""
    mark = migration_of_server(host, server) if server is not None else None
    if server is not None and mark not in (None, id):
        raise Conflict(f"Server {server.name!r} is being migrated (migration {mark}). Wait until that has ended, or "
                       "abort it with the migration module and state absent.", migration=mark)
