# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types of Cinder's bodies."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.values import Anything, Id, Number, OrEmpty, Truth
from magnetar_control.services import Document
from magnetar_control.services.volume.rows import KEYS
from magnetar_control.web import Request
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Choices, MapOf, Nullable, Text, Value
from magnetar_core.versions import Version

TRUTH = Truth(("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n"), any_case=True)


class Stripped(Text):
    """Text without the blanks around it."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return super().check(value, path, version).strip()


class IdOrNone(Id):
    """A uuid; null and the empty text are none."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return None if value in (None, "") else super().check(value, path, version)


class Connector(MapOf):
    """Who is about to attach a volume, in the words of a driver, of which *read* ones are. It is kept."""

    read = {"host": Nullable(Text(0, 255)), "mountpoint": Nullable(Text(0, 255))}
    #: Bytes of it as JSON.
    most = 1 << 14

    def __init__(self) -> None:
        super().__init__(Text(), Anything())

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        found = super().check(value, path, version)
        for name, kind in self.read.items():
            kind.check(found.get(name), f"{path}.{name}", version)
        if len(orjson.dumps(found)) > self.most:
            raise InvalidField(path, f"must have {self.most} bytes at most")
        return found

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {**super().schema(version), "properties": {
            name: kind.schema(version) for name, kind in self.read.items()}}


NAME = Nullable(Stripped(0, 255))
ID = IdOrNone()
#: GiB of a volume; and a limit of a project, of which -1 is none.
SIZE, LIMIT = Number(1, 2**20), Number(-1)
METADATA = OrEmpty(MapOf(Text(1, 255), Text(0, 255), KEYS), {})
MODE = Nullable(Choices("rw", "ro", ""))
CONNECTOR = Connector()
#: A field whose value changes nothing here.
IGNORED = Anything()
NAMES: dict[str, Value] = {"name": NAME, "display_name": NAME, "description": NAME, "display_description": NAME}


def body(request: Request, name: str, value: Value) -> Any:
    """The object *name* of the body, checked."""
    given = request.json()
    if not isinstance(given, dict) or not isinstance(given.get(name), dict):
        raise InvalidRequest(f"Missing required element '{name}' in request body; it must be an object.")
    return value.check(given[name], name)


def named(given: Document) -> Document:
    """Name and description, also by their old names."""
    old = {"name": given.get("display_name"), "description": given.get("display_description")}
    return {name: given.get(name, value) for name, value in old.items() if name in given or f"display_{name}" in given}


def is_set(request: Request, name: str) -> bool:
    """Whether a flag of the query says yes."""
    return TRUTH.words.get(dict(request.query).get(name, "").lower(), False)
