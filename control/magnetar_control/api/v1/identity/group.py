# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import assignments, lookup, tables
from magnetar_control.services.identity.own_login import check_own_admin_role
from magnetar_control.services.identity.resources import GROUPS, Row
from magnetar_control.services.identity.users import set_members
from magnetar_core.document import Document
from magnetar_core.kinds import IdentityGroup
from magnetar_core.operations import Operation

from .identity_driver import IdentityDriver, refuse_unknown


class IdentityGroups(IdentityDriver):
    """The driver of the v1 API for Keystone groups. Callers who are not administrators see only the groups that they
    belong to."""

    kind, resource = IdentityGroup, GROUPS
    columns: Mapping[str, str] = {"name": "name", "description": "description"}

    def shown(self, connection: Connection, rows: list[Row]) -> list[Document]:
        """Override ``IdentityDriver.shown``: add the members of each group as ``users``: by name if user and group are
        in the same domain, otherwise by id."""
        domain_ids, members, users = {row["id"]: row["domain_id"] for row in rows}, tables.members.c, tables.users.c
        query = select(members.group_id, users.id, users.name, users.domain_id).join_from(
            tables.members, tables.users, members.user_id == users.id)
        users_by_group: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for member in connection.execute(query.where(members.group_id.in_(domain_ids)) if len(rows) == 1 else query):
            near = domain_ids.get(member.group_id) == member.domain_id
            users_by_group[member.group_id].append((member.name if near else member.id, member.id))
        return [{**document, "users": [name for name, _id in sorted(users_by_group[document["id"]])],
                 "_user_ids": dict(users_by_group[document["id"]])} for document in super().shown(connection, rows)]

    def visible_ids(self, caller: Caller, connection: Connection) -> set[str]:
        return {*connection.execute(assignments.group_ids_query(caller.context.user_id)).scalars()}

    def complete_references(self, connection: Connection, caller: Caller, want: Document,
                            have: Document | None) -> None:
        """Override ``IdentityDriver.complete_references``: convert ``users`` in *want* to the format of ``shown``, and
        add ``_user_ids``, which maps each entry of ``users`` to the user's id. Raises ``InvalidField`` for an unknown
        user, and ``OwnLogin`` if the caller would lose the role admin by the change."""
        current: dict[str, str] = have["_user_ids"] if have else {}
        domain_id = want["_domain_id"] or ""
        rows = lookup.find_users(connection, [key for key in want["users"] if key not in current], domain_id)
        ids = {}
        for at, key in enumerate(want["users"]):
            if key in rows:
                row = rows[key]
                ids[row["name"] if row["domain_id"] == domain_id else row["id"]] = row["id"]
            elif key in current:
                ids[key] = current[key]
            else:
                refuse_unknown(f"users[{at}]", "user", key, f" in the domain {want['domain']}; name users of other "
                               "domains by id")
                ids[key] = None
        want.update(users=sorted(ids), _user_ids=ids)
        if have is not None and caller.context.user_id in {*current.values()} - {*ids.values()}:
            self._check_own_role(connection, caller, have)

    def _check_own_role(self, connection: Connection, caller: Caller, have: Document) -> None:
        """Raise ``OwnLogin`` if the caller is an administrator only because of membership in the group *have*."""
        check_own_admin_role(connection, caller.context,
                             lambda row: bool(row["actor"] == "group" and row["actor_id"] == have["id"]))

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        """Override ``IdentityDriver.make``: create the group, then add its users, and return the group's id. If the
        process stops between the two steps, a repetition of the request adds the users."""
        id = super().make(caller, want, operation)
        set_members(self.store(caller).tokens, id, want["_user_ids"].values())
        return id

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Any) -> None:
        super().change(caller, have, want, names, operation)
        if "users" in names:
            set_members(self.store(caller).tokens, have["id"], want["_user_ids"].values())

    def check_removal(self, connection: Connection, caller: Caller, have: Document, warnings: list[str],
                      dry_run: bool) -> None:
        super().check_removal(connection, caller, have, warnings, dry_run)
        self._check_own_role(connection, caller, have)
