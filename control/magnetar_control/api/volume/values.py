# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types of Cinder's bodies."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.values import Anything, Id, Number, OrEmpty, Truth
from magnetar_control.services.volume.rows import KEYS
from magnetar_control.web import Request
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Choices, MapOf, Nullable, Text, Value
from magnetar_core.versions import Version

TRUTH = Truth(("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n"), any_case=True)


class Stripped(Text):
    """A validator of text that removes leading and trailing blanks."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return super().check(value, path, version).strip()


class IdOrNone(Id):
    """A validator of an optional uuid: null and the empty text are converted to ``None``."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return None if value in (None, "") else super().check(value, path, version)


class Connector(MapOf):
    """A validator of the connector of an attachment: an object that describes the client that connects the volume. It
    checks only the fields that this service uses (host, mountpoint); other fields are stored unchecked."""

    read = {"host": Nullable(Text(0, 255)), "mountpoint": Nullable(Text(0, 255))}
    #: Limit in bytes of the JSON text.
    most = 1 << 14

    def __init__(self) -> None:
        super().__init__(Text(), Anything())

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        connector = super().check(value, path, version)
        for name, kind in self.read.items():
            kind.check(connector.get(name), f"{path}.{name}", version)
        if len(orjson.dumps(connector)) > self.most:
            raise InvalidField(path, f"must have {self.most} bytes at most")
        return connector

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {**super().schema(version), "properties": {
            name: kind.schema(version) for name, kind in self.read.items()}}


NAME = Nullable(Stripped(0, 255))
ID = IdOrNone()
#: GiB of a volume; and a limit of a project, with -1 for unlimited.
SIZE, LIMIT = Number(1, 2**20), Number(-1)
METADATA = OrEmpty(MapOf(Text(1, 255), Text(0, 255), KEYS), {})
MODE = Nullable(Choices("rw", "ro", ""))
CONNECTOR = Connector()
#: A field without effect.
IGNORED = Anything()
NAMES: dict[str, Value] = {"name": NAME, "display_name": NAME, "description": NAME, "display_description": NAME}


def checked_body(request: Request, name: str, value: Value) -> Any:
    """Return the object under the key *name* of the request body, after *value*, a validator, has checked it. Raises
    ``InvalidRequest`` if there is no such object, ``InvalidField`` if a field is invalid."""
    document = request.json()
    if not isinstance(document, dict) or not isinstance(document.get(name), dict):
        raise InvalidRequest(f"Missing required element '{name}' in request body; it must be an object.")
    return value.check(document[name], name)


def name_fields(fields: Document) -> Document:
    """Return ``name`` and ``description`` from *fields*, a request body; the result lacks a key that *fields* lacks.
    The old names display_name and display_description are used if *fields* does not have the new names."""
    old = {"name": fields.get("display_name"), "description": fields.get("display_description")}
    return {name: fields.get(name, value) for name, value in old.items() if name in fields
            or f"display_{name}" in fields}


def is_set(request: Request, name: str) -> bool:
    """Return whether the query parameter *name* is present and true."""
    return TRUTH.words.get(dict(request.query).get(name, "").lower(), False)
