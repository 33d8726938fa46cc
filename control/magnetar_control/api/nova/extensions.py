# SPDX-License-Identifier: GPL-3.0-or-later
"""extensions: a closed list, which clients of old look at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from magnetar_control.compute.proxies import extensions
from magnetar_core.errors import NotFound

from .operation import Call, noun

#: Only /v2 has it.
OLD = "OS-EXT-VIF-NET"


def _documents(call: Call, found: Mapping[str, str]) -> list[dict[str, Any]]:
    """Those of the version in the path."""
    return [{"alias": alias, "name": name, "description": re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name), "links": [],
             "namespace": "http://docs.openstack.org/compute/ext/fake_xml", "updated": "2014-12-03T00:00:00Z"}
            for alias, name in found.items() if call.legacy or alias != OLD]


def _one(call: Call) -> dict[str, Any]:
    id = call.params["id"]
    for one in _documents(call, extensions.every(call)):
        if one["alias"] == id:
            return {"extension": one}
    raise NotFound(f"There is no extension {id[:80]}. The list of extensions is closed since 2014; what came later, "
                   "microversions say.")


_row = noun("extensions", "/extensions", strict=102)
OPERATIONS = (
    _row("GET", "", "list", extensions.every, shown=lambda call, found: {"extensions": _documents(call, found)}),
    _row("GET", "/{id}", "show", extensions.every, handler=_one),
)
