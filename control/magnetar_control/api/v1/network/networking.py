# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class of the resource drivers for the network service, except networks.

Requests are checked in the same way as Neutron's bodies (``api/network/attributes.py``). A dry run sends the same
request to the service, in a transaction that is rolled back, to get the service's answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from magnetar_control.api.network.resources import as_named
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.caller import Caller
from magnetar_control.services import Page
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.fields import Kind, Record
from magnetar_core.kinds import Network, QosPolicy
from magnetar_core.operations import Operation
from magnetar_core.reconcile import is_uuid_key, refuse_missing

#: A row of the network service.
Row = Mapping[str, Any]
#: A uuid that no resource has, for checks of the other fields.
NOTHING = str(uuid.UUID(int=0))
NO_ENGINE = "This cloud has no engine of networks (setting ovn_northbound), and so no {0}."


def visible_rows(caller: Caller, plural: str, **filters: Sequence[Any]) -> list[Row]:
    """Return the rows of the network service that the caller may see. *plural*: the resource type, such as ``ports``.
    *filters*: for each column, the accepted values. Raises ``Conflict`` if the resource type does not exist in this
    cloud, because the cloud does not use OVN."""
    store = caller.cloud.services.network.resources.get(plural)
    if store is None:
        raise Conflict(NO_ENGINE.format(plural))
    return list(store.list(caller.context, Page(filters=filters)))


def rows_by_key(caller: Caller, plural: str, key: str) -> list[Row]:
    """Return the rows of the resource type *plural* with the uuid *key*; if there are none, those with the name *key*.
    Only rows that the caller may see."""
    rows_by_id = visible_rows(caller, plural, id=[key.lower()]) if is_uuid_key(key) else []
    return rows_by_id or visible_rows(caller, plural, name=[key])


def resolve_reference(caller: Caller, kind: type[Kind], plural: str, field_and_key: tuple[str, str],
                      usable: Any) -> str:
    """Return the uuid of the resource that a request refers to by name or uuid. *kind*, *plural*: the resource's type
    in the v1 API and in the network service. *field_and_key*: the field of the request, and the name or uuid in it.
    *usable*: a function that tells whether the request may refer to a row.

    If several resources have the name, those of the caller's project take precedence, then those shared with all
    projects, then those shared with the caller's project. Because of this order, no other project can redirect a name
    to its own resource. Raises ``InvalidField`` if there is no such resource, or if the name is still ambiguous. A dry
    run may assume that an earlier Ansible task creates a missing resource; then return the name.
    """
    field, key = field_and_key
    candidates = [row for row in rows_by_key(caller, plural, key) if usable(row)]
    candidates = [row for row in candidates if row["project_id"] == caller.project] or [
        row for row in candidates if row.get("shared")] or candidates
    if len(candidates) > 1:
        raise InvalidField(field, f"is the name of {len(candidates)} {plural}; use a uuid of " + ", ".join(
            sorted(row["id"] for row in candidates)), key)
    if not candidates:
        refuse_missing(InvalidField(field, f"there is no {kind.noun} {key!r} in this cloud that you may use"),
                       kind.noun, key)
    return str(candidates[0]["id"]) if candidates else key


def usable_by_project(caller: Caller) -> Callable[[Row], bool]:
    """Return a function that tells whether a row of the network service belongs to the caller's project or is shared
    with it."""
    return lambda row: bool(row["shared"]) or caller.project in (row["project_id"], *row["shared_with"])


def resolve_network(caller: Caller, field: str, key: str) -> str:
    """Return the uuid of the network with the name or uuid *key*. The caller's project must be allowed to create ports
    on this network. *field*: the field of the request that refers to the network, for the error. Raises
    ``InvalidField``."""
    return resolve_reference(caller, Network, "networks", (field, key), usable_by_project(caller))


def resolve_qos_policy(caller: Caller, want: Document, have: Document | None) -> Document:
    """Return the desired state *want* with the uuid of its QoS policy in place of a name. The policy must belong to the
    caller's project or be shared with it, unless the current state *have* already has this policy. Raises
    ``InvalidField``."""
    if want.get("qos_policy") in (None, (have or {}).get("qos_policy")):
        return want
    return {**want, "qos_policy": resolve_reference(
        caller, QosPolicy, "qos_policies", ("qos_policy", want["qos_policy"]), usable_by_project(caller))}


def resolve_external_network(caller: Caller, field: str, key: str) -> str:
    """Return the uuid of the external network with the name or uuid *key*, for a floating IP or the gateway of a
    router. *field*: the field of the request that refers to the network, for the error. Raises ``InvalidField``."""
    return resolve_reference(caller, Network, "networks", (field, key), lambda row: row["external"])


