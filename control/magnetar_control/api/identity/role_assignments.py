# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes that assign and remove roles, on projects, domains and the system, for users and groups; and the list of all
assignments. For administrators only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from magnetar_control.api.query import check_known
from magnetar_control.services.identity.assignments import ALL
from magnetar_control.services.identity.resources import Row
from magnetar_control.services.identity.role_assignments import ACTORS, RoleAssignments
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest

from .views import is_on, render_list, render_resource, render_resources

#: Query parameter to its column and kind.
FILTERS = {"user.id": ("actor", "user"), "group.id": ("actor", "group"), "scope.project.id": ("target", "project"),
           "scope.domain.id": ("target", "domain"), "scope.system": ("target", "system")}
#: Projects below the target of an assignment inherit no roles, so a list of inherited roles is empty.
INHERITED = "scope.OS-INHERIT:inherited_to"
#: Targets of assignments, and their part of the path.
TARGETS = {"project": "projects/{target}", "domain": "domains/{target}", "system": "system"}


def role_assignment_routes(roles: RoleAssignments) -> list[Guarded]:
    """Return the routes that list, check, add and remove role assignments and implied roles."""
    def given(request: Request, **where: str) -> Document:
        return render_resources(request, "roles", roles.roles(**_assignment_arguments(request, where)))

    def done(request: Request, do: Callable[..., None], **where: str) -> None:
        do(**_assignment_arguments(request, where))

    def imply(request: Request) -> Document:
        prior, implied = roles.imply(request.params["prior"], request.params["implied"])
        return {"role_inference": {"prior_role": _role(request, prior), "implies": _role(request, implied)}}

    implies = "/v3/roles/{prior}/implies"
    routes = [
        guarded_route("GET /v3/role_assignments", lambda request: handle_list_role_assignments(request, roles),
                      who="admin"),
        guarded_route("GET /v3/role_inferences", lambda request: {"role_inferences": [
            _inference(request, *inference) for inference in roles.inferences()]}, who="admin"),
        guarded_route(f"GET {implies}", lambda request: {"role_inference": _inference(
            request, *roles.implied(request.params["prior"]))}, who="admin"),
        guarded_route(f"PUT {implies}/{{implied}}", imply, 201, "admin"),
        guarded_route(f"DELETE {implies}/{{implied}}", lambda request: roles.remove_implied(
            request.params["prior"], request.params["implied"]), 204, "admin")]
    for target, actor in product(TARGETS, ACTORS):
        path = f"/v3/{TARGETS[target]}/{actor}s/{{actor}}/roles"
        routes.append(guarded_route(f"GET {path}", partial(given, target=target, actor=actor), who="admin"))
        for method, do in (("GET", roles.check_assigned), ("PUT", roles.assign_role), ("DELETE", roles.unassign_role)):
            routes.append(guarded_route(f"{method} {path}/{{role}}", partial(done, do=do, target=target, actor=actor),
                                        204, "admin"))
    return routes


def _assignment_arguments(request: Request, where: Mapping[str, str]) -> dict[str, str]:
    """Return the keyword arguments that identify a role assignment, which gives an actor a role on a target. The
    arguments are the items of *where*, and those of target_id, actor_id and role_id that the URL contains. *where*: the
    types of target and actor, as {"target": "project", "domain" or "system", "actor": "user" or "group"}."""
    return {**where, **{f"{name}_id": id for name, id in request.params.items()}}


def _checked(request: Request) -> dict[str, str]:
    """Return the query parameters of a request that lists role assignments, by name. Raises ``InvalidRequest`` for an
    unknown parameter, and for parameters that exclude each other."""
    query = dict(request.query)
    check_known(request, (*FILTERS, INHERITED, "role.id", "effective", "include_names", "include_subtree"),
                "role assignments are")
    if is_on(request, "effective") and "group.id" in query:
        raise InvalidRequest("effective and group.id exclude each other: effective assignments are those of users.")
    for column in ("actor", "target"):
        if len(both := [name for name, (of, _kind) in FILTERS.items() if of == column and name in query]) > 1:
            raise InvalidRequest(f"{' and '.join(both)} exclude each other; ask for one.")
    if (system := query.get("scope.system")) not in (None, ALL):
        raise InvalidField("scope.system", f"must be {ALL}", system)
    if is_on(request, "include_subtree") and "scope.project.id" not in query:
        raise InvalidRequest("include_subtree needs scope.project.id: the project whose subtree is meant.")
    return query


def handle_list_role_assignments(request: Request, roles: RoleAssignments) -> Document:
    """Return the role assignments that match the query: GET /v3/role_assignments. With the query parameter
    ``effective``, the list contains the roles that users have in effect: also those from groups and from implied roles,
    and no assignments of groups."""
    query, effective, subtree = _checked(request), is_on(request, "effective"), is_on(request, "include_subtree")
    if INHERITED in query:
        return render_list(request, "role_assignments", ())
    equal = {"role_id": query["role.id"]} if "role.id" in query else {}
    for name, (column, kind) in FILTERS.items():
        if name in query:
            equal |= {column: kind, f"{column}_id": ALL if kind == "system" else query[name]}
    rows, names = roles.list(equal, effective, is_on(request, "include_names"), subtree)

    def named(id: str) -> Document:
        return {"id": id, **names.get(id, {})}

    def shown(row: Row) -> Document:
        target, actor = row["target"], f"{row['actor']}s/{row['actor_id']}"
        where = "system" if target == "system" else f"{target}s/{row['target_id']}"
        return {"role": named(row["role_id"]), row["actor"]: named(row["actor_id"]),
                "scope": {target: {"all": True} if target == "system" else named(row["target_id"])},
                "links": {"assignment": f"{request.base}/v3/{where}/{actor}/roles/{row['role_id']}"}}

    return render_list(request, "role_assignments", map(shown, rows))


def _role(request: Request, row: Row) -> Document:
    return render_resource(request, "roles", {"id": row["id"], "name": row["name"]})


def _inference(request: Request, prior: Row, implied: Sequence[Row]) -> Document:
    return {"prior_role": _role(request, prior), "implies": [_role(request, row) for row in implied]}
