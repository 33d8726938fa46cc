# SPDX-License-Identifier: GPL-3.0-or-later
"""Guest memory in files of the host (the agent's setting ``file_backed_memory``): its size, and a check that it is
never promised twice. Source: Nova's page on file-backed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict

from . import placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost


def guest_memory_total(host: LocalHost) -> int:
    """Return the MiB of memory that guests of this host may use: the setting ``file_backed_memory`` if it is set,
    otherwise the host's memory.
    """
    return host.settings.file_backed_memory or int(host.hypervisor.host()["memory_mb"])


def check_file_memory(host: LocalHost, want: Mapping[str, Any], id: str) -> None:
    """Raise ``Conflict`` if all servers together would need more memory than the setting ``file_backed_memory``: the
    server *id* with the desired fields *want*, and all other servers, even those that are off. The caller must hold the
    lock ``CHOICES`` until the server's JSON document is written. Under this lock, the agent reserves resources for only
    one server at a time."""
    most = host.settings.file_backed_memory
    if not most:
        return
    used_mb = sum(holder["flavor"]["ram"] for holder in placement.fields_of_holders(host, id))
    if used_mb + want["flavor"]["ram"] > most:
        raise Conflict(f"flavor: the server needs {want['flavor']['ram']} MiB of memory, and of the {most} MiB that "
                       f"host {host.name} has in files (its agent's setting file_backed_memory) "
                       f"{max(0, most - used_mb)} "
                       "are left. Choose another host, or free some there.", field="flavor")
