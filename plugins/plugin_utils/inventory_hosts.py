# SPDX-License-Identifier: GPL-3.0-or-later
"""From servers to hosts of an inventory: filters, host names, addresses, groups.

Pure functions on documents of servers, as the agent lists them. A *key* names a property of servers: see ``KEYS``.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Server = Mapping[str, Any]

#: Keys besides ``metadata.<key>``, each with a function that lists what a server has for it.
KEYS = {
    "availability_zone": lambda server: [server.get("availability_zone")],
    "flavor": lambda server: [_name(server.get("flavor"))],
    "host": lambda server: [server.get("host")],
    "id": lambda server: [server.get("id")],
    "image": lambda server: [_name(server.get("image"))],
    "key_name": lambda server: [server.get("key_name")],
    "name": lambda server: [server.get("name")],
    "network": lambda server: [nic.get("network") or nic.get("bridge") for nic in server.get("networks") or []],
    "power_state": lambda server: [server.get("power_state")],
    "status": lambda server: [server.get("status")],
    "tags": lambda server: server.get("tags") or [],
}
METADATA = "metadata."


def is_known(key: str) -> bool:
    """Whether *key* is a key of servers."""
    return key in KEYS or (key.startswith(METADATA) and key != METADATA)


def values_of(server: Server, key: str) -> list[str]:
    """The values that *server* has for *key*, as texts: none, one or more."""
    if key.startswith(METADATA):
        found = [(server.get("metadata") or {}).get(key[len(METADATA):])]
    else:
        found = KEYS[key](server)
    return [str(text) for text in found if text not in (None, "")]


def flat_filters(filters: Mapping[str, Any]) -> dict[str, list[str]]:
    """*filters* with keys ``metadata.<key>`` in place of a mapping ``metadata``, and with lists as values."""
    found = {}
    for key, value in filters.items():
        if key == "metadata" and isinstance(value, Mapping):
            found.update(flat_filters({METADATA + str(name): text for name, text in value.items()}))
        else:
            found[key] = [str(text) for text in (value if isinstance(value, (list, tuple)) else [value])]
    return found


def matches(server: Server, filters: Mapping[str, list[str]]) -> bool:
    """Whether of each filter a pattern matches a value that *server* has for its key."""
    return all(any(fnmatch.fnmatchcase(text, pattern) for text in values_of(server, key) for pattern in patterns)
               for key, patterns in filters.items())


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


def _name(reference: Any) -> Any:
    """The name of a referenced resource, or else its uuid; ``None`` for a flavor that is only sizes."""
    return reference.get("name") or reference.get("id") if isinstance(reference, Mapping) else reference
