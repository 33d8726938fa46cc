# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversion of servers to hosts of an inventory: filters, host names, addresses, groups.

Pure functions on documents of servers, as the agent lists them. A *key* names a property of servers (``server_keys``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..module_utils.core.server_keys import KEYS, flat_filters, is_server_key, matches_server_filters, values_for_key

__all__ = ["KEYS", "deduplicate_servers", "flat_filters", "group_names", "host_names", "is_server_key",
           "matches_server_filters", "reachable_address"]

Server = Mapping[str, Any]


def deduplicate_servers(servers: Iterable[Server]) -> list[Server]:
    """Return *servers* with each uuid only once. During a migration two hosts report the same server; the running one
    is returned.
    """
    servers_by_uuid: dict[str, Server] = {}
    for server in servers:
        if server["id"] not in servers_by_uuid or (server.get("power_state") == "running"
                                                   and servers_by_uuid[server["id"]].get("power_state") != "running"):
            servers_by_uuid[server["id"]] = server
    return list(servers_by_uuid.values())


def host_names(servers: Iterable[Server], preferences: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return two values: the inventory host name of each server, as ``{uuid: name}``; and a sorted list of the names
    that several servers would have. A name is the value of the first key in *preferences* that the server has; without
    such a value, it is the server's uuid.

    If several servers would have the same name, the beginning of each server's uuid is appended to its name. The whole
    uuid is appended if the beginning does not make the name unique.
    """
    keys = (*preferences, "id")
    wished = {server["id"]: next((text for key in keys for text in values_for_key(server, key)), server["id"])
              for server in servers}
    count = Counter(wished.values())
    shared = sorted(name for name, times in count.items() if times > 1)
    short = Counter("%s_%s" % (name, uuid[:8]) for uuid, name in wished.items() if count[name] > 1)
    names = {}
    for uuid, name in wished.items():
        tried = "%s_%s" % (name, uuid[:8])
        unique_name = tried if short[tried] == 1 and tried not in count else "%s_%s" % (name, uuid)
        names[uuid] = unique_name if count[name] > 1 else name
    return names, shared


def reachable_address(server: Server, networks: Iterable[str], versions: Iterable[int]) -> str | None:
    """Return the IP address for Ansible's connection to *server*; ``None`` if the server has none. *networks*: the
    names of networks in order of preference; if empty, all networks in the order of the server's NICs. *versions*: the
    IP versions in order of preference.
    """
    offered = server.get("addresses") or {}
    order = [name for name in networks if name in offered] or ([] if networks else _in_order(server, offered))
    for name in order:
        for version in versions:
            for candidate in offered[name]:
                if candidate.get("version") == version:
                    return candidate.get("addr")
    return None


def group_names(server: Server, group_keys: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of the inventory groups of *server*: ``PREFIX_VALUE`` for each value that the server has for a
    key. *group_keys*: tuples of key and prefix. The names may contain characters that Ansible does not allow.
    """
    return ["%s_%s" % (prefix, text) for key, prefix in group_keys for text in values_for_key(server, key)]


def _in_order(server: Server, offered: Mapping[str, Any]) -> list[str]:
    mine = list(dict.fromkeys(nic.get("network") for nic in server.get("networks") or []))
    return [name for name in mine if name in offered] + [name for name in offered if name not in mine]
