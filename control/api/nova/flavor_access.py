# SPDX-License-Identifier: GPL-3.0-or-later
"""os-flavor-access: which projects may use a flavor that is not public."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import (
    record,
)
from magnetar_control.api.values import Wrapped
from magnetar_control.compute import flavor_access
from magnetar_core.values import Text

PROJECT = Text(1, 255, r"[a-zA-Z0-9-]+", "must be a project's id")


def _shown(access: flavor_access.Access) -> dict[str, Any]:
    return {"flavor_access": [{"flavor_id": access.flavor, "tenant_id": project} for project in access.projects]}


def index(call: Call) -> dict[str, Any]:
    """GET /flavors/{flavor_id}/os-flavor-access."""
    return _shown(flavor_access.show(call, call.params["flavor_id"]))


def add(call: Call) -> dict[str, Any]:
    """The action addTenantAccess."""
    return _shown(flavor_access.add(call, call.params["id"], call.body["tenant"],
                                    public=not call.at(Gate.FLAVOR_ACCESS_PRIVATE_ONLY)))


def remove(call: Call) -> dict[str, Any]:
    """The action removeTenantAccess."""
    return _shown(flavor_access.remove(call, call.params["id"], call.body["tenant"]))


OPERATIONS = (
    Operation(method="GET", path="/flavors/{flavor_id}/os-flavor-access", handler=index,
              use=flavor_access.show, name="flavors.os-flavor-access.list", strict=102),
    Operation(method="POST", path="/flavors/{id}/action", handler=add, use=flavor_access.add,
              name="flavors.action.addTenantAccess", action="addTenantAccess",
              body=Wrapped("addTenantAccess", record({"tenant": PROJECT}, "tenant"))),
    Operation(method="POST", path="/flavors/{id}/action", handler=remove, use=flavor_access.remove,
              name="flavors.action.removeTenantAccess", action="removeTenantAccess",
              body=Wrapped("removeTenantAccess", record({"tenant": PROJECT}, "tenant"))),
)
