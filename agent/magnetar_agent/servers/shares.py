# SPDX-License-Identifier: GPL-3.0-or-later
"""Shares: folders of the host that a guest mounts through virtiofs. The document's state has ``shares``, a list of
{share, tag, share_id}; the host's settings say which folder a share is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.host.storage import SharedFolder
from magnetar_core.errors import Conflict
from magnetar_core.power import CRASHED, MISSING, OFF

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields


def offered(host: LocalHost) -> list[str]:
    """The names of the shares that this host has."""
    return sorted(name for name, path in host.settings.shares.items() if path.is_dir())


def folder(host: LocalHost, name: str) -> Path:
    """The folder of a share. Raises ``Conflict`` when this host has none of that name."""
    path = host.settings.shares.get(name)
    if path is None:
        raise Conflict(f"Host {host.name} has no share {name}. Name its folder in the setting shares of the agent.",
                       field="share")
    if not path.is_dir():
        raise Conflict(f"Host {host.name} has no folder {path}, which its setting shares names for {name}.",
                       field="share")
    return path


def check_attachable(host: LocalHost, name: str) -> Path:
    """The folder of a share that a guest may be given. Raises ``Conflict`` when this host lacks it, or virtiofsd."""
    if not host.hypervisor.serves_shares():
        raise Conflict(f"Host {host.name} has no virtiofsd, which serves shares. On Debian 12 the package "
                       "qemu-system-common has it.")
    return folder(host, name)


def change(document: Document, state: str, tag: str, share: str | None, share_id: str | None = None) -> None:
    """Note in the document that the server has the *share* under this tag, or none (``None``). *share_id*: how the
    guest is told which it is, where its cloud has another word. Raises ``Conflict`` when that is a change and the
    domain's *state* is not off."""
    kept = document.state.get("shares", [])
    new = [{"share": share, "tag": tag, **({"share_id": share_id} if share_id else {})}] if share else []
    left = [one for one in kept if one["tag"] != tag] + new
    if left != kept and state not in (OFF, CRASHED, MISSING):
        raise Conflict(f"Server {document.name!r} is {state}. Stop it, since shares come and go while it is off.",
                       power_state=state)
    document.state["shares"] = left


def of(host: LocalHost, state: Fields) -> tuple[SharedFolder, ...]:
    """What a server's document says of its shares, with their folders. Raises ``Conflict``."""
    return tuple(SharedFolder(folder(host, one["share"]), one["tag"]) for one in state.get("shares", ()))
