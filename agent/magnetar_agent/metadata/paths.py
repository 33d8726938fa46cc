# SPDX-License-Identifier: GPL-3.0-or-later
"""The answers for the paths that a guest asks for. Pure.

``guest_data.metadata_tree`` has whole documents; this module adds the listings, and EC2's path for each element, as
Nova has them: listings end without a newline, and a slash at a path's end has no meaning.
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
    """The content at a path of the metadata service. *type*: the media type."""

    body: bytes
    type: str = _TEXT


def path_parts(path: str) -> list[str]:
    """Return the parts of the URL path *path* in normal form. Paths that begin with neither ``ec2`` nor ``openstack``
    get ``ec2`` in front."""
    parts = posixpath.normpath("/" + path.lstrip("/")).split("/")[1:]
    if parts[0] in ("ec2", "openstack"):
        return parts
    return ["ec2", *(parts if parts[0] else [])]


def is_password(path: str) -> bool:
    """Return whether *path* is the path of the guest's password, in a metadata version that has passwords."""
    parts = path_parts(path)
    return (len(parts) == 3 and parts[0] == "openstack" and parts[1] in VERSIONS and parts[1] >= SEED
            and parts[2] == PASSWORD)


class GuestPaths:
    """The content of all paths of the metadata service for one guest. *tree*: content by path, from ``metadata_tree``.
    *password*: the password that the guest has posted, or ""."""

    def __init__(self, tree: Mapping[str, bytes], password: str = "") -> None:
        self.password = password
        self._tree = tree
        self._ec2: dict[str, Any] = {}

    def find(self, path: str) -> PathContent | None:
        """Return the content or the listing at *path*; ``None`` if there is no such path."""
        parts = path_parts(path)
        if parts[0] == "ec2":
            return self._of_ec2(parts[1:])
        if is_password(path):
            return PathContent(self.password.encode())
        return self._of_openstack(parts[1:])

    def _of_openstack(self, parts: list[str]) -> PathContent | None:
        if not parts:
            return _listing(VERSIONS)
        if len(parts) == 1 and parts[0] in VERSIONS:
            file_names = {path.split("/")[2] for path in self._tree if path.startswith(f"openstack/{parts[0]}/")}
            if parts[0] >= SEED:
                file_names.add(PASSWORD)
            return _listing(tuple(name for name in _ORDER if name in file_names))
        content = self._tree.get("/".join(("openstack", *parts)))
        return None if content is None else PathContent(content, _JSON if parts[-1].endswith(".json") else _TEXT)

    def _of_ec2(self, parts: list[str]) -> PathContent | None:
        if not parts:
            return _listing(EC2_VERSIONS)
        if parts[0] not in EC2_VERSIONS:
            return None
        element: Any = self._version(parts[0])
        for part in parts[1:]:
            if not isinstance(element, dict) or part not in element or part == "_name":
                return None
            element = element[part]
        return PathContent(_render_element(element))

    def _version(self, version: str) -> dict[str, Any]:
        """Return the EC2 data of a version: ``meta-data`` as a nested dict, and ``user-data`` as bytes if the guest has
        user data."""
        if version not in self._ec2:
            documents: dict[str, Any] = {"meta-data": json.loads(self._tree[f"ec2/{version}/meta-data.json"])}
            user_data = self._tree.get(f"ec2/{version}/user-data")
            self._ec2[version] = documents if user_data is None else {**documents, "user-data": user_data}
        version_documents: dict[str, Any] = self._ec2[version]
        return version_documents


def _listing(names: tuple[str, ...]) -> PathContent:
    return PathContent("\n".join(names).encode())


def _render_element(element: Any) -> bytes:
    """Return the text at an EC2 path. *element*: a value, or a dict for a folder, which is rendered as a listing: a
    slash follows subfolders, and public keys are listed as ``0=NAME``."""
    if isinstance(element, bytes):
        return element
    if isinstance(element, dict):
        return "\n".join(_entry(name, element[name]) for name in sorted(element) if name != "_name").encode()
    return "\n".join(map(str, element)).encode() if isinstance(element, list) else str(element).encode()


def _entry(name: str, below: Any) -> str:
    if not isinstance(below, dict):
        return name
    return str(below.get("_name", f"{name}/"))
