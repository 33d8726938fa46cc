# SPDX-License-Identifier: GPL-3.0-or-later
"""A server goes from one agent to another. ``source`` gives it, ``target`` gets it, ``transfer`` carries its files.

Who has the server is decided once, and kept where it is decided: by the target, when the source has told it that the
guest is off there for good (``arrive``). Until then everything can be repeated or taken back, and the guest at the
target never runs; from then on the target's copy is the server, and the source's is only removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: Name of the door of the target's agent; the others are those of libvirtd and QEMU.
AGENT, LIBVIRT, QEMU, DISKS = "agent", "libvirt", "qemu", "disks"
#: Note of a server: the migration that it is in.
MARK = "migration"
#: Note of both halves: whether memory and disks go straight from QEMU to QEMU.
NATIVE = "native_tls"
#: Note of an attachment: the migration that it comes with.
ARRIVING = "arriving"


def arriving(host: LocalHost) -> set[str]:
    """Servers that are migrating to this host."""
    return {d.want["server"] for d in host.documents.list("migration")
            if d.want["side"] == "target" and not d.state.get("arrived")}


def settling(host: LocalHost, server: str) -> str | None:
    """The migration with which a server has arrived here, while it is not settled: it would bring the server again."""
    return next((d.id for d in host.documents.peek("migration") if d.want["server"] == server
                 and d.want["side"] == "target" and d.state.get("arrived") and not d.state.get("settled")), None)


def moving(host: LocalHost, server: Document) -> str | None:
    """The migration that has marked the server. A mark means nothing without this host's half: that was given up, and
    the mark could not be removed, or need not be."""
    mark: str | None = server.state.get(MARK)
    return mark if mark and host.documents.look("migration", mark) else None


def refuse_while_it_moves(host: LocalHost, server: Document | None, id: str | None = None) -> None:
    """A server that is moving is changed by nobody but migration *id*. Raises ``Conflict``."""
    mark = moving(host, server) if server is not None else None
    if server is not None and mark not in (None, id):
        raise Conflict(f"Server {server.name!r} is being migrated (migration {mark}). Wait until that has ended, or "
                       "abort it with the migration module and state absent.", migration=mark)
