# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that share a folder of servers' disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_control.store.hosts.disk_folders import folder_of_host

if TYPE_CHECKING:
    from .hosts import HostStates


def hosts_sharing_disks(states: HostStates, source: str) -> frozenset[str]:
    """Return the names of the other hosts that can reach the disks of the servers on *source*, because they use the
    same shared folder. *source* may be down."""
    id = folder_of_host(states.rows.get(source)).get("id")
    return frozenset(name for name, host in states.hosts.items() if name != source and host.disk_folder == id
                     ) if id else frozenset()


def hosts_by_folder(states: HostStates) -> dict[str, frozenset[str]]:
    """Return the names of the hosts that use each shared folder of server disks, by the id of the folder."""
    by_folder: dict[str, set[str]] = {}
    for name, host in states.hosts.items():
        if host.disk_folder:
            by_folder.setdefault(host.disk_folder, set()).add(name)
    return {id: frozenset(names) for id, names in by_folder.items() if len(names) > 1}


def common_hosts(hosts: frozenset[str] | None, sharing: frozenset[str]) -> frozenset[str] | None:
    """Return the intersection of *hosts* and *sharing*. ``None`` for *hosts*, and an empty set for *sharing*, stand for
    all hosts."""
    if not sharing:
        return hosts
    return sharing if hosts is None else hosts & sharing
