# SPDX-License-Identifier: GPL-3.0-or-later
"""The type of request attributes that have no effect in this service. Values that describe the actual behavior are
accepted, because clients send them."""

from __future__ import annotations

from typing import Any

from magnetar_core.errors import InvalidField
from magnetar_core.values import Value
from magnetar_core.versions import Version


class Lacking(Value):
    """The validation of a request attribute that has no effect in this service. Null and the *usual* values are
    allowed; any other value raises ``InvalidField`` with the message *why*."""

    def __init__(self, why: str, *usual: Any) -> None:
        self.why, self.usual = why, (None, *usual)

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if not any(value == allowed and isinstance(value, bool) is isinstance(allowed, bool) for allowed in self.usual):
            raise InvalidField(path, self.why, value)
        return value

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"enum": [*self.usual]}
