# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of guests in files of the host (the agent's setting ``file_backed_memory``): how much there is, and that it is
never promised twice. Source: Nova's page on file-backed memory (spec row XDEV-06)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict

from . import placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost


def total(host: LocalHost) -> int:
    """MiB that guests of this host can have: of files, where their memory is in files, else the host's."""
    return host.settings.file_backed_memory or int(host.hypervisor.host()["memory_mb"])


def check(host: LocalHost, want: Mapping[str, Any], id: str) -> None:
    """Raise ``Conflict`` where the memory of the server *id* with these fields is not left in files: servers that are
    off keep theirs. Hold the lock of choices until it is written."""
    most = host.settings.file_backed_memory
    if not most:
        return
    held = sum(one["flavor"]["ram"] for one in placement.holders(host, id))
    if held + want["flavor"]["ram"] > most:
        raise Conflict(f"flavor: the server needs {want['flavor']['ram']} MiB of memory, and of the {most} MiB that "
                       f"host {host.name} has in files (its agent's setting file_backed_memory) {max(0, most - held)} "
                       "are left. Choose another host, or free some there.", field="flavor")
