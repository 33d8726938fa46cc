# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys for filtering and grouping servers (``KEYS``), the same in the inventory and in the module server_info."""

from __future__ import annotations

import fnmatch
from typing import Any, Callable, Iterator, Mapping

Server = Mapping[str, Any]

#: Keys in addition to ``metadata.<key>``, each with a function that lists a server's values.
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


def is_server_key(key: str) -> bool:
    """Return whether *key* can be used to filter and group servers: a key of ``KEYS``, or ``metadata.<key>``."""
    return key in KEYS or (key.startswith(METADATA) and key != METADATA)


def values_for_key(server: Server, key: str) -> list[str]:
    """Return the values of *server* for *key* (of ``KEYS``, or ``metadata.<key>``) as a list of strings, which may be
    empty.
    """
    if key.startswith(METADATA):
        values = [(server.get("metadata") or {}).get(key[len(METADATA):])]
    else:
        values = KEYS[key](server)
    return [str(text) for text in values if text not in (None, "")]


def flatten_metadata(filters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of *filters*, with the items of a mapping ``metadata`` as separate keys ``metadata.<key>``."""
    for key, value in filters.items():
        if key == "metadata" and isinstance(value, Mapping):
            for name, text in value.items():
                yield METADATA + str(name), text
        else:
            yield key, value


def flat_filters(filters: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return *filters* by key, each with its list of accepted strings. A mapping ``metadata`` becomes separate keys
    ``metadata.<key>``.
    """
    return {key: [str(text) for text in (value if isinstance(value, (list, tuple)) else [value])]
            for key, value in flatten_metadata(filters)}


def matches_server_filters(server: Server, filters: Mapping[str, list[str]]) -> bool:
    """Return whether *server* matches all *filters*: for each key, one of the server's values matches one of the shell
    patterns.
    """
    return all(any(fnmatch.fnmatchcase(text, pattern) for text in values_for_key(server, key) for pattern in patterns)
               for key, patterns in filters.items())


def _name(reference: Any) -> Any:
    """Return the name of *reference*, a field that refers to another resource, or its uuid if it has no name; ``None``
    for a flavor that consists of sizes only.
    """
    return reference.get("name") or reference.get("id") if isinstance(reference, Mapping) else reference
