# SPDX-License-Identifier: GPL-3.0-or-later
"""From servers to hosts of an inventory: filters, host names, addresses, groups.

Pure functions on documents of servers, as the agent lists them. A *key* names a property of servers (``server_keys``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..module_utils.core.server_keys import KEYS, flat_filters, is_known, matches, values_of

__all__ = ["KEYS", "address", "deduplicated", "flat_filters", "groups", "host_names", "is_known", "matches"]

Server = Mapping[str, Any]


def deduplicated(servers: Iterable[Server]) -> list[Server]:
    """*servers* with each uuid once. Two hosts list a server while it migrates: the one where it runs counts."""
    found: dict[str, Server] = {}
    for server in servers:
        if server["id"] not in found or (server.get("power_state") == "running"
                                         and found[server["id"]].get("power_state") != "running"):
            found[server["id"]] = server
    return list(found.values())


def host_names(servers: Iterable[Server], preferences: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """``{uuid: host name}`` by the first of *preferences* that a server has, and the names that several servers share.

    A shared name gets the beginning of the uuid appended, for each of its servers.
    """
    keys = (*preferences, "id")
    wished = {server["id"]: next((text for key in keys for text in values_of(server, key)), server["id"])
              for server in servers}
    count = Counter(wished.values())
    shared = sorted(name for name, times in count.items() if times > 1)
    short = Counter("%s_%s" % (name, uuid[:8]) for uuid, name in wished.items() if count[name] > 1)
    found = {}
    for uuid, name in wished.items():
        tried = "%s_%s" % (name, uuid[:8])
        own = tried if short[tried] == 1 and tried not in count else "%s_%s" % (name, uuid)
        found[uuid] = own if count[name] > 1 else name
    return found, shared


def address(server: Server, networks: Iterable[str], versions: Iterable[int]) -> str | None:
    """The address by which Ansible reaches *server*: on the first of *networks*, and there of the first of *versions*.

    Without *networks*: on any network, in the order of its NICs.
    """
    offered = server.get("addresses") or {}
    order = [name for name in networks if name in offered] or ([] if networks else _in_order(server, offered))
    for name in order:
        for version in versions:
            for one in offered[name]:
                if one.get("version") == version:
                    return one.get("addr")
    return None


def groups(server: Server, wanted: Iterable[tuple[str, str]]) -> list[str]:
    """Names of groups for pairs of key and prefix. They may have characters that Ansible does not allow."""
    return ["%s_%s" % (prefix, text) for key, prefix in wanted for text in values_of(server, key)]


def _in_order(server: Server, offered: Mapping[str, Any]) -> list[str]:
    mine = list(dict.fromkeys(nic.get("network") for nic in server.get("networks") or []))
    return [name for name in mine if name in offered] + [name for name in offered if name not in mine]
