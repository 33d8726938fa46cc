# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind role_assignment; the key is role=ROLE:user=USER:project=PROJECT, or with other fields."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sqlalchemy import Connection

from magnetar_control.api.v1.driver import NAMESPACE
from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import lookup
from magnetar_control.services.identity.assignments import ALL
from magnetar_control.services.identity.own_login import check_own_admin_role
from magnetar_control.services.identity.resources import (
    DOMAINS,
    GROUPS,
    PROJECTS,
    ROLES,
    USERS,
    IdentityResource,
    Row,
)
from magnetar_control.services.identity.role_assignments import RoleAssignments
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidField
from magnetar_core.kinds import RoleAssignment
from magnetar_core.kinds.identity import ROLE_ACTORS, ROLE_TARGETS, escape_key_part
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import is_uuid_key

from .identity_driver import AdministratorsDriver, embedded_identity, refuse_unknown

RESOURCES: Mapping[str, IdentityResource] = {"role": ROLES, "user": USERS, "group": GROUPS, "project": PROJECTS,
                                             "domain": DOMAINS}
#: Fields whose value may be a name of several domains.
IN_DOMAINS = ("user", "group", "project")
PARTS = ("role", *ROLE_ACTORS, *ROLE_TARGETS, *(f"{name}_domain" for name in IN_DOMAINS))


