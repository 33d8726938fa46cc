# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from magnetar_control.compute.accounts.quotas import show_quota_detail
from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import assignments, lookup
from magnetar_control.services.identity.resources import HIDDEN, PROJECTS, Row
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import IdentityProject

from .identity_driver import IdentityDriver, refuse_unknown


class IdentityProjects(IdentityDriver):
    """The driver of the v1 API for Keystone projects. Callers who are not administrators see only the projects where
    they have a role."""

    kind, resource = IdentityProject, PROJECTS
    columns: Mapping[str, str] = {**IdentityDriver.columns, "tags": "tags"}

    def shown(self, connection: Connection, rows: list[Row]) -> list[Document]:
        """Override ``IdentityDriver.shown``: add the name of each project's parent project as ``parent``."""
        parent_ids = {row["parent_id"] for row in rows if row["parent_id"] != row["domain_id"]}
        names = lookup.fetch_names(connection, PROJECTS, parent_ids)
        documents = super().shown(connection, rows)
        return [{**document, "parent": names.get(document["parent_id"])} for document in documents]

    def document(self, row: Row, domains: Mapping[str, str]) -> Document:
        return {**super().document(row, domains), "parent_id": row["parent_id"], "tags": sorted(row["tags"]),
                "properties": dict(row["extra"]), "options": row["options"], "is_domain": False}

    def visible_ids(self, caller: Caller, connection: Connection) -> set[str]:
        return {*assignments.role_target_ids(connection, caller.context.user_id, "project")}

    def complete_references(self, connection: Connection, caller: Caller, want: Document,
                            have: Document | None) -> None:
        """Override ``IdentityDriver.complete_references``: replace ``parent`` in *want* by the name of the parent
        project. Set ``_parent_id`` to the parent's id if *want* names another parent than *have*, otherwise to
        ``None``. Raises ``InvalidField`` for an unknown parent, and for a key in ``properties`` that is the name of a
        field."""
        taken = {*PROJECTS.fields, *PROJECTS.constant, *HIDDEN, "id", "links", "is_enabled"}
        if reserved := sorted(taken.intersection(want["properties"])):
            raise InvalidField(f"properties.{reserved[0]}", "is the name of a field; choose another one")
        key, current = want.get("parent"), have or {}
        want["_parent_id"] = None
        if key is None or key in (current.get("parent"), current.get("parent_id")):
            want["parent"] = current.get("parent")
        elif want["_domain_id"] is not None:
            parent = lookup.find_in_domain(connection, PROJECTS, key, want["_domain_id"])
            if parent is None:
                refuse_unknown("parent", "project", key, f" in the domain {want['domain']}")
            want.update(parent=parent["name"] if parent else key, _parent_id=parent and parent["id"])

    def body(self, want: Document, names: list[str]) -> Document:
        """Override ``IdentityDriver.body``: add the properties, and ``parent_id`` if *want* has ``_parent_id``."""
        parent = {"parent_id": want["_parent_id"]} if want.get("_parent_id") else {}
        return {**super().body(want, names), **(want["properties"] if "properties" in names else {}), **parent}

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Any) -> None:
        """Override ``IdentityDriver.change``: also remove the properties that *want* does not contain, by sending null
        as their value."""
        body = self.body({**want, "_parent_id": None}, names)
        if "properties" in names:
            body = {**dict.fromkeys(have["properties"]), **body}
        self.store(caller).update(have["id"], body)

    def check_removal(self, connection: Connection, caller: Caller, have: Document, warnings: list[str],
                      dry_run: bool) -> None:
        """Override ``IdentityDriver.check_removal``: add a warning if the project still has servers. The identity
        service removes the project nevertheless, as Keystone does."""
        super().check_removal(connection, caller, have, warnings, dry_run)
        _limits, used = show_quota_detail(caller, have["id"], None)
        if used["instances"]:
            warnings.append(f"The project {have['name']} still has {used['instances']} server(s). They run on without "
                            "a project, and only administrators can remove them (all projects, project "
                            f"{have['id']}).")
