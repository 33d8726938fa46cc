# SPDX-License-Identifier: GPL-3.0-or-later
"""Shares: folders of the host that a guest mounts through virtiofs. The document's state has ``shares``, a list of
{share, tag, share_id}; the host's settings map each share to its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.host.storage import SharedFolder
from magnetar_core.errors import Conflict
from magnetar_core.power import CRASHED, MISSING, OFF

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields


def share_names(host: LocalHost) -> list[str]:
    """Return the names of the file shares in the agent's setting ``shares`` whose folders exist."""
    return sorted(name for name, path in host.settings.shares.items() if path.is_dir())


def share_folder(host: LocalHost, name: str) -> Path:
    """Return the host's folder of the file share *name*. Raises ``Conflict`` if this host has no such share."""
    path = host.settings.shares.get(name)
    if path is None:
        raise Conflict(f"Host {host.name} has no share {name}. Name its folder in the setting shares of the agent.",
                       field="share")
    if not path.is_dir():
        raise Conflict(f"Host {host.name} has no folder {path}, which its setting shares names for {name}.",
                       field="share")
    return path


def check_attachable(host: LocalHost, name: str) -> Path:
    """Return the host's folder of the file share *name*. Raises ``Conflict`` if this host cannot attach it to a guest
    because the share or virtiofsd is missing."""
    if not host.hypervisor.serves_shares():
        raise Conflict(f"Host {host.name} has no virtiofsd, which serves shares. On Debian 12 the package "
                       "qemu-system-common has it.")
    return share_folder(host, name)


def note_share(document: Document, state: str, tag: str, share: str | None, share_id: str | None = None) -> None:
    """Store in the server's document that *share* is attached under the mount tag *tag*. If *share* is ``None``, store
    that nothing is attached under *tag*. *share_id*: the control plane's id of the share, for the guest's metadata.
    Raises ``Conflict`` if this is a change and *state*, the domain's state, is not off, crashed or missing."""
    recorded = document.state.get("shares", [])
    new = [{"share": share, "tag": tag, **({"share_id": share_id} if share_id else {})}] if share else []
    new_shares = [attached for attached in recorded if attached["tag"] != tag] + new
    if new_shares != recorded and state not in (OFF, CRASHED, MISSING):
        raise Conflict(f"Server {document.name!r} is {state}. Stop it, since shares come and go while it is off.",
                       power_state=state)
    document.state["shares"] = new_shares


def shared_folders(host: LocalHost, state: Fields) -> tuple[SharedFolder, ...]:
    """Return the attached file shares in *state*, the server's state fields, with their folders on this host. Raises
    ``Conflict`` if this host lacks a share."""
    return tuple(SharedFolder(share_folder(host, share["share"]), share["tag"]) for share in state.get("shares", ()))