class CloudRoleAssignments(AdministratorsDriver):
    """The driver of the v1 API for role assignments, which give a user or group a role on a project, a domain or the
    system. Only administrators may use it. An assignment is created or removed, never changed."""

    kind = RoleAssignment
    takes_id, only_a_document = False, True

    # Assignments that exist

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the role assignments for a list request. The filters role, user, group, project and domain accept
        names and ids. If a filter names a user, group or project, another filter, such as ``user_domain``, may name the
        domain of this user, group or project."""
        if not caller.context.is_admin:
            raise Forbidden("You are not authorized to see role assignments: that needs the role admin.")
        identity = embedded_identity(caller, self.kind.noun)
        parts = {name: filters.pop(name) for name in PARTS if name in filters}
        if any(sum(name in parts for name in names) > 1 for names in (ROLE_ACTORS, ROLE_TARGETS)):
            return []
        equal = [assignment_columns(name, filters[f"{name}_id"]) for name in RESOURCES if f"{name}_id" in filters]
        with identity.database.read() as connection:
            for name in [name for name in parts if not name.endswith("_domain")]:
                row = {"id": ALL} if name == "system" else self._row(connection, caller, name, parts)
                if row is None:
                    return []
                equal.append(assignment_columns(name, row["id"]))
        rows, names = RoleAssignments(identity.tokens).list(
            {column: value for columns in equal for column, value in columns.items()}, effective=False, names=True)
        return [_assignment(row, names) for row in rows]

    def _row(self, connection: Connection, caller: Caller, name: str, parts: Mapping[str, Any]) -> Row | None:
        """Return the database row of the resource in the field *name* (role, user, group, project or domain) of
        *parts*; ``None`` if the resource does not exist. *parts*: the fields of a role assignment, such as ``user``
        and, for the user's domain, ``user_domain``."""
        resource, key, domain_key = RESOURCES[name], parts[name], parts.get(f"{name}_domain")
        if domain_key is None:
            return lookup.find_referred(connection, resource, key, caller.context.project_domain_id)
        domain = lookup.find_in_domain(connection, DOMAINS, domain_key, None)
        return lookup.find_in_domain(connection, resource, key, domain["id"]) if domain else None

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the role assignment with the key *key*: a uuid, or fields such as
        ``role=ROLE:user=USER:project=PROJECT``. Return ``None`` if there is none, or if one of the named resources does
        not exist."""
        if is_uuid_key(key):
            return next((assignment for assignment in self.every(caller) if assignment["id"] == key.lower()), None)
        assignments = self.filtered(caller, checked_parts(split_assignment_key(key)))
        return assignments[0] if assignments else None

    # Requests

    def given(self, key: str, want: Document) -> Document:
        if is_uuid_key(key):
            return {"id": key.lower(), **self.kind.check(want, partial=True)}
        return checked_parts(self.kind.check({**split_assignment_key(key), **want}, partial=True))

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with names in place of ids. The ids of role, user, group, project and domain
        are added under ``_ids``. Raises ``InvalidField`` if one of them does not exist."""
        if have is not None:
            return {**want, **{name: have[name] for name in PARTS}, "name": have["name"], "_ids": {}}
        want, ids = dict(want), {}
        with embedded_identity(caller, self.kind.noun).database.read() as connection:
            for name in RESOURCES:
                if want.get(name) is None:
                    continue
                row = self._row(connection, caller, name, want)
                if row is None:
                    where = want.get(f"{name}_domain")
                    refuse_unknown(name, name, want[name], f" in the domain {where}" if where else "")
                else:
                    want[name], ids[name] = row["name"], row["id"]
        return {**want, "name": join_assignment_key(want), "_ids": ids}

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        RoleAssignments(embedded_identity(caller, self.kind.noun).tokens).assign_role(**_named_ids(want["_ids"]))
        return join_assignment_key({**want, **want["_ids"]})

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Remove the role assignment, unless this is a dry run, and return the result. Raises ``OwnLogin`` if the
        caller would lose the role admin."""
        if have is not None and have["project_id"] == caller.project:
            columns = _named_ids(_ids(have))
            with embedded_identity(caller, self.kind.noun).database.read() as connection:
                check_own_admin_role(connection, caller.context,
                                     lambda row: all(row[name] == value for name, value in columns.items()))
        return super().removal(caller, have, dry_run, operation)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        RoleAssignments(embedded_identity(caller, self.kind.noun).tokens).unassign_role(**_named_ids(_ids(have)))


# Keys and columns

def split_assignment_key(key: str) -> dict[str, str]:
    """Split the key of a role assignment, such as ``role=ROLE:user=USER:project=PROJECT``, and return the values by
    name. In a value, ``%3A`` stands for a colon. Raises ``InvalidField``."""
    parts: dict[str, str] = {}
    for part in key.split(":"):
        name, equals, value = part.partition("=")
        if name not in PARTS or not equals or not value or name in parts:
            raise InvalidField("key", "must be like role=ROLE:user=USER:project=PROJECT, with some of the names "
                               f"{', '.join(PARTS)}, each once", key[:80])
        parts[name] = unquote(value)
    return parts


def join_assignment_key(parts: Mapping[str, Any]) -> str:
    """Return the key of the role assignment with the fields *parts*, such as ``role=ROLE:user=USER:project=PROJECT``.
    It does not contain the domains of the user, group or project."""
    return ":".join(f"{name}={escape_key_part(str(parts[name]))}"
                    for name in ("role", *ROLE_ACTORS, *ROLE_TARGETS) if parts.get(name) is not None)


def checked_parts(parts: Document) -> Document:
    """Return *parts*, the fields of a role assignment, unchanged. Raises ``InvalidField`` unless they contain a role,
    either a user or a group, and exactly one target (project, domain or system)."""
    for names in (("role",), ROLE_ACTORS, ROLE_TARGETS):
        set_names = [name for name in names if parts.get(name) is not None]
        if not set_names:
            raise InvalidField(names[0], f"is required{' or ' * (len(names) > 1)}{' or '.join(names[1:])}")
        if len(set_names) > 1:
            raise InvalidField(set_names[1], f"cannot be given together with {set_names[0]}")
    return parts


def assignment_columns(name: str, id: str) -> dict[str, str]:
    """Return a filter for role assignments as {column: value}: *name* (role, user, group, project, domain or system)
    has the id *id*."""
    if name == "role":
        return {"role_id": id}
    column = "actor" if name in ROLE_ACTORS else "target"
    return {column: name, f"{column}_id": id}


def _ids(have: Document) -> dict[str, str]:
    return {name: have[f"{name}_id"] for name in RESOURCES if have[f"{name}_id"] is not None}


def _named_ids(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that identify a role assignment, as {column: value}. *ids*: maps role, user, group, project
    and domain to ids. Without a project and a domain, the target is the system."""
    columns = {"target": "system", "target_id": ALL}
    for name, id in ids.items():
        columns |= assignment_columns(name, id)
    return columns


def _assignment(row: Row, names: Mapping[str, Document]) -> Document:
    """Return the role assignment in the database *row*, in the format of the v1 API. *names*: maps ids of users,
    projects, … to their name and domain."""
    document: Document = dict.fromkeys(field.name for field in RoleAssignment.fields)
    ids = {"role": row["role_id"], row["actor"]: row["actor_id"], row["target"]: row["target_id"]}
    for name, id in ids.items():
        if name == "system":
            document["system"] = ALL
            continue
        referred = names.get(id, {"name": id})
        document |= {name: referred["name"], f"{name}_id": id}
        if name in IN_DOMAINS and "domain" in referred:
            document[f"{name}_domain"] = referred["domain"]["name"]
    words = " ".join(row[column] for column in ("role_id", "actor", "actor_id", "target", "target_id"))
    return {**document, "id": str(uuid.uuid5(NAMESPACE, words)), "name": join_assignment_key(document)}
