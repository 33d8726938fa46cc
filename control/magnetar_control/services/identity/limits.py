# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified limits: Keystone's way to set limits of projects on resources of a service that has no quotas in its own API.
Registered limits are those of all projects; which there are, the service says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.services import Context, Document, Documents
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.accounts import quotas
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound

from . import tables
from .resources import one

NAMESPACE = uuid.UUID("3d0a4a0f-0b65-5d4e-8f40-0a1f6f1c2b77")


def _id(*words: str) -> str:
    """The id of a limit follows from what it is about."""
    return uuid.uuid5(NAMESPACE, "\0".join(words)).hex


class UnifiedLimits:
    """*services*: the quotas of services, by their types in the catalogue."""

    def __init__(self, database: Database, services: Mapping[str, Quotas]) -> None:
        self.database, self.services = database, services

    def only_region(self) -> str | None:
        """Return the id of the only region of the catalogue, ``None`` where there are several or none."""
        with self.database.read() as connection:
            ids = connection.execute(select(tables.regions.c.id).order_by(tables.regions.c.id).limit(2)).scalars().all()
        return str(ids[0]) if len(ids) == 1 else None

    def check_region(self, region: str | None, path: str) -> None:
        """Raise ``InvalidField`` for a *region* that is not the only one, as a limit holds in all regions."""
        if region is not None and region != (only := self.only_region()):
            others = f"{only}, the only region, or null" if only else "null"
            raise InvalidField(path, f"must be {others}: limits of projects hold in all regions", region)

    def registered(self) -> Documents:
        """The limits of projects that have none of their own."""
        with self.database.read() as connection:
            return [{"id": _id(service["id"], name), "service_id": service["id"], "region_id": None,
                     "resource_name": name, "default_limit": limit, "description": None}
                    for service, quota in self._known(connection) for name, limit in quota.limits(connection).items()]

    def register(self, id: str, limit: int) -> Document:
        """Set a registered limit."""
        self._set(quotas.DEFAULT, self.find(self.registered(), "registered limit", id), limit)
        return self.find(self.registered(), "registered limit", id)

    def list(self, context: Context) -> Documents:
        """Limits of projects that were set: of all for admins, else those of the caller's."""
        with self.database.read() as connection:
            return [self._limit(service, project, name, limit) for service, quota in self._known(connection)
                    for project, given in quotas.found(connection, quotas.holders(connection, quota.defaults)).items()
                    if context.is_admin or project == context.project_id
                    for name, limit in given.items() if name in quota.defaults]

    def create(self, context: Context, *wanted: Mapping[str, Any]) -> Documents:
        """Set limits that are not set yet. Raises ``Forbidden`` where no limit is registered, ``Conflict``."""
        registered, have = self.registered(), {one["id"] for one in self.list(context)}
        new = []
        for given in wanted:
            about = next((one for one in registered if all(one[name] == given[name] for name in (
                "service_id", "resource_name"))), None)
            if about is None:
                raise Forbidden(f"No registered limit of service {given['service_id']} is called "
                                f"{given['resource_name']}; there are: "
                                f"{', '.join(one['resource_name'] for one in registered)}.")
            id = _id(about["service_id"], about["resource_name"], given["project_id"])
            if id in have:
                raise Conflict(f"The project has a limit on {given['resource_name']} already, {id}; set that one.")
            self._check_project(given["project_id"])
            new.append((id, about, given))
        for _new, about, given in new:
            self._set(given["project_id"], about, given["resource_limit"])
        found = self.list(context)
        return [self.find(found, "limit", id) for id, _about, _given in new]

    def update(self, context: Context, id: str, limit: int) -> Document:
        """Set a limit of a project anew."""
        there = self.find(self.list(context), "limit", id)
        self._set(there["project_id"], there, limit)
        return {**there, "resource_limit": limit}

    def delete(self, context: Context, id: str) -> None:
        """The registered limit counts for the project again."""
        there = self.find(self.list(context), "limit", id)
        self._set(there["project_id"], there, None)

    def find(self, limits: Documents, what: str, id: str) -> Document:
        """The one of *limits* with this id. Raises ``NotFound``."""
        found = next((one for one in limits if one["id"] == id), None)
        if found is None:
            raise NotFound(f"Could not find {what}: {id}.")
        return found

    def _known(self, connection: Connection) -> Iterator[tuple[Document, Quotas]]:
        """The services of the catalogue whose limits these are, with their quotas."""
        for type_, quota in self.services.items():
            service = one(connection, tables.services, type=type_)
            if service is not None:
                yield service, quota

    def _limit(self, service: Document, project: str, name: str, limit: int) -> Document:
        return {"id": _id(service["id"], name, project), "service_id": service["id"], "region_id": None,
                "project_id": project, "domain_id": None, "resource_name": name, "resource_limit": limit,
                "description": None}

    def _set(self, project: str, about: Document, limit: int | None) -> None:
        with self.database.write() as connection:
            for service, quota in self._known(connection):
                if service["id"] == about["service_id"]:
                    quota.set(connection, project, {about["resource_name"]: limit})

    def _check_project(self, id: str) -> None:
        with self.database.read() as connection:
            if one(connection, tables.projects, id=id) is None:
                raise InvalidField("project_id", "must be a project that is there", id)
