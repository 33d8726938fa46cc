# SPDX-License-Identifier: GPL-3.0-or-later
"""os-extra_specs of flavors: what they ask of hosts and give to guests besides sizes."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.values import OneKey, Wrapped
from magnetar_control.compute import flavor_extra_specs
from magnetar_control.compute.flavor_extra_specs import SPECS
from magnetar_core.errors import InvalidRequest

PATH = "/flavors/{flavor_id}/os-extra_specs"


def index(call: Call) -> dict[str, Any]:
    """GET …/os-extra_specs."""
    return {"extra_specs": orjson.Fragment(flavor_extra_specs.show(call, call.params["flavor_id"]))}


def show(call: Call) -> dict[str, Any]:
    """GET …/os-extra_specs/{id}."""
    name = call.params["id"]
    return {name: flavor_extra_specs.show_one(call, call.params["flavor_id"], name)}


def create(call: Call) -> dict[str, Any]:
    """POST …/os-extra_specs: add to what is there."""
    flavor_extra_specs.create(call, call.params["flavor_id"], call.body, checked=call.at(Gate.EXTRA_SPECS_CHECKED))
    return {"extra_specs": call.body}


def update(call: Call) -> Any:
    """PUT …/os-extra_specs/{id}."""
    flavor_extra_specs.update.check(call)  # who may not change it reads that, whatever the body says
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the body's key must be the extra spec of the path.")
    flavor_extra_specs.update(call, call.params["flavor_id"], call.body, checked=call.at(Gate.EXTRA_SPECS_CHECKED))
    return call.body


def delete(call: Call) -> None:
    """DELETE …/os-extra_specs/{id}."""
    flavor_extra_specs.delete(call, call.params["flavor_id"], call.params["id"])


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, use=flavor_extra_specs.show,
              name="flavors.os-extra_specs.list", strict=102),
    Operation(method="POST", path=PATH, handler=create, use=flavor_extra_specs.create,
              name="flavors.os-extra_specs.create", body=Wrapped("extra_specs", SPECS)),
    Operation(method="GET", path=PATH + "/{id}", handler=show, use=flavor_extra_specs.show_one,
              name="flavors.os-extra_specs.show", strict=102),
    Operation(method="PUT", path=PATH + "/{id}", handler=update, use=flavor_extra_specs.update,
              name="flavors.os-extra_specs.update", body=OneKey(SPECS)),
    Operation(method="DELETE", path=PATH + "/{id}", handler=delete, use=flavor_extra_specs.delete,
              name="flavors.os-extra_specs.delete"),
)