class Networking(CloudDriver):
    """The base class of the drivers of the v1 API for resources of the network service, such as ports.

    *plural*: the network service's name of the resource type. *body*: the validator of a request to the network
    service. *held*: the field with a list of sub-resources that are replaced as a whole, such as the rules of a
    security group; empty if no field has such a list. *references*: the fields that refer to other resources, and
    contain uuids after ``complete``.
    """

    plural = ""
    body: Record
    held = ""
    references: tuple[str, ...] = ()
    takes_id, only_a_document = False, True

    # Resources that exist
    def every(self, caller: Caller) -> list[Document]:
        """Return the resources of the caller's project; an empty list if the network service of this cloud does not
        have the resource type."""
        if self.plural not in caller.cloud.services.network.resources:
            return []
        return self.as_documents(caller, self.project_rows(caller, visible_rows(caller, self.plural)))

    def project_rows(self, caller: Caller, service_rows: list[Row]) -> list[Row]:
        """Return those *service_rows* that belong to the caller's project, even if the caller is an administrator, who
        sees the rows of all projects. Subclasses may include shared resources."""
        return [row for row in service_rows if row["project_id"] == caller.project]

    def find(self, caller: Caller, key: str) -> Document | None:
        if self.plural not in caller.cloud.services.network.resources:
            return None
        own_rows = self.project_rows(caller, rows_by_key(caller, self.plural, key))
        return self.only(caller, self.as_documents(caller, own_rows), key)

    def as_documents(self, caller: Caller, service_rows: Iterable[Row]) -> list[Document]:
        return [{"id": row["id"], "name": row["name"], "description": row["description"] or "",
                 "created_at": agent_timestamp(row["created_at"]),
                 "updated_at": agent_timestamp(row["updated_at"] or row["created_at"]),
                 "_owner": row["project_id"], **self.as_document(row)} for row in service_rows]

    def as_document(self, row: Row) -> Document:
        """Return the fields of the resource in *row* in the format of the v1 API, without the common fields of all
        resources: id, name, description and times."""
        raise NotImplementedError

    # Requests
    def values(self, want: Document, names: Iterable[str]) -> Document:
        """Return the fields *names* of the desired state *want* as attributes of Neutron's API, without the field whose
        name is in ``held``."""
        return {name: want[name] for name in names if name in want and name != self.held}

    def parts(self, want: Document, id: str | None) -> list[Any] | None:
        """Return the sub-resources in *want* (such as rules) as rows of the network service; ``None`` if *want* does
        not set them. *id*: the uuid of the resource; ``None`` for a new resource."""
        parts: list[Any] | None = want.get(self.held)
        return parts

    def assumed(self, want: Document) -> bool:
        """Return whether the desired state *want* still contains a name in place of a uuid: a dry run has assumed that
        an earlier Ansible task creates the resource with this name."""
        references = [want.get(name) for name in self.references]
        words = [key for each in references for key in (each if isinstance(each, list) else [each])]
        return any(not is_uuid_key(key) for key in words if key)

    def checked(self, want: Document) -> Document:
        """Check the fields of the new resource *want*, and return them as {column of the network service: value}.
        Raises ``InvalidField``."""
        settable = [field.name for field in self.kind.settable() if field.name != "id"]
        return as_named(self.body.check(self.values(want, settable), ""))

    def differing(self, want: Document, have: Document) -> Document:
        """Return the fields of *want* that differ from the current state *have*, as {column of the network service: new
        value}. Raises ``InvalidField``."""
        names = [field.name for field in self.kind.settable()
                 if field.name in want and want[field.name] != have.get(field.name)]
        return as_named(self.body.changes(self.values(want, names), ""))

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        """Create the resource *want* in the network service, and return its row. *dry*: only predict the row."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        row: Row
        if self.held:
            row = store.put(caller.context, None, self.checked(want), self.parts(want, None), dry)
        else:
            (row,) = store.create(caller.context, self.checked(want), dry=dry)
        return row

    def update(self, caller: Caller, want: Document, have: Document, dry: bool) -> Row:
        """Change the resource *have* to *want* in the network service, and return its new row. *dry*: only predict the
        row."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        id, values = str(have["id"]), self.differing(want, have)
        row: Row
        if self.held:
            parts = None if want.get(self.held) == have[self.held] else self.parts(want, id)
            row = store.put(caller.context, id, values, parts, dry)
        else:
            row = store.update(caller.context, id, values, dry=dry)
        return row

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if self.plural not in caller.cloud.services.network.resources:
            raise Conflict(NO_ENGINE.format(self.plural))
        if have is not None:
            caller.cloud.services.network.resources[self.plural].delete(caller.context, str(have["id"]), dry=True)
        elif not self.assumed(want):
            self.create(caller, want, dry=True)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        if not self.assumed(want):
            self.update(caller, want, have, dry=True)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        is_recreated = have is not None and any(
            want.get(field.name) != have.get(field.name) for field in self.kind.settable()
            if field.fixed and field.name != "id")
        if self.assumed(want) or is_recreated:
            return super().predicted(caller, want, have)
        row = self.update(caller, want, have, True) if have else self.create(caller, want, True)
        (resource,) = self.as_documents(caller, [row])
        unknown = self.drawn(want, have) | (set() if have else {"id"})
        return {name: value for name, value in resource.items() if name not in unknown}

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        """Return the names of the fields whose value the network service will choose, such as addresses. A dry run
        leaves them out of the predicted state."""
        return set()

    # Changes
    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        if self.plural not in caller.cloud.services.network.resources:
            raise Conflict(NO_ENGINE.format(self.plural))
        return str(self.create(caller, want, dry=False)["id"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self.update(caller, want, have, dry=False)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources[self.plural].delete(caller.context, str(have["id"]))
