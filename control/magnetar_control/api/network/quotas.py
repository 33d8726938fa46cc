# SPDX-License-Identifier: GPL-3.0-or-later
"""The quotas of Neutron: limits of projects, and what they have (API reference, "Quotas extension")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.values import Anything, Number, Parsed, Truth, record
from magnetar_control.services import Document
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.quotas import OF_ENGINE
from magnetar_control.store.accounts.quotas import Limits
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest
from magnetar_core.fields import Record

#: Resources that there are with an engine alone: else nothing of them may be had.
NOTHING = OF_ENGINE
LIMIT, TRUTH = Number(-1, 2**31 - 1), Truth(("true", "True", "1"), ("false", "False", "0"))


def _nothing(value: object) -> object:
    if value not in (0, "0"):
        raise ValueError
    return value


def body(names: Iterable[str]) -> Record:
    """Limits of the resources *names*. *check_limit*: they may not be lower than what is used, which *force* says the
    other way round."""
    none = Parsed(_nothing, "must be 0: embedded networking has none of these")
    return record({**dict.fromkeys(NOTHING, none), **dict.fromkeys(names, LIMIT), "force": TRUTH, "check_limit": TRUTH,
                   "tenant_id": Anything(), "project_id": Anything()})


class QuotaRoutes:
    """The routes of quotas."""

    def __init__(self, service: EmbeddedNetworks) -> None:
        self.database, self.quota = service.database, service.quota
        self.names = tuple(self.quota.defaults)
        self.body = body(self.names)

    def routes(self) -> list[Guarded]:
        """Where they are."""
        one = "/v2.0/quotas/{id}"
        return [route("GET /v2.0/quotas", self.list, who="admin"), route(f"GET {one}", self.show),
                route(f"GET {one}/default", self.default), route(f"GET {one}/details", self.details),
                route(f"GET {one}/details.json", self.details), route(f"PUT {one}", self.update, who="admin"),
                route(f"DELETE {one}", self.delete, 204, "admin")]

    def list(self, _request: Request) -> Document:
        """The projects that have limits of their own."""
        with self.database.read() as connection:
            found = self.quota.every(connection)
        return {"quotas": [{**_all(limits), "project_id": project, "tenant_id": project}
                           for project, limits in found.items()]}

    def show(self, request: Request) -> Document:
        """Limits of a project."""
        with self.database.read() as connection:
            return {"quota": _all(self.quota.limits(connection, _project(request)))}

    def default(self, request: Request) -> Document:
        """Those of projects without their own."""
        _project(request)
        with self.database.read() as connection:
            return {"quota": _all(self.quota.limits(connection))}

    def details(self, request: Request) -> Document:
        """Limits of a project, with what it has of each."""
        project = _project(request)
        with self.database.read() as connection:
            limits, used = _all(self.quota.limits(connection, project)), self.quota.used(connection, project)
        return {"quota": {name: {"limit": limit, "used": used.get(name, 0), "reserved": 0}
                          for name, limit in limits.items()}}

    def update(self, request: Request) -> Document:
        """Set limits; all of the project's limits."""
        given: Any = request.json()
        wanted = given.get("quota") if isinstance(given, dict) else None
        if not isinstance(wanted, dict):
            raise InvalidField("quota", "is required: an object of resources and limits")
        values = self.body.check(wanted, "quota")
        limits = {name: values[name] for name in self.names if name in values}
        with self.database.write() as connection:
            if values.get("check_limit") and not values.get("force"):
                _check_used(limits, self.quota.used(connection, _project(request)))
            return {"quota": _all(self.quota.set(connection, _project(request), limits))}

    def delete(self, request: Request) -> None:
        """The project has the limits of all others again."""
        with self.database.write() as connection:
            self.quota.set(connection, _project(request), dict.fromkeys(self.names))


def _project(request: Request) -> str:
    """The project that the URL names. Raises ``Forbidden`` where that is not the caller's."""
    project: str = request.params["id"]
    if project != request.context.project_id and not request.context.is_admin:
        raise Forbidden("Only admins may see the quota of another project.")
    return project


def _all(limits: Limits) -> Document:
    return {**dict.fromkeys(NOTHING, 0), **limits}


def _check_used(limits: Limits, used: Limits) -> None:
    for name, limit in limits.items():
        if 0 <= limit < used[name]:
            raise InvalidRequest(f"Quota limit {limit} for {name} must be greater than or equal to already used "
                                 f"{used[name]}. Say force to set it all the same.")
