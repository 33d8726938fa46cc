# SPDX-License-Identifier: GPL-3.0-or-later
"""From a path that a guest asks for to what it is told. Pure.

``guest_data.tree`` has whole documents; here are the listings, and EC2's one path for each element (MD-10 to MD-13,
MD-40 to MD-44, MD-52), as Nova has them: listings end without a newline, and a slash at a path's end says nothing.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .guest_data import EC2_VERSIONS, SEED, VERSIONS

PASSWORD = "password"  # noqa: S105 (a path)
#: Order of the files of a version, as Nova lists them.
_ORDER = ("meta_data.json", "user_data", PASSWORD, "vendor_data.json", "network_data.json", "vendor_data2.json")
_JSON, _TEXT = "application/json", "text/plain; charset=UTF-8"


@dataclass(frozen=True)
class PathContent:
    """What a path answers with."""

    body: bytes
    type: str = _TEXT


def tokens(path: str) -> list[str]:
    """The parts of a path in normal form; paths below no known folder are EC2's."""
    parts = posixpath.normpath("/" + path.lstrip("/")).split("/")[1:]
    if parts[0] in ("ec2", "openstack"):
        return parts
    return ["ec2", *(parts if parts[0] else [])]


def is_password(path: str) -> bool:
    """Whether *path* is where a guest leaves its password, in a version that has it."""
    parts = tokens(path)
    return (len(parts) == 3 and parts[0] == "openstack" and parts[1] in VERSIONS and parts[1] >= SEED
            and parts[2] == PASSWORD)


class GuestPaths:
    """All that one guest may read: *tree* of ``guest_data``, and the *password* that it has left."""

    def __init__(self, tree: Mapping[str, bytes], password: str = "") -> None:
        self.password = password
        self._tree = tree
        self._ec2: dict[str, Any] = {}

    def find(self, path: str) -> PathContent | None:
        """What is at *path*; ``None``: nothing."""
        parts = tokens(path)
        if parts[0] == "ec2":
            return self._of_ec2(parts[1:])
        if is_password(path):
            return PathContent(self.password.encode())
        return self._of_openstack(parts[1:])

    def _of_openstack(self, parts: list[str]) -> PathContent | None:
        if not parts:
            return _listing(VERSIONS)
        if len(parts) == 1 and parts[0] in VERSIONS:
            there = {path.split("/")[2] for path in self._tree if path.startswith(f"openstack/{parts[0]}/")}
            if parts[0] >= SEED:
                there.add(PASSWORD)
            return _listing(tuple(name for name in _ORDER if name in there))
        found = self._tree.get("/".join(("openstack", *parts)))
        return None if found is None else PathContent(found, _JSON if parts[-1].endswith(".json") else _TEXT)

    def _of_ec2(self, parts: list[str]) -> PathContent | None:
        if not parts:
            return _listing(EC2_VERSIONS)
        if parts[0] not in EC2_VERSIONS:
            return None
        found: Any = self._version(parts[0])
        for part in parts[1:]:
            if not isinstance(found, dict) or part not in found or part == "_name":
                return None
            found = found[part]
        return PathContent(_shown(found))

    def _version(self, version: str) -> dict[str, Any]:
        """EC2's documents of a version."""
        if version not in self._ec2:
            known: dict[str, Any] = {"meta-data": json.loads(self._tree[f"ec2/{version}/meta-data.json"])}
            user_data = self._tree.get(f"ec2/{version}/user-data")
            self._ec2[version] = known if user_data is None else {**known, "user-data": user_data}
        found: dict[str, Any] = self._ec2[version]
        return found


def _listing(names: tuple[str, ...]) -> PathContent:
    return PathContent("\n".join(names).encode())


def _shown(found: Any) -> bytes:
    """An element, or the listing of those below it: with a slash where there is more, public keys as 0=NAME."""
    if isinstance(found, bytes):
        return found
    if isinstance(found, dict):
        return "\n".join(_entry(name, found[name]) for name in sorted(found) if name != "_name").encode()
    return "\n".join(map(str, found)).encode() if isinstance(found, list) else str(found).encode()


def _entry(name: str, below: Any) -> str:
    if not isinstance(below, dict):
        return name
    return str(below.get("_name", f"{name}/"))
