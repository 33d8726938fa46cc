# SPDX-License-Identifier: GPL-3.0-or-later
"""The value type of the scheduler hints in a request for servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_core.errors import InvalidField
from magnetar_core.values import ListOf, OneOf, Text, Value

from .values import Address, Anything, Id


class Hints(Value):
    """A validator of scheduler hints in request bodies. It checks only the format of known hints. Whether the scheduler
    supports the hints is checked later, by the function that creates the servers."""

    KNOWN: Mapping[str, Value] = {"group": Id(), "different_host": OneOf(Id(), ListOf(Id(), 1000)),
                                  "same_host": OneOf(Id(), ListOf(Id(), 1000)), "query": Anything(),
                                  "target_cell": Text(1, 255), "different_cell": Anything(),
                                  "build_near_host_ip": Address(4), "cidr": Text(1, 64)}

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return the scheduler hints in the object *value*: known hints checked and in normal form, unknown hints
        unchanged. *path*: the name of the field, for the error. Raises ``InvalidField``."""
        if not isinstance(value, dict):
            raise InvalidField(path, "must be an object", value)
        return {name: self.KNOWN[name].check(item, f"{path}.{name}", version) if name in self.KNOWN else item
                for name, item in value.items()}
