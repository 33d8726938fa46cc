# SPDX-License-Identifier: GPL-3.0-or-later
"""What servers are filtered and grouped by, the same in the inventory and in server_info: *keys*, see ``KEYS``."""

from __future__ import annotations

import fnmatch
from typing import Any, Callable, Iterator, Mapping

Server = Mapping[str, Any]

#: Keys besides ``metadata.<key>``, each with a function that lists what a server has for it.
KEYS: dict[str, Callable[[Server], list[Any]]] = {
    "availability_zone": lambda server: [server.get("availability_zone")],
    "flavor": lambda server: [_name(server.get("flavor"))],
    "host": lambda server: [server.get("host")],
    "id": lambda server: [server.get("id")],
    "image": lambda server: [_name(server.get("image"))],
    "key_name": lambda server: [server.get("key_name")],
    "name": lambda server: [server.get("name")],
    "network": lambda server: [nic.get("network") or nic.get("bridge") or nic.get("port") or nic.get("physical_network")
                               for nic in server.get("networks") or []],
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


def flat(filters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The *filters*, with keys ``metadata.<key>`` in place of a mapping ``metadata``."""
    for key, value in filters.items():
        if key == "metadata" and isinstance(value, Mapping):
            for name, text in value.items():
                yield METADATA + str(name), text
        else:
            yield key, value


def flat_filters(filters: Mapping[str, Any]) -> dict[str, list[str]]:
    """The *filters*, ``flat``, with lists of texts as values."""
    return {key: [str(text) for text in (value if isinstance(value, (list, tuple)) else [value])]
            for key, value in flat(filters)}


def matches(server: Server, filters: Mapping[str, list[str]]) -> bool:
    """Whether of each filter a pattern matches a value that *server* has for its key."""
    return all(any(fnmatch.fnmatchcase(text, pattern) for text in values_of(server, key) for pattern in patterns)
               for key, patterns in filters.items())


def _name(reference: Any) -> Any:
    """The name of a referenced resource, or else its uuid; ``None`` for a flavor that is only sizes."""
    return reference.get("name") or reference.get("id") if isinstance(reference, Mapping) else reference
