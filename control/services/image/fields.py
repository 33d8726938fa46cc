# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of an image as clients write and read them (Image API v2, "Images"), and the JSON patch that changes them.

A key that is no field is a property: text, kept in the document ``properties`` and shown beside the fields.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from magnetar_control.services import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, TooLarge

from .formats import BOOT, DISKS

VISIBILITIES = ("private", "shared", "community", "public")
LONGEST, MOST = 65_535, 128
#: Set by the service.
READ_ONLY = frozenset({
    "status", "size", "virtual_size", "checksum", "os_hash_algo", "os_hash_value", "created_at", "updated_at", "self",
    "file", "schema", "direct_url", "locations", "stores", "deleted", "deleted_at"})


def _choice(*choices: str, nullable: bool = False) -> Callable[[str, Any], Any]:
    def checked(name: str, value: Any) -> Any:
        if value is None and nullable:
            return None
        if value not in choices or not isinstance(value, str):
            raise InvalidRequest(f"{name} must be one of {', '.join(choices)}.")
        return value

    return checked


def _text(name: str, value: Any, longest: int = 255) -> Any:
    if value is not None and (not isinstance(value, str) or len(value) > longest or "\0" in value):
        raise InvalidRequest(f"{name} must be text of at most {longest} characters without NUL.")
    return value


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidRequest(f"{name} must be an integer from 0 to {2**31 - 1}.")
    return value


def _flag(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false.")
    return value


def tags(name: str, value: Any) -> Any:
    """Tags without doubles, in order."""
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag and "\0" not in tag for tag in value) or any(
            len(tag) > 255 for tag in value) or len(set(value)) > MOST:
        raise InvalidRequest(f"{name} must be a list of at most {MOST} texts of 1 to 255 characters without NUL.")
    return sorted(set(value))


#: Field to its check.
FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "name": _text, "visibility": _choice(*VISIBILITIES), "owner": _text, "min_disk": _number, "min_ram": _number,
    "disk_format": _choice(*DISKS, *BOOT, nullable=True), "container_format": _choice("bare", *BOOT, nullable=True),
    "protected": _flag, "os_hidden": _flag, "tags": tags}
#: What a removed field becomes.
REMOVED: Document = {"name": None, "disk_format": None, "container_format": None, "tags": []}


def checked(wanted: Mapping[str, Any]) -> tuple[Document, dict[str, str]]:
    """Fields and properties of what a client wants. Raises ``InvalidRequest`` naming field and rule, 403 for what
    only the
    service sets."""
    found: Document = {}
    properties: dict[str, str] = {}
    for name, value in wanted.items():
        if name in READ_ONLY or name.startswith("os_glance_"):
            raise Forbidden(f"Attribute '{name}' is set by the image service itself; leave it out.")
        if name in FIELDS:
            found[name] = FIELDS[name](name, value)
        else:
            properties[name] = _property(name, value)
    return found, properties


def _property(name: str, value: Any) -> str:
    if not 0 < len(name) <= 255 or "\0" in name:
        raise InvalidRequest("The name of a property must have 1 to 255 characters, none of them NUL.")
    if not isinstance(value, str) or len(value) > LONGEST or "\0" in value:
        raise InvalidRequest(f"The property {name} must be text of at most {LONGEST} characters without NUL.")
    return value


def kept(properties: Mapping[str, str]) -> str:
    """Properties as the table keeps them. Raises ``TooLarge`` when there are too many."""
    if len(properties) > MOST:
        raise TooLarge(f"An image may have {MOST} properties, and this would be {len(properties)}.")
    return orjson.dumps(properties, option=orjson.OPT_SORT_KEYS).decode()


def wanted_id(value: Any) -> str:
    """An id that a client gives to a new image."""
    try:
        return str(uuid.UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest("id must be a UUID.") from None


def patched(image: Document, operations: Any) -> Document:
    """What a JSON patch (RFC 6902, with the operations that Glance has) makes of an image: the keys that change,
    ``None`` for a property that goes. *image* as ``shown``."""
    if not isinstance(operations, list):
        raise InvalidRequest("The body must be a list of operations {op, path, value}.")
    now, changes = dict(image), {}
    for operation in operations:
        name = _path(operation)
        if name in READ_ONLY or name in ("id", "owner_specified") or name.startswith("os_glance_"):
            raise Forbidden(f"Attribute '{name}' is set by the image service itself and cannot be changed.")
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
                _property(name, operation["value"])
        else:
            raise InvalidRequest("op must be add, replace or remove.")
    return changes


def _path(operation: Any) -> str:
    path = operation.get("path") if isinstance(operation, dict) else None
    if not isinstance(path, str) or not path.startswith("/") or "/" in (name := path[1:]) or not name:
        raise InvalidRequest('Each operation must be an object with a path such as "/name": one slash and the name.')
    return name.replace("~1", "/").replace("~0", "~")


def document(row: Mapping[Any, Any], names: Iterable[str]) -> Document:
    """A row with its tags as ``services.Images`` has it."""
    found = {str(key): value for key, value in row.items()}
    return {**found, "properties": orjson.loads(row["properties"]), "tags": list(names),
            "os_hash_algo": "sha512" if row["os_hash_value"] else None}


def shown(image: Document) -> Document:
    """An image of ``document`` as clients see it."""
    path = f"/v2/images/{image['id']}"
    own = {key: value for key, value in image.items() if key not in ("properties", "why")}
    return {**image["properties"], **own, "created_at": _time(image["created_at"]),
            "updated_at": _time(image["updated_at"] or image["created_at"]),
            "self": path, "file": f"{path}/file", "schema": "/v2/schemas/image"}


def _time(text: str) -> str:
    return f"{text[:19]}Z"
