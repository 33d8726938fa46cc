# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified limits: Keystone's limits of projects for the resources of services whose own API has no quotas. Registered
limits are the defaults for all projects. The services decide which registered limits exist."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.services import Context
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.accounts import quotas
from magnetar_control.store.engine.database import Database
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound

from . import tables
from .resources import fetch_identity_row

NAMESPACE = uuid.UUID("3d0a4a0f-0b65-5d4e-8f40-0a1f6f1c2b77")


def _id(*words: str) -> str:
    """Return a limit's id, which is derived from *words*: the id of the service, the name of the resource and, for the
    limit of a project, the id of the project."""
    return uuid.uuid5(NAMESPACE, "\0".join(words)).hex


class UnifiedLimits:
    """Keystone's unified limits, which are stored as the quotas of the services. *services*: {type of the service in
    the catalogue: its quotas}."""

    def __init__(self, database: Database, services: Mapping[str, Quotas]) -> None:
        self.database, self.services = database, services

    def only_region(self) -> str | None:
        """Return the id of the region in the catalogue if there is exactly one; otherwise ``None``."""
        with self.database.read() as connection:
            ids = connection.execute(select(tables.regions.c.id).order_by(tables.regions.c.id).limit(2)).scalars().all()
        return str(ids[0]) if len(ids) == 1 else None

    def check_region(self, region: str | None, path: str) -> None:
        """Raise ``InvalidField`` unless *region* is ``None`` or the only region of the catalogue, because limits apply
        to all regions. *path*: the name of the field, for the error."""
        if region is not None and region != (only := self.only_region()):
            accepted = f"{only}, the only region, or null" if only else "null"
            raise InvalidField(path, f"must be {accepted}: limits of projects hold in all regions", region)

    def registered(self) -> Documents:
        """Return the registered limits: the default limits of projects."""
        with self.database.read() as connection:
            return [{"id": _id(service["id"], name), "service_id": service["id"], "region_id": None,
                     "resource_name": name, "default_limit": limit, "description": None}
                    for service, quota in self._limited_services(connection) for name,
                    limit in quota.limits(connection).items()]

    def register(self, id: str, limit: int) -> Document:
        """Change the default limit of the registered limit *id* to *limit*, and return the registered limit."""
        self._set(quotas.DEFAULT, self.find(self.registered(), "registered limit", id), limit)
        return self.find(self.registered(), "registered limit", id)

    def list(self, context: Context) -> Documents:
        """Return the limits that are set for projects. Administrators see the limits of all projects, others only the
        limits of their own project."""
        with self.database.read() as connection:
            return [self._limit(service, project, name, limit) for service, quota in self._limited_services(connection)
                    for project, project_limits in quotas.fetch_quota_limits(
                        connection, quotas.fetch_limited_projects(connection, quota.defaults)).items()
                    if context.is_admin or project == context.project_id
                    for name, limit in project_limits.items() if name in quota.defaults]

    def create(self, context: Context, *requests: Mapping[str, Any]) -> Documents:
        """Create the limits *requests* of projects, and return them. Raises ``Forbidden`` if a resource has no
        registered limit, and ``Conflict`` if a project already has a limit for the resource."""
        registered, have = self.registered(), {limit["id"] for limit in self.list(context)}
        new = []
        for request in requests:
            about = next((registration for registration in registered
                          if all(registration[name] == request[name] for name in (
                "service_id", "resource_name"))), None)
            if about is None:
                raise Forbidden(f"No registered limit of service {request['service_id']} is called "
                                f"{request['resource_name']}; there are: "
                                f"{', '.join(registration['resource_name'] for registration in registered)}.")
            id = _id(about["service_id"], about["resource_name"], request["project_id"])
            if id in have:
                raise Conflict(f"The project has a limit on {request['resource_name']} already, {id}; set that one.")
            self._check_project(request["project_id"])
            new.append((id, about, request))
        for _new, about, request in new:
            self._set(request["project_id"], about, request["resource_limit"])
        limits = self.list(context)
        return [self.find(limits, "limit", id) for id, _about, _given in new]

    def update(self, context: Context, id: str, limit: int) -> Document:
        """Change a limit of a project, and return it."""
        current = self.find(self.list(context), "limit", id)
        self._set(current["project_id"], current, limit)
        return {**current, "resource_limit": limit}

    def delete(self, context: Context, id: str) -> None:
        """Remove a limit of a project. The registered limit then applies to the project."""
        current = self.find(self.list(context), "limit", id)
        self._set(current["project_id"], current, None)

    def find(self, limits: Documents, resource_type: str, id: str) -> Document:
        """Return the element of *limits* with this *id*. Raises ``NotFound``; *resource_type*: for its message."""
        match = next((limit for limit in limits if limit["id"] == id), None)
        if match is None:
            raise NotFound(f"Could not find {resource_type}: {id}.")
        return match

    def _limited_services(self, connection: Connection) -> Iterator[tuple[Document, Quotas]]:
        """Yield (service, its quotas) for each service of the catalogue that has unified limits."""
        for type_, quota in self.services.items():
            service = fetch_identity_row(connection, tables.services, type=type_)
            if service is not None:
                yield service, quota

    def _limit(self, service: Document, project: str, name: str, limit: int) -> Document:
        return {"id": _id(service["id"], name, project), "service_id": service["id"], "region_id": None,
                "project_id": project, "domain_id": None, "resource_name": name, "resource_limit": limit,
                "description": None}

    def _set(self, project: str, about: Document, limit: int | None) -> None:
        with self.database.write() as connection:
            for service, quota in self._limited_services(connection):
                if service["id"] == about["service_id"]:
                    quota.set(connection, project, {about["resource_name"]: limit})

    def _check_project(self, id: str) -> None:
        with self.database.read() as connection:
            if fetch_identity_row(connection, tables.projects, id=id) is None:
                raise InvalidField("project_id", "must be a project that is there", id)
