# SPDX-License-Identifier: GPL-3.0-or-later
"""Which projects may use a flavor that is not public."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.flavors import found
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.values import Wrapped, record
from magnetar_control.store import flavors
from magnetar_core.errors import Conflict, InvalidRequest, NotFound
from magnetar_core.values import Text

ROOT = "os_compute_api:os-flavor-access"
#: Gate: since when a public flavor is refused.
REFUSES_PUBLIC = 7
PROJECT = Text(1, 255, r"[a-zA-Z0-9-]+", "must be a project's id")


def index(call: Call) -> dict[str, Any]:
    """GET /flavors/{flavor_id}/os-flavor-access."""
    flavor = found(call, call.params["flavor_id"])
    if flavor.is_public:
        raise NotFound("Access list not available for public flavors.")
    return _answer(call, flavor)


def _answer(call: Call, flavor: Any) -> dict[str, Any]:
    with call.cloud.store.api.read() as connection:
        projects = flavors.projects(connection, flavor.number)
    return {"flavor_access": [{"flavor_id": flavor.id, "tenant_id": project} for project in projects]}


def add(call: Call) -> dict[str, Any]:
    """The action addTenantAccess."""
    project = call.body["tenant"]
    if not call.cloud.services.identity.project_exists(call.context, project):
        raise InvalidRequest(f"Project ID {project} is not a valid project.")
    flavor = found(call, call.params["id"])
    if flavor.is_public and call.version >= REFUSES_PUBLIC:
        raise Conflict("Can not add access to a public flavor.")
    with call.cloud.store.api.write() as connection:
        new = flavors.grant(connection, flavor.number, project)
    if not new:
        raise Conflict(f"Flavor access already exists for flavor {flavor.id} and project {project} combination.")
    return _answer(call, flavor)


def remove(call: Call) -> dict[str, Any]:
    """The action removeTenantAccess; projects that are no more may be removed too."""
    project = call.body["tenant"]
    flavor = found(call, call.params["id"])
    with call.cloud.store.api.write() as connection:
        gone = flavors.withdraw(connection, flavor.number, project)
    if not gone:
        raise NotFound(f"Flavor access not found for {flavor.id} / {project} combination.")
    return _answer(call, flavor)


OPERATIONS = (
    Operation(method="GET", path="/flavors/{flavor_id}/os-flavor-access", handler=index,
              name="flavors.os-flavor-access.list", rule=ROOT, strict=102),
    Operation(method="POST", path="/flavors/{id}/action", handler=add, name="flavors.action.addTenantAccess",
              rule=f"{ROOT}:add_tenant_access", action="addTenantAccess",
              body=Wrapped("addTenantAccess", record({"tenant": PROJECT}, "tenant"))),
    Operation(method="POST", path="/flavors/{id}/action", handler=remove, name="flavors.action.removeTenantAccess",
              rule=f"{ROOT}:remove_tenant_access", action="removeTenantAccess",
              body=Wrapped("removeTenantAccess", record({"tenant": PROJECT}, "tenant"))),
)
