# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON patches of images."""

from __future__ import annotations

from typing import Any

from magnetar_control.services import Document
from magnetar_control.services.image.fields import FIELDS, PROPERTY, is_read_only
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest

#: What a removed field becomes.
REMOVED: Document = {"name": None, "disk_format": None, "container_format": None, "tags": []}


def patched(image: Document, operations: Any) -> Document:
    """What a JSON patch (RFC 6902, with the operations that Glance has) makes of an image, as clients see it: the keys
    that change, ``None`` for a property that goes."""
    if not isinstance(operations, list):
        raise InvalidRequest("The body must be a list of operations {op, path, value}.")
    now: Document = dict(image)
    changes: Document = {}
    for operation in operations:
        name = _path(operation)
        if is_read_only(name) or name in ("id", "owner_specified"):
            raise Forbidden(f"Attribute '{name}' is set by the image service itself and cannot be changed.")
        _change(operation, name, now, changes)
    return changes


def _change(operation: Document, name: str, now: Document, changes: Document) -> None:
    """Note in *changes* what one operation makes of an image that is *now* as it is."""
    kind = operation.get("op")
    if kind in ("replace", "remove") and name not in now:
        raise Conflict(f"There is no {name} to {kind}; add it.")
    if kind == "remove":
        if name in FIELDS and name not in REMOVED:
            raise Forbidden(f"{name} cannot be removed; replace it.")
        now.pop(name)
        changes[name] = REMOVED.get(name)
    elif kind in ("add", "replace"):
        if "value" not in operation:
            raise InvalidRequest(f"The operation {kind} of {name} needs a value.")
        now[name] = changes[name] = operation["value"]
        if name not in FIELDS:
            PROPERTY.check(operation["value"], name)
    else:
        raise InvalidRequest("op must be add, replace or remove.")


def _path(operation: Any) -> str:
    path = operation.get("path") if isinstance(operation, dict) else None
    if not isinstance(path, str) or not path.startswith("/") or "/" in (name := path[1:]) or not name:
        raise InvalidRequest('Each operation must be an object with a path such as "/name": one slash and the name.')
    return name.replace("~1", "/").replace("~0", "~")
