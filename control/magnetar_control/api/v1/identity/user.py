# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind user."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import lookup, passwords
from magnetar_control.services.identity.resources import PROJECTS, USERS, Row
from magnetar_core.document import Document
from magnetar_core.kinds import IdentityUser
from magnetar_core.reconcile import warn_caller

from .identity_driver import IdentityDriver, refuse_unknown

ON_CREATE = "on_create"


class IdentityUsers(IdentityDriver):
    """The driver of the v1 API for Keystone users. Callers who are not administrators see only themselves."""

    kind, resource = IdentityUser, USERS
    columns: Mapping[str, str] = {**IdentityDriver.columns, "email": "email"}

    def shown(self, connection: Connection, rows: list[Row]) -> list[Document]:
        """Override ``IdentityDriver.shown``: add the name of each user's default project as ``default_project``; its id
        if the project was deleted."""
        names = lookup.fetch_names(connection, PROJECTS, {row["default_project_id"] for row in rows} - {None})
        documents = super().shown(connection, rows)
        for document in documents:
            project_id = document["default_project_id"]
            document["default_project"] = names.get(project_id, project_id)
        return documents

    def document(self, row: Row, domains: Mapping[str, str]) -> Document:
        return {**super().document(row, domains), "email": row["email"] or "",
                "default_project_id": row["default_project_id"]}

    def visible_ids(self, caller: Caller, connection: Connection) -> set[str]:
        return {caller.context.user_id}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Override ``IdentityDriver.complete``: set the password in *want* to ``None`` if the password need not change:
        the user already has this password, or the user exists and ``update_password`` is ``on_create``."""
        want = super().complete(caller, want, have)
        if have is None or want.get("password") is None:
            return want
        keeps = want.pop("update_password", ON_CREATE) == ON_CREATE
        with self.store(caller).tokens.database.read() as connection:
            stored = USERS.row(connection, have["id"])["password"]
        if keeps or passwords.password_matches(want["password"], stored):
            want["password"] = None
        elif have["id"] == caller.context.user_id:
            warn_caller("This changes the password of the login itself, and ends its token. Put the new password into "
                        "clouds.yaml before the next task.")
        return want

    def complete_references(self, connection: Connection, caller: Caller, want: Document,
                            have: Document | None) -> None:
        """Override ``IdentityDriver.complete_references``: replace ``default_project`` in *want* by the project's name,
        and add its id as ``_project_id``. A name is looked up in the user's domain first. Raises ``InvalidField`` for
        an unknown project."""
        key, current = want.get("default_project"), have or {}
        if key in (current.get("default_project"), current.get("default_project_id")):
            want.update(default_project=current.get("default_project"), _project_id=current.get("default_project_id"))
            return
        nearest = want["_domain_id"] or caller.context.project_domain_id
        project = key and lookup.find_referred(connection, PROJECTS, key, nearest)
        if key and project is None:
            refuse_unknown("default_project", "project", key)
        want.update(default_project=project["name"] if project else key, _project_id=project and project["id"])
        if project and project["id"] == current.get("default_project_id"):
            want["default_project"] = current["default_project"]

    def body(self, want: Document, names: list[str]) -> Document:
        """Override ``IdentityDriver.body``: add the default project and the password."""
        project = {"default_project_id": want["_project_id"]} if "default_project" in names else {}
        password = {"password": want["password"]} if "password" in names and want["password"] is not None else {}
        return {**super().body(want, names), **project, **password}
