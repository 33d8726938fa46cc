# SPDX-License-Identifier: GPL-3.0-or-later
"""Who asks: an administrator, a member, a second project's member and a reader, made through the identity API."""

from __future__ import annotations

import json
import secrets
from typing import Any

from .transport import Cloud, Exchange, Persona, Target, Wire

#: persona: (user, project, role). The administrator's things are in the member's project: both see them.
ROWS = {
    "member": ("conformance-member", "conformance", "member"),
    "other": ("conformance-other", "conformance-other", "member"),
    "reader": ("conformance-reader", "conformance", "reader"),
}


class Refused(Exception):
    """The identity service did not do what the runner needs."""


def login(wire: Wire, target: Target, username: str, password: str, project: str) -> Persona:
    """A token of *project*."""
    url = (target.auth_url or f"{target.url.rstrip('/')}/identity/v3").rstrip("/")
    domain = {"name": target.domain}
    document = {"auth": {
        "identity": {"methods": ["password"],
                     "password": {"user": {"name": username, "password": password, "domain": domain}}},
        "scope": {"project": {"name": project, "domain": domain}}}}
    answer = wire.send("POST", url + "/auth/tokens", {"Content-Type": "application/json"},
                       json.dumps(document).encode(), None)
    if answer.status != 201:
        raise Refused(f"no token for {username} in {project}: {answer.status} {answer.message}")
    token = answer.body["token"]
    return Persona(username, answer.headers["x-subject-token"], token["project"]["id"], token["user"]["id"])


def _wanted(answer: Exchange, what: str) -> Any:
    if answer.status >= 300:
        raise Refused(f"{what}: {answer.status} {answer.message}")
    return answer.body


class Directory:
    """Projects, users and roles, as the runner needs them."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.url = (cloud.target.auth_url or cloud.target.service("identity") + "/v3").rstrip("/")

    def ask(self, method: str, path: str, body: Any = None) -> Exchange:
        """One request as the administrator."""
        data = json.dumps(body).encode() if body is not None else None
        head = {"Content-Type": "application/json", "X-Auth-Token": self.cloud.admin.token}
        return self.cloud.wire.send(method, self.url + path, head, data, None)

    def named(self, collection: str, name: str) -> dict[str, Any] | None:
        """The project, user or role of a name."""
        found = _wanted(self.ask("GET", f"/{collection}?name={name}"), f"list of {collection}")[collection]
        return next((one for one in found if one["name"] == name), None)

    def project(self, name: str) -> str:
        """The id of a project, which is made when there is none."""
        there = self.named("projects", name)
        if there is None:
            there = _wanted(self.ask("POST", "/projects", {"project": {"name": name, "domain_id": "default"}}),
                            f"project {name}")["project"]
        return str(there["id"])

    def user(self, name: str, password: str) -> str:
        """The id of a user that has *password* now."""
        there = self.named("users", name)
        if there is None:
            body = {"user": {"name": name, "password": password, "domain_id": "default", "enabled": True}}
            return str(_wanted(self.ask("POST", "/users", body), f"user {name}")["user"]["id"])
        _wanted(self.ask("PATCH", f"/users/{there['id']}", {"user": {"password": password}}), f"password of {name}")
        return str(there["id"])

    def grant(self, role: str, user: str, project: str) -> None:
        """Give *user* a role in *project*."""
        row = self.named("roles", role)
        if row is None:
            row = _wanted(self.ask("POST", "/roles", {"role": {"name": role}}), f"role {role}")["role"]
        _wanted(self.ask("PUT", f"/projects/{project}/users/{user}/roles/{row['id']}"), f"role {role} for a user")


def cloud(target: Target, wire: Wire | None = None) -> Cloud:
    """The cloud with its four personas."""
    wire = wire or Wire()
    if target.personas:
        return Cloud(target, wire, {name: Persona(name, **row) for name, row in target.personas.items()})
    first = login(wire, target, target.username, target.password, target.project)
    made = Cloud(target, wire, {"admin": first})
    directory = Directory(made)
    password = secrets.token_urlsafe(12)
    personas = {}
    for name, (user, project, role) in ROWS.items():
        there = directory.project(project)
        directory.grant(role, directory.user(user, password), there)
        personas[name] = (user, project)
    directory.grant("admin", first.user_id, personas_project(directory))
    made.personas = {"admin": login(wire, target, target.username, target.password, ROWS["member"][1])}
    for name, (user, project) in personas.items():
        made.personas[name] = login(wire, target, user, password, project)
    return made


def personas_project(directory: Directory) -> str:
    """The project in which administrator, member and reader work."""
    return directory.project(ROWS["member"][1])
