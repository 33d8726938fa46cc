# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of aggregate and server_group: groups of hosts; servers that the scheduler places together or
apart."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.hosts import aggregates
from magnetar_control.compute.servers import server_groups
from magnetar_control.store.hosts.aggregates import ZONE, Aggregate
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import HostAggregate, ServerGroup
from magnetar_core.operations import Operation

from .driver import CloudDriver

#: A limit above the number of groups that a project can have.
EVERY = 100000


class Aggregates(CloudDriver):
    """The driver of the v1 API for host aggregates, for administrators. A change consists of several steps; if one
    fails, the client can repeat the request to complete the change."""

    kind = HostAggregate
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        return [{"id": row.uuid, "number": row.id, "name": row.name, "availability_zone": row.zone,
                 "hosts": sorted(row.hosts), "metadata": {n: v for n, v in row.metadata.items() if n != ZONE},
                 "created_at": agent_timestamp(row.created_at), "updated_at": agent_timestamp(row.updated_at),
                 "_row": row}
                for row in aggregates.list_aggregates(caller)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with its hosts sorted. Raises ``InvalidField`` for invalid metadata and
        unknown hosts."""
        if ZONE in want["metadata"]:
            raise InvalidField(f"metadata.{ZONE}", "has an option of its own, availability_zone")
        aggregates.check_aggregate_metadata(want["metadata"], have["metadata"] if have else {})
        for at, host in enumerate(want["hosts"]):
            if caller.cloud.hosts.get(host) is None and host not in (have["hosts"] if have else ()):
                raise InvalidField(f"hosts[{at}]", "must be the name of a host of the cloud", host)
        return {**want, "hosts": sorted(want["hosts"])}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        aggregates.check_aggregate(caller, None, want["name"], want["hosts"], want["availability_zone"])

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        aggregates.check_aggregate(caller, have["_row"], want["name"], want["hosts"], want["availability_zone"])

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        self.check_make(caller, want, None)
        row = aggregates.create_aggregate(caller, want["name"], want["availability_zone"])
        self._settle(caller, row, want)
        return row.uuid

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self._settle(caller, have["_row"], want)

    def _settle(self, caller: Caller, row: Aggregate, want: Document) -> None:
        """Change the aggregate *row* to the desired state *want*: first remove hosts, then set name, zone and metadata,
        then add hosts."""
        for host in sorted({*row.hosts} - {*want["hosts"]}):
            aggregates.remove_host_from_aggregate(caller, row.id, host)
        named = {name: value for name, value in (("name", want["name"]), (ZONE, want["availability_zone"]))
                 if value != {"name": row.name, ZONE: row.zone}[name]}
        if named:
            aggregates.update_aggregate(caller, row.id, named)
        metadata = {**dict.fromkeys({*row.metadata} - {ZONE}), **want["metadata"]}
        metadata_changes = {name: value for name, value in metadata.items() if value != row.metadata.get(name)}
        if metadata_changes:
            aggregates.set_aggregate_metadata(caller, row.id, metadata_changes)
        for host in sorted({*want["hosts"]} - {*row.hosts}):
            aggregates.add_host_to_aggregate(caller, row.id, host)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Remove all hosts from the aggregate, then delete it."""
        for host in have["hosts"]:
            aggregates.remove_host_from_aggregate(caller, have["number"], host)
        aggregates.delete_aggregate(caller, have["number"])


class ServerGroups(CloudDriver):
    """The driver of the v1 API for the project's server groups. A server group is created or removed, never changed."""

    kind = ServerGroup
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        return [{"id": group.row.id, "name": group.row.name, "policy": group.row.policy,
                 "rules": group.row.rules, "members": [*group.members],
                 "project_id": group.row.project_id,
                 "user_id": group.row.user_id, "created_at": agent_timestamp(group.row.created_at),
                 "_owner": group.row.project_id}
                for group in server_groups.list_server_groups(caller, EVERY)]

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        server_groups.check_server_group(caller, want["policy"], want["rules"], replaced=have is not None)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        return {**super().predicted(caller, want, have), "members": have["members"] if have else []}

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        made: Any = server_groups.create_server_group(caller, want["name"], want["policy"], want["rules"])
        return str(made.row.id)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Delete the server group. Its servers continue to run, without a group."""
        server_groups.delete_server_group(caller, str(have["id"]))
