# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of flavors: what they ask of hosts and give to guests besides sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_control.api.nova.faults import not_found
from magnetar_control.api.nova.flavors import found
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import KEY
from magnetar_control.api.values import OneKey, Wrapped
from magnetar_control.compute import extra_specs
from magnetar_control.store import flavors
from magnetar_control.store.servers import text
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound
from magnetar_core.values import MapOf, Text

RULE = "os_compute_api:os-flavor-extra-specs:"
PATH = "/flavors/{flavor_id}/os-extra_specs"
#: Gate: since when specs of known namespaces are checked.
CHECKS = 86
SPECS = MapOf(KEY, Text(0, 255), 10000)


def index(call: Call) -> dict[str, Any]:
    """GET …/os-extra_specs."""
    return {"extra_specs": orjson.Fragment(found(call, call.params["flavor_id"]).extra_specs)}


def show(call: Call) -> dict[str, Any]:
    """GET …/os-extra_specs/{id}."""
    row, name = found(call, call.params["flavor_id"]), call.params["id"]
    specs = orjson.loads(row.extra_specs)
    if name not in specs:
        raise _none(row, name)
    return {name: specs[name]}


def _none(row: Any, name: str) -> MagnetarError:
    return NotFound(f"Flavor {row.id} has no extra specs with key {name[:255]}.")


def create(call: Call) -> dict[str, Any]:
    """POST …/os-extra_specs: add to what is there."""
    _checked(call, call.body)
    _changed(call, lambda specs: {**specs, **call.body})
    return {"extra_specs": call.body}


def update(call: Call) -> dict[str, Any]:
    """PUT …/os-extra_specs/{id}."""
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the body's key must be the extra spec of the path.")
    _checked(call, call.body)
    _changed(call, lambda specs: {**specs, **call.body})
    answer: dict[str, Any] = call.body
    return answer


def _checked(call: Call, specs: Mapping[str, str]) -> None:
    if call.version >= CHECKS:
        for name, value in specs.items():
            extra_specs.check(name, value)


def _changed(call: Call, made: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Set the specs to what *made* makes of them, in one transaction."""
    row = found(call, call.params["flavor_id"])
    with call.cloud.store.api.write() as connection:
        now = flavors.locked(connection, row.number)
        if now is None:
            raise not_found("Flavor", row.id)
        flavors.change(connection, row.number, extra_specs=text(made(orjson.loads(now["extra_specs"]))))


def delete(call: Call) -> Answer:
    """DELETE …/os-extra_specs/{id}: 200 with nothing."""
    row, name = found(call, call.params["flavor_id"]), call.params["id"]

    def without(specs: dict[str, str]) -> dict[str, str]:
        if name not in specs:
            raise _none(row, name)
        return {key: value for key, value in specs.items() if key != name}

    _changed(call, without)
    return Answer(None, 200)


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="flavors.os-extra_specs.list", rule=f"{RULE}index",
              strict=102),
    Operation(method="POST", path=PATH, handler=create, name="flavors.os-extra_specs.create", rule=f"{RULE}create",
              body=Wrapped("extra_specs", SPECS)),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="flavors.os-extra_specs.show", rule=f"{RULE}show",
              strict=102),
    Operation(method="PUT", path=PATH + "/{id}", handler=update, name="flavors.os-extra_specs.update",
              rule=f"{RULE}update", body=OneKey(SPECS)),
    Operation(method="DELETE", path=PATH + "/{id}", handler=delete, name="flavors.os-extra_specs.delete",
              rule=f"{RULE}delete"),
)
