# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes that give and take roles, on projects, domains and the system, to users and groups; and the list of all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, select

from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidRequest, NotFound

from . import grants, tables
from .bearers import Bearers
from .nouns import DOMAINS, FALSE, GROUPS, PROJECTS, ROLES, USERS, Row

#: Target and actor to their nouns; the system is one.
TARGETS = {"project": PROJECTS, "domain": DOMAINS}
ACTORS = {"user": USERS, "group": GROUPS}
#: Query parameter of role_assignments to the column that it is about.
FILTERS = {"user.id": ("actor", "user"), "group.id": ("actor", "group"), "scope.project.id": ("target", "project"),
           "scope.domain.id": ("target", "domain"), "scope.system": ("target", "system")}


class Granting:
    """The routes."""

    def __init__(self, bearers: Bearers) -> None:
        self.bearers = bearers

    def routes(self) -> list[Guarded]:
        """All of them; for administrators only."""
        implied = "/v3/roles/{prior}/implies"
        found = [Guarded(method="GET", path="/v3/role_assignments", handler=self.list, who="admin"),
                 Guarded(method="GET", path="/v3/role_inferences", handler=self.inferences, who="admin"),
                 Guarded(method="GET", path=implied, handler=self.implies, who="admin"),
                 Guarded(method="PUT", path=implied + "/{implied}", handler=self.imply, who="admin"),
                 Guarded(method="DELETE", path=implied + "/{implied}", handler=self.imply_not, who="admin")]
        for target, where in (("project", "/v3/projects/{target}"), ("domain", "/v3/domains/{target}"),
                              ("system", "/v3/system")):
            for actor in ACTORS:
                path = f"{where}/{actor}s/{{actor}}/roles"
                for method, end, handler in (("GET", "", self.held), ("GET", "/{role}", self.check),
                                             ("PUT", "/{role}", self.give), ("DELETE", "/{role}", self.take)):
                    found.append(Guarded(method=method, path=path + end, who="admin",
                                         handler=partial(handler, target=target, actor=actor)))
        return found

    def held(self, request: Request, target: str, actor: str) -> Answer:
        """The roles that are assigned themselves."""
        with self.bearers.database.read() as connection:
            grant = self._grant(connection, request, target, actor)
            ids = grants.given_roles(connection, **grant)
            rows = ROLES.rows(connection, [tables.roles.c.id.in_(ids)])
        return Answer({"roles": [ROLES.document(row, f"{request.base}/v3") for row in rows],
                       "links": {"next": None, "previous": None, "self": request.base + request.path}})

    def check(self, request: Request, target: str, actor: str) -> Answer:
        """204 when the role is assigned, else 404."""
        with self.bearers.database.read() as connection:
            if not grants.has(connection, **self._grant(connection, request, target, actor)):
                raise NotFound(f"The {actor} has not this role on the {target}.")
        return Answer(status=204)

    def give(self, request: Request, target: str, actor: str) -> Answer:
        """Assign it; nothing when it is."""
        with self.bearers.change() as connection:
            grants.give(connection, **self._grant(connection, request, target, actor))
        return Answer(status=204)

    def take(self, request: Request, target: str, actor: str) -> Answer:
        """Take it away; 404 when it is not assigned."""
        with self.bearers.change() as connection:
            if not grants.take(connection, **self._grant(connection, request, target, actor)):
                raise NotFound(f"The {actor} has not this role on the {target}.")
        return Answer(status=204)

    def list(self, request: Request) -> Answer:
        """Assignments under the filters; ``effective`` ones have groups and implied roles spread out."""
        query = dict(request.query)
        effective, named = _on(query, "effective"), _on(query, "include_names")
        if effective and "group.id" in query:
            raise InvalidRequest("effective and group.id exclude each other: effective assignments are those of users.")
        equal = {} if "role.id" not in query or effective else {"role_id": query["role.id"]}
        for name, (column, kind) in FILTERS.items():
            if name in query and not (effective and column == "actor"):
                equal |= {column: kind, f"{column}_id": grants.ALL if kind == "system" else query[name]}
        with self.bearers.database.read() as connection:
            rows = grants.assignments(connection, **equal)
            if effective:
                rows = [row for row in grants.spread(connection, rows)
                        if query.get("user.id", row["actor_id"]) == row["actor_id"]
                        and query.get("role.id", row["role_id"]) == row["role_id"]]
            names = _names(connection) if named else {}
        base = f"{request.base}/v3"
        return Answer({"role_assignments": [_shown(row, names, base) for row in rows],
                       "links": {"next": None, "previous": None, "self": f"{base}/role_assignments"}})

    def inferences(self, request: Request) -> Answer:
        """All implications."""
        with self.bearers.database.read() as connection:
            rows = {row["id"]: row for row in ROLES.rows(connection)}
            pairs = list(connection.execute(select(tables.implications)))
        found: dict[str, list[str]] = {}
        for prior, after in pairs:
            found.setdefault(prior, []).append(after)
        base = f"{request.base}/v3"
        return Answer({"role_inferences": [
            {"prior_role": _role(rows[prior], base), "implies": [_role(rows[after], base) for after in sorted(implied)]}
            for prior, implied in sorted(found.items())]})

    def implies(self, request: Request) -> Answer:
        """What one role implies itself."""
        with self.bearers.database.read() as connection:
            prior = ROLES.row(connection, request.params["prior"])
            ids = select(tables.implications.c.implied_id).where(tables.implications.c.prior_id == prior["id"])
            rows = ROLES.rows(connection, [tables.roles.c.id.in_(ids)])
        base = f"{request.base}/v3"
        return Answer({"role_inference": {"prior_role": _role(prior, base),
                                          "implies": [_role(row, base) for row in rows]}})

    def imply(self, request: Request) -> Answer:
        """Let a role imply another."""
        with self.bearers.change() as connection:
            prior, after = (ROLES.row(connection, request.params[name]) for name in ("prior", "implied"))
            grants.imply(connection, prior["id"], after["id"])
        base = f"{request.base}/v3"
        return Answer({"role_inference": {"prior_role": _role(prior, base), "implies": _role(after, base)}}, 201)

    def imply_not(self, request: Request) -> Answer:
        """Let it imply the other no more."""
        found = tables.implications.c
        with self.bearers.change() as connection:
            if not connection.execute(delete(tables.implications).where(
                    found.prior_id == request.params["prior"], found.implied_id == request.params["implied"])).rowcount:
                raise NotFound("The one role does not imply the other.")
        return Answer(status=204)

    def _grant(self, connection: Connection, request: Request, target: str, actor: str) -> dict[str, str]:
        """The columns that the URL names, each looked up: 404 for what is not there."""
        params = request.params
        target_id = TARGETS[target].row(connection, params["target"])["id"] if target in TARGETS else grants.ALL
        grant = {"target": target, "target_id": target_id, "actor": actor,
                 "actor_id": ACTORS[actor].row(connection, params["actor"])["id"]}
        return grant | ({"role_id": ROLES.row(connection, params["role"])["id"]} if "role" in params else {})


