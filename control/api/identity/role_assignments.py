# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes that give and take roles, on projects, domains and the system, to users and groups; and the list of all."""

from __future__ import annotations

from functools import partial

from magnetar_control.services.identity.assignments import ALL
from magnetar_control.services.identity.role_assignments import ACTORS, RoleAssignments
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidRequest

from . import views
from .query import is_on

#: Query parameter to the column that it is about.
FILTERS = {"user.id": ("actor", "user"), "group.id": ("actor", "group"), "scope.project.id": ("target", "project"),
           "scope.domain.id": ("target", "domain"), "scope.system": ("target", "system")}


class RoleAssignmentRoutes:
    """The routes; for administrators only."""

    def __init__(self, assignments: RoleAssignments) -> None:
        self.assignments = assignments

    def routes(self) -> list[Guarded]:
        """All of them."""
        implied = "/v3/roles/{prior}/implies"
        found = [Guarded(method="GET", path="/v3/role_assignments", handler=self.list, who="admin"),
                 Guarded(method="GET", path="/v3/role_inferences", handler=self.inferences, who="admin"),
                 Guarded(method="GET", path=implied, handler=self.implied, who="admin"),
                 Guarded(method="PUT", path=implied + "/{implied}", handler=self.imply, who="admin"),
                 Guarded(method="DELETE", path=implied + "/{implied}", handler=self.remove_implied, who="admin")]
        for target, where in (("project", "/v3/projects/{target}"), ("domain", "/v3/domains/{target}"),
                              ("system", "/v3/system")):
            for actor in ACTORS:
                path = f"{where}/{actor}s/{{actor}}/roles"
                for method, end, handler in (("GET", "", self.roles), ("GET", "/{role}", self.show),
                                             ("PUT", "/{role}", self.give), ("DELETE", "/{role}", self.take)):
                    found.append(Guarded(method=method, path=path + end, who="admin",
                                         handler=partial(handler, target=target, actor=actor)))
        return found

    def roles(self, request: Request, target: str, actor: str) -> Answer:
        """The roles that are assigned themselves."""
        return views.resources(request, "roles", self.assignments.roles(**_named(request, target, actor)))

    def show(self, request: Request, target: str, actor: str) -> Answer:
        """204 when the role is assigned, else 404."""
        self.assignments.check_given(**_named(request, target, actor))
        return Answer(status=204)

    def give(self, request: Request, target: str, actor: str) -> Answer:
        """Assign it; nothing when it is."""
        self.assignments.give(**_named(request, target, actor))
        return Answer(status=204)

    def take(self, request: Request, target: str, actor: str) -> Answer:
        """Take it away; 404 when it is not assigned."""
        self.assignments.take(**_named(request, target, actor))
        return Answer(status=204)

    def list(self, request: Request) -> Answer:
        """Assignments under the filters; ``effective`` ones have groups and implied roles spread out."""
        query, effective = dict(request.query), is_on(request, "effective")
        if effective and "group.id" in query:
            raise InvalidRequest("effective and group.id exclude each other: effective assignments are those of users.")
        equal = {"role_id": query["role.id"]} if "role.id" in query else {}
        for name, (column, kind) in FILTERS.items():
            if name in query:
                equal |= {column: kind, f"{column}_id": ALL if kind == "system" else query[name]}
        rows, names = self.assignments.list(equal, effective, is_on(request, "include_names"))
        return views.listed("role_assignments", (views.assignment(request, row, names) for row in rows),
                            f"{request.base}/v3/role_assignments")

    def inferences(self, request: Request) -> Answer:
        """All implications."""
        return Answer({"role_inferences": [
            {"prior_role": views.role(request, prior), "implies": [views.role(request, one) for one in implied]}
            for prior, implied in self.assignments.inferences()]})

    def implied(self, request: Request) -> Answer:
        """What one role implies itself."""
        prior, rows = self.assignments.implied(request.params["prior"])
        return Answer({"role_inference": {"prior_role": views.role(request, prior),
                                          "implies": [views.role(request, row) for row in rows]}})

    def imply(self, request: Request) -> Answer:
        """Let a role imply another."""
        prior, implied = self.assignments.imply(request.params["prior"], request.params["implied"])
        return Answer({"role_inference": {"prior_role": views.role(request, prior),
                                          "implies": views.role(request, implied)}}, 201)

    def remove_implied(self, request: Request) -> Answer:
        """Let it imply the other no more."""
        self.assignments.remove_implied(request.params["prior"], request.params["implied"])
        return Answer(status=204)


def _named(request: Request, target: str, actor: str) -> dict[str, str]:
    """The assignment that the URL names."""
    params = request.params
    ids = {"target_id": "target", "actor_id": "actor", "role_id": "role"}
    return {"target": target, "actor": actor, **{id: params[name] for id, name in ids.items() if name in params}}
