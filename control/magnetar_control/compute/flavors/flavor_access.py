# SPDX-License-Identifier: GPL-3.0-or-later
"""Which projects may use a flavor that is not public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.accounts import flavors as store
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import flavors

RULE = "os_compute_api:os-flavor-access"


class Access(NamedTuple):
    """A flavor's id, and the ids of the projects that may use it."""

    flavor: str
    projects: Sequence[str]


@use_case(RULE)
def show(caller: Caller, id: str) -> Access:
    """Who may use the flavor *id*. Raises ``NotFound`` for a public one: everybody may."""
    flavor = flavors.show(caller, id)
    if flavor.is_public:
        raise NotFound("Access list not available for public flavors.")
    return _of(caller, flavor)


def _of(caller: Caller, flavor: Any) -> Access:
    return Access(flavor.id, caller.fetch(store.projects, flavor.number))


@use_case(f"{RULE}:add_tenant_access")
def add(caller: Caller, id: str, project: str, *, public: bool = False) -> Access:
    """Let *project* use the flavor *id*. *public*: also one that is public, to no effect. Raises ``InvalidRequest`` for
    a project that does not exist, ``Conflict`` for a public flavor or a project that has access."""
    if not caller.cloud.services.identity.project_exists(caller.context, project):
        raise InvalidRequest(f"Project ID {project} is not a valid project.")
    flavor = flavors.show(caller, id)
    if flavor.is_public and not public:
        raise Conflict("Can not add access to a public flavor.")
    with caller.cloud.store.api.write() as connection:
        if not store.grant(connection, flavor.number, project):
            raise Conflict(f"Flavor access already exists for flavor {flavor.id} and project {project} combination.")
        flavors.tell(caller, connection, flavor._mapping, "update")  # noqa: SLF001 - SQLAlchemy's name
    return _of(caller, flavor)


@use_case(f"{RULE}:remove_tenant_access")
def remove(caller: Caller, id: str, project: str) -> Access:
    """Let *project*, which need not exist any more, not use the flavor *id*. Raises ``NotFound`` when it may not
    anyway."""
    flavor = flavors.show(caller, id)
    with caller.cloud.store.api.write() as connection:
        if not store.withdraw(connection, flavor.number, project):
            raise NotFound(f"Flavor access not found for {flavor.id} / {project} combination.")
        flavors.tell(caller, connection, flavor._mapping, "update")  # noqa: SLF001 - SQLAlchemy's name
    return _of(caller, flavor)
