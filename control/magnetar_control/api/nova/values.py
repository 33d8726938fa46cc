# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types that only Nova's bodies and queries have, and shared words, names and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magnetar_control.api.values import Truth
from magnetar_control.compute.servers.metadata import KEY, METADATA
from magnetar_control.compute.servers.tags import TAG, TAGS
from magnetar_core.errors import InvalidField
from magnetar_core.values import Text, Value

from .fields import ApiField, Body
from .versions import NEWEST

#: The last version in which Nova proxies other services.
PROXIES = 35
TRUE = ("True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes")
FALSE = ("False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no")
TRUTH = Truth(TRUE, FALSE)


def body_object(fields: Mapping[str, ApiField | Value], *required: str) -> Body:
    """Return a validator of a JSON object that accepts the keys of *fields* and no others. *fields*: the validator or
    ``ApiField`` of each key. *required*: the keys that must be present.
    """
    made = [replace(value, wire=name) if isinstance(value, ApiField) else ApiField(name, value)
            for name, value in fields.items()]
    return Body(made, [field for field in made if field.required or field.wire in required])


def field_since(version: str, value: Value, until: str | None = None, required: bool = False) -> ApiField:
    """Return a field of request bodies that exists since *version*, such as "2.32", and only up to the version *until*
    if that is given. *value*: its validator. *required*: whether the body must contain it."""
    return ApiField("", value, since=int(version[2:]), until=int(until[2:]) if until else NEWEST,
                    required="create" if required else "")


class Gapped(Value):
    """A validator of a field that some API versions lack: it accepts what the validator *value* accepts, but refuses
    all values in the versions after *until* and before *again*."""

    def __init__(self, value: Value, until: str, again: str) -> None:
        self.value, self.until, self.again = value, int(until[2:]), int(again[2:])

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return *value* in the normal form of the wrapped validator. Raises ``InvalidField``, also in a version that
        lacks the field."""
        if version is not None and self.until < version.minor < self.again:
            raise InvalidField(path, "is not a known field in this version")
        return self.value.check(value, path, version)


PASSWORD = Text(0, 255)
HOST = Text(1, 255, r"[a-zA-Z0-9._-]+", "must be the name of a host")


def device_tag(until: str) -> ApiField:
    """Return the field ``tag`` of a NIC or disk in a request body. The field exists since 2.32. The versions after
    *until* and before 2.42 lack the field, because Nova removed it by mistake."""
    return field_since("2.32", Gapped(TAG, until, "2.42"))


__all__ = ["KEY", "METADATA", "TAG", "TAGS"]
