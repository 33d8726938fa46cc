# SPDX-License-Identifier: GPL-3.0-or-later
"""Access of projects to flavors that are not public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.accounts import flavors as store
from magnetar_control.store.accounts.flavors import FlavorRow
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import flavors

RULE = "os_compute_api:os-flavor-access"


class Access(NamedTuple):
    """A flavor's id, and the ids of the projects that may use it."""

    flavor: str
    projects: Sequence[str]


@use_case(RULE)
def show_flavor_access(caller: Caller, id: str) -> Access:
    """Return the projects that may use the flavor *id*. Raises ``NotFound`` for a public flavor, which all projects may
    use."""
    flavor = flavors.show_flavor(caller, id)
    if flavor.is_public:
        raise NotFound("Access list not available for public flavors.")
    return _access_of(caller, flavor)


@use_case(f"{RULE}:add_tenant_access")
def list_flavor_accesses(caller: Caller) -> Sequence[tuple[str, str, str]]:
    """Return a tuple (flavor id, flavor name, project id) for each project that may use a private flavor."""
    return caller.fetch(store.fetch_flavor_access_rows)


def _access_of(caller: Caller, flavor: FlavorRow) -> Access:
    return Access(flavor.id, caller.fetch(store.fetch_flavor_projects, flavor.number))


@use_case(f"{RULE}:add_tenant_access")
def create_flavor_access(caller: Caller, id: str, project: str, *, public: bool = False) -> Access:
    """Let *project* use the flavor *id*, and return all projects that may use it. *public*: accept a public flavor,
    although the access has no effect. Raises ``InvalidRequest`` for a project that does not exist, ``Conflict`` for a
    public flavor without *public* and for a project that already has access."""
    if not caller.cloud.services.identity.project_exists(caller.context, project):
        raise InvalidRequest(f"Project ID {project} is not a valid project.")
    flavor = flavors.show_flavor(caller, id)
    if flavor.is_public and not public:
        raise Conflict("Can not add access to a public flavor.")
    with caller.cloud.store.api.write() as connection:
        if not store.insert_flavor_access_row(connection, flavor.number, project):
            raise Conflict(f"Flavor access already exists for flavor {flavor.id} and project {project} combination.")
        flavors.notify_flavor(caller, connection, flavor, "update")
    return _access_of(caller, flavor)


@use_case(f"{RULE}:remove_tenant_access")
def delete_flavor_access(caller: Caller, id: str, project: str) -> Access:
    """Remove the access of *project* to the flavor *id*, and return the remaining projects that may use it. The project
    may already be deleted in Keystone. Raises ``NotFound`` when the project has no access."""
    flavor = flavors.show_flavor(caller, id)
    with caller.cloud.store.api.write() as connection:
        if not store.remove_flavor_access_row(connection, flavor.number, project):
            raise NotFound(f"Flavor access not found for {flavor.id} / {project} combination.")
        flavors.notify_flavor(caller, connection, flavor, "update")
    return _access_of(caller, flavor)
