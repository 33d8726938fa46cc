# SPDX-License-Identifier: GPL-3.0-or-later
"""extensions: the list of the Compute API's extensions, which never changes, for old clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from magnetar_control.compute.proxies import extensions
from magnetar_core.errors import NotFound

from .operation import Call, operation_factory

#: The extension that only /v2 lists.
OLD = "OS-EXT-VIF-NET"


def _documents(call: Call, names_by_alias: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the API extensions in *names_by_alias* in Nova's format. The extension with the alias ``OLD`` is only in
    answers below ``/v2``."""
    return [{"alias": alias, "name": name, "description": re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name), "links": [],
             "namespace": "http://docs.openstack.org/compute/ext/fake_xml", "updated": "2014-12-03T00:00:00Z"}
            for alias, name in names_by_alias.items() if call.legacy or alias != OLD]


def _one(call: Call) -> dict[str, Any]:
    id = call.params["id"]
    for extension in _documents(call, extensions.list_extensions(call)):
        if extension["alias"] == id:
            return {"extension": extension}
    raise NotFound(f"There is no extension {id[:80]}. The list of extensions is closed since 2014; what came later, "
                   "microversions say.")


_row = operation_factory("extensions", "/extensions", strict=102)
OPERATIONS = (
    _row("GET", "", "list", extensions.list_extensions, shown=lambda call,
         names_by_alias: {"extensions": _documents(call, names_by_alias)}),
    _row("GET", "/{id}", "show", extensions.list_extensions, handler=_one),
)
