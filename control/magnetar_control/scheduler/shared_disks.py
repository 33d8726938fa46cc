# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that share the storage of servers' own disks: a folder or a pool of Ceph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_control.store.hosts.shared_disks import shared_disks_of

if TYPE_CHECKING:
    from magnetar_control.store.servers.server_row import ServerRow

    from .hosts import HostStates


def hosts_sharing_disks(states: HostStates, server: ServerRow, source: str) -> frozenset[str]:
    """Return the names of the hosts that use the same shared storage for server disks as the host *source*, except
    *source* itself. Return an empty set if the server has no own disks on such a storage. *source* may be down, and the
    other hosts may be unable to use the storage now."""
    id = shared_disks_of(states.rows.get(source), server).get("id")
    return frozenset(name for name, host in states.hosts.items() if name != source and host.disk_storage == id
                     ) if id else frozenset()


def narrow_to_disks(states: HostStates, hosts: frozenset[str] | None, sharing: frozenset[str]) -> frozenset[str] | None:
    """Return those of *hosts* to which a server with disks on shared storage may move. These are the hosts *sharing*
    that can use the storage now; there may be none. *hosts*: ``None`` stands for all hosts. *sharing*: the hosts that
    use the same storage; if it is empty, return *hosts* unchanged."""
    if not sharing:
        return hosts
    reaching = frozenset(name for name in sharing if states.hosts[name].reaches_disk_storage)
    return reaching if hosts is None else hosts & reaching


def hosts_by_disk_storage(states: HostStates) -> dict[str, frozenset[str]]:
    """Return the names of the hosts that use each shared storage of server disks, by the id of the storage. Storages
    that only one host uses are left out."""
    by_storage: dict[str, set[str]] = {}
    for name, host in states.hosts.items():
        if host.disk_storage:
            by_storage.setdefault(host.disk_storage, set()).add(name)
    return {id: frozenset(names) for id, names in by_storage.items() if len(names) > 1}


def common_hosts(hosts: frozenset[str] | None, sharing: frozenset[str]) -> frozenset[str] | None:
    """Return the intersection of *hosts* and *sharing*. ``None`` for *hosts*, and an empty set for *sharing*, stand for
    all hosts."""
    if not sharing:
        return hosts
    return sharing if hosts is None else hosts & sharing
