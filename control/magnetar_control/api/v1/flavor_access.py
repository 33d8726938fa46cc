# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type flavor_access: permissions of projects to use private flavors; their key is
PROJECT:FLAVOR."""

from __future__ import annotations

import uuid

from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors import flavor_access
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import FlavorAccess
from magnetar_core.operations import Operation
from magnetar_core.reconcile import is_uuid_key

from .driver import NAMESPACE, CloudDriver
from .flavor import CloudFlavors

FLAVORS = CloudFlavors()


def split_access_key(key: str, placeholder: str) -> tuple[str, str]:
    """Split *key*, PROJECT:NAME, and return both parts; PROJECT may be empty. *placeholder*: the word for NAME in the
    error, such as FLAVOR. Raises ``InvalidField`` for another format."""
    project, colon, name = key.partition(":")
    if not colon or not name:
        raise InvalidField("key", f"must be PROJECT:{placeholder}, or a uuid", key[:80])
    return project, name


class FlavorAccesses(CloudDriver):
    """The driver of the v1 API for flavor accesses, which allow a project to use a private flavor. For administrators.
    An access is created or removed, never changed."""

    kind = FlavorAccess
    takes_id, only_a_document = False, True

    def every(self, caller: Caller) -> list[Document]:
        return [_access(*row) for row in flavor_access.list_flavor_accesses(caller)]

    def given(self, key: str, want: Document) -> Document:
        if is_uuid_key(key):
            return self.kind.check(want, partial=True)
        project, flavor = split_access_key(key, "FLAVOR")
        return self.kind.check({"project": project, "flavor": flavor, **want}, partial=True)

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the flavor access with the key *key*, either a uuid or PROJECT:FLAVOR; ``None`` if there is none."""
        accesses = self.every(caller)
        if is_uuid_key(key):
            return next((access for access in accesses if access["id"] == key.lower()), None)
        project, flavor = split_access_key(key, "FLAVOR")
        project_id = resolve_project_id(caller, project, "project")
        return next((access for access in accesses if access["project"] == project_id
                     and flavor in (access["flavor"], access["flavor_id"])), None)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the name of the flavor and the id of the project. Raises
        ``InvalidField`` if the flavor is public, or the flavor or project does not exist."""
        flavor = FLAVORS.referred(caller, str(want["flavor"]), "flavor")
        if flavor is not None and flavor["is_public"]:
            raise InvalidField("flavor", "must be one that is not public: all projects may use this one",
                               want["flavor"])
        project = resolve_project_id(caller, str(want["project"]), "project", [have["project"]] if have else [])
        name = flavor["name"] if flavor else want["flavor"]
        return {**want, "flavor": name, "_flavor": flavor and flavor["id"], "project": project,
                "name": f"{project}:{name}"}

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        flavor_access.create_flavor_access(caller, want["_flavor"], want["project"])
        return str(_access(want["_flavor"], want["flavor"], want["project"])["id"])

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        flavor_access.delete_flavor_access(caller, have["flavor_id"], have["project"])


def _access(flavor_id: str, flavor: str, project: str) -> Document:
    return {"id": str(uuid.uuid5(NAMESPACE, f"{project} {flavor_id}")), "name": f"{project}:{flavor}", "flavor": flavor,
            "flavor_id": flavor_id, "project": project}
