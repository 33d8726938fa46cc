# SPDX-License-Identifier: GPL-3.0-or-later
"""aggregate and server_group: hosts that belong together, and servers that the scheduler puts together or apart."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.v1.servers.server_view import stamp
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.hosts import aggregates
from magnetar_control.compute.servers import server_groups
from magnetar_control.store.hosts.aggregates import ZONE, Aggregate
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import HostAggregate, ServerGroup
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document

from .driver import CloudDriver

#: More groups than a project has.
EVERY = 100000


class Aggregates(CloudDriver):
    """For administrators. A change is several: each is one of the Compute API, and asking again does what is left."""

    kind = HostAggregate
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        return [{"id": row.uuid, "number": row.id, "name": row.name, "availability_zone": row.zone,
                 "hosts": sorted(row.hosts), "metadata": {n: v for n, v in row.metadata.items() if n != ZONE},
                 "created_at": stamp(row.created_at), "updated_at": stamp(row.updated_at), "_row": row}
                for row in aggregates.every(caller)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Hosts in their order, all of which there are."""
        if ZONE in want["metadata"]:
            raise InvalidField(f"metadata.{ZONE}", "has an option of its own, availability_zone")
        aggregates.check_metadata(want["metadata"], have["metadata"] if have else {})
        for at, host in enumerate(want["hosts"]):
            if caller.cloud.hosts.get(host) is None and host not in (have["hosts"] if have else ()):
                raise InvalidField(f"hosts[{at}]", "must be the name of a host of the cloud", host)
        return {**want, "hosts": sorted(want["hosts"])}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        aggregates.check(caller, None, want["name"], want["hosts"], want["availability_zone"])

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        aggregates.check(caller, have["_row"], want["name"], want["hosts"], want["availability_zone"])

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        self.check_make(caller, want, None)
        row = aggregates.create(caller, want["name"], want["availability_zone"])
        self._settle(caller, row, want)
        return row.uuid

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self._settle(caller, have["_row"], want)

    def _settle(self, caller: Caller, row: Aggregate, want: Document) -> None:
        """Hosts go first, come last, and have the zone in between."""
        for host in sorted({*row.hosts} - {*want["hosts"]}):
            aggregates.remove_host(caller, row.id, host)
        named = {name: value for name, value in (("name", want["name"]), (ZONE, want["availability_zone"]))
                 if value != {"name": row.name, ZONE: row.zone}[name]}
        if named:
            aggregates.update(caller, row.id, named)
        metadata = {**dict.fromkeys({*row.metadata} - {ZONE}), **want["metadata"]}
        told = {name: value for name, value in metadata.items() if value != row.metadata.get(name)}
        if told:
            aggregates.set_metadata(caller, row.id, told)
        for host in sorted({*want["hosts"]} - {*row.hosts}):
            aggregates.add_host(caller, row.id, host)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Its hosts leave it."""
        for host in have["hosts"]:
            aggregates.remove_host(caller, have["number"], host)
        aggregates.delete(caller, have["number"])


class ServerGroups(CloudDriver):
    """Of the project. They are made and removed; nothing of one changes."""

    kind = ServerGroup
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        return [{"id": one.row.id, "name": one.row.name, "policy": one.row.policy,
                 "rules": orjson.loads(one.row.rules), "members": [*one.members], "project_id": one.row.project_id,
                 "user_id": one.row.user_id, "created_at": stamp(one.row.created_at), "_owner": one.row.project_id}
                for one in server_groups.page(caller, EVERY)]

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        server_groups.check(caller, want["policy"], want["rules"], replaced=have is not None)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        return {**super().predicted(caller, want, have), "members": have["members"] if have else []}

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        made: Any = server_groups.create(caller, want["name"], want["policy"], want["rules"])
        return str(made.row.id)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Its servers stay, and are in no group then."""
        server_groups.delete(caller, str(have["id"]))