def _on(query: Mapping[str, str], name: str) -> bool:
    """Whether a flag of the query is set; naming it is enough."""
    return name in query and query[name].lower() not in FALSE


def _role(row: Row, base: str) -> dict[str, Any]:
    return {"id": row["id"], "name": row["name"], "links": {"self": f"{base}/roles/{row['id']}"}}


def _names(connection: Connection) -> dict[str, dict[str, Any]]:
    """Id to name, and domain where there is one, of everything that an assignment names."""
    domains = dict(tuple(row) for row in connection.execute(select(tables.domains.c.id, tables.domains.c.name)))
    found: dict[str, dict[str, Any]] = {id: {"name": name} for id, name in domains.items()}
    for table in (tables.projects, tables.users, tables.groups):
        for id, name, domain_id in connection.execute(select(table.c.id, table.c.name, table.c.domain_id)):
            found[id] = {"name": name, "domain": {"id": domain_id, "name": domains[domain_id]}}
    for id, name in connection.execute(select(tables.roles.c.id, tables.roles.c.name)):
        found[id] = {"name": name}
    return found


def _shown(row: Row, names: Mapping[str, Mapping[str, Any]], base: str) -> dict[str, Any]:
    def thing(id: str) -> dict[str, Any]:
        return {"id": id, **names.get(id, {})}

    target, actor = row["target"], f"{row['actor']}s/{row['actor_id']}"
    where = "system" if target == "system" else f"{target}s/{row['target_id']}"
    return {"role": thing(row["role_id"]), row["actor"]: thing(row["actor_id"]),
            "scope": {target: {"all": True} if target == "system" else thing(row["target_id"])},
            "links": {"assignment": f"{base}/{where}/{actor}/roles/{row['role_id']}"}}
