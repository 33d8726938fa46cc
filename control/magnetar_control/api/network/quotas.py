# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of Neutron's quotas: limits and usage of projects (API reference, "Quotas extension")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.values import Anything, Number, Parsed, Truth, build_record
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.quotas import OF_ENGINE
from magnetar_control.store.accounts.quotas import Limits
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest
from magnetar_core.fields import Record

#: Resources that exist only with an engine of networks (OVN); without an engine their limit is 0.
NOTHING = OF_ENGINE
LIMIT, TRUTH = Number(-1, 2**31 - 1), Truth(("true", "True", "1"), ("false", "False", "0"))


def _nothing(value: object) -> object:
    if value not in (0, "0"):
        raise ValueError
    return value


def quota_body(names: Iterable[str]) -> Record:
    """Return a validator of the request body that sets network quotas. *names*: the resources that have a limit, such
    as ``port``. The body may also contain ``check_limit`` and ``force``, with which ``QuotaRoutes.update`` decides
    whether to refuse a limit below the usage."""
    none = Parsed(_nothing, "must be 0: embedded networking has none of these")
    return build_record({**dict.fromkeys(NOTHING, none), **dict.fromkeys(names, LIMIT), "force": TRUTH,
                         "check_limit": TRUTH, "tenant_id": Anything(), "project_id": Anything()})


class QuotaRoutes:
    """The routes of network quotas, which limit the number of each resource in a project."""

    def __init__(self, service: EmbeddedNetworks) -> None:
        self.database, self.quota = service.database, service.quota
        self.names = tuple(self.quota.defaults)
        self.body = quota_body(self.names)

    def routes(self) -> list[Guarded]:
        """Return the routes of network quotas, with their handlers."""
        path = "/v2.0/quotas/{id}"
        return [guarded_route("GET /v2.0/quotas", self.list, who="admin"), guarded_route(f"GET {path}", self.show),
                guarded_route(f"GET {path}/default", self.default), guarded_route(f"GET {path}/details", self.details),
                guarded_route(f"GET {path}/details.json", self.details),
                guarded_route(f"PUT {path}", self.update, who="admin"),
                guarded_route(f"DELETE {path}", self.delete, 204, "admin")]

    def list(self, _request: Request) -> Document:
        """Return the limits of all projects for which limits were set."""
        with self.database.read() as connection:
            limits_by_project = self.quota.every(connection)
        return {"quotas": [{**_all(limits), "project_id": project, "tenant_id": project}
                           for project, limits in limits_by_project.items()]}

    def show(self, request: Request) -> Document:
        """Return the limits of a project."""
        with self.database.read() as connection:
            return {"quota": _all(self.quota.limits(connection, _project(request)))}

    def default(self, request: Request) -> Document:
        """Return the default limits, which apply to projects without specific limits."""
        _project(request)
        with self.database.read() as connection:
            return {"quota": _all(self.quota.limits(connection))}

    def details(self, request: Request) -> Document:
        """Return the limits of a project, and its usage of each limited resource."""
        project = _project(request)
        with self.database.read() as connection:
            limits, used = _all(self.quota.limits(connection, project)), self.quota.used(connection, project)
        return {"quota": {name: {"limit": limit, "used": used.get(name, 0), "reserved": 0}
                          for name, limit in limits.items()}}

    def update(self, request: Request) -> Document:
        """Set limits of a project; return all limits of the project."""
        document: Any = request.json()
        requested = document.get("quota") if isinstance(document, dict) else None
        if not isinstance(requested, dict):
            raise InvalidField("quota", "is required: an object of resources and limits")
        values = self.body.check(requested, "quota")
        limits = {name: values[name] for name in self.names if name in values}
        with self.database.write() as connection:
            if values.get("check_limit") and not values.get("force"):
                _check_used(limits, self.quota.used(connection, _project(request)))
            return {"quota": _all(self.quota.set(connection, _project(request), limits))}

    def delete(self, request: Request) -> None:
        """Reset the limits of the project in the URL to the defaults."""
        with self.database.write() as connection:
            self.quota.set(connection, _project(request), dict.fromkeys(self.names))


def _project(request: Request) -> str:
    """Return the project id in the URL. Raises ``Forbidden`` if it is not the caller's project and the caller is not an
    administrator."""
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
