# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type rbac_policy: RBAC policies of the network service; their key is
TYPE:ACTION:PROJECT:OBJECT."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Kind
from magnetar_core.kinds import AddressGroup, AddressScope, Network, QosPolicy, RbacPolicy, SecurityGroup, SubnetPool
from magnetar_core.operations import Operation
from magnetar_core.reconcile import is_uuid_key

from .networking import Row, resolve_reference, rows_by_key, visible_rows

#: Object type to its kind and the service's plural.
OBJECTS: dict[str, tuple[type[Kind], str]] = {
    "network": (Network, "networks"), "security_group": (SecurityGroup, "security_groups"),
    "qos_policy": (QosPolicy, "qos_policies"), "address_group": (AddressGroup, "address_groups"),
    "subnetpool": (SubnetPool, "subnetpools"), "address_scope": (AddressScope, "address_scopes")}
#: The target of a policy for all projects.
EVERYBODY = "*"
KEY = ("object_type", "action", "target_project", "object")


class RbacPolicies(CloudDriver):
    """The driver of the v1 API for RBAC policies of the caller's project, which share a network resource with another
    project. A policy is created or removed, never changed."""

    kind = RbacPolicy
    takes_id, only_a_document = False, True

    def every(self, caller: Caller) -> list[Document]:
        return [_policy_document(row) for row in visible_rows(caller, "rbac_policies", project_id=[caller.project])]

    def given(self, key: str, want: Document) -> Document:
        if is_uuid_key(key):
            return self.kind.check(want, partial=True)
        parts = key.split(":", 3)
        if len(parts) < 4 or not all(parts):
            raise InvalidField("key", "must be TYPE:ACTION:PROJECT:OBJECT", key[:80])
        document: Document = self.kind.check({**dict(zip(KEY, parts, strict=True)), **want}, partial=True)
        return document

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the RBAC policy with the key *key*: a uuid or TYPE:ACTION:PROJECT:OBJECT. OBJECT is a name or uuid.
        Return ``None`` if there is none."""
        if is_uuid_key(key):
            policy_rows = visible_rows(caller, "rbac_policies", id=[key.lower()], project_id=[caller.project])
            return _policy_document(policy_rows[0]) if policy_rows else None
        type, action, target, object_key = [*key.split(":", 3), "", "", ""][:4]
        if type not in OBJECTS or not object_key:
            return None
        object_ids = [row["id"] for row in rows_by_key(caller, OBJECTS[type][1], object_key)
                      if row["project_id"] == caller.project]
        if not object_ids:
            return None
        filters = {"object_id": object_ids, "action": [action], "target_project": [_project(caller, target)]}
        policy_rows = visible_rows(caller, "rbac_policies", **filters)
        return self.only(caller, [_policy_document(row) for row in policy_rows], key)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        kind, plural = OBJECTS[want["object_type"]]
        object_id = resolve_reference(caller, kind, plural, ("object", want["object"]),
                                      lambda row: row["project_id"] == caller.project)
        want = {**want, "object": object_id, "target_project": _project(caller, want["target_project"])}
        return {**want, "name": ":".join(want[name] for name in KEY)}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if is_uuid_key(want["object"]) and have is None:
            self._create(caller, want, dry=True)

    def _create(self, caller: Caller, want: Document, *, dry: bool) -> str:
        store: Any = caller.cloud.services.network.resources["rbac_policies"]
        (made,) = store.create(caller.context, {
            "object_id": want["object"], **{name: want[name] for name in KEY if name != "object"}}, dry=dry)
        return str(made["id"])

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        return self._create(caller, want, dry=False)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources["rbac_policies"].delete(caller.context, str(have["id"]))


def _project(caller: Caller, key: str) -> str:
    """Return the id of the project with the name or id *key*; ``*`` (all projects) is returned unchanged."""
    return key if key == EVERYBODY else resolve_project_id(caller, key, "target_project")


def _policy_document(row: Row) -> Document:
    policy = {"object": row["object_id"], **{name: row[name] for name in KEY if name != "object"}}
    return {"id": row["id"], "name": ":".join(policy[name] for name in KEY), **{name: policy[name] for name in (
        "object_type", "object", "action", "target_project")}, "_owner": row["project_id"]}
