# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a cloud has: compute_service, hypervisor, host, cell, instance_action, limits, availability_zone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from magnetar_control.store import hosts, schema
from magnetar_control.store.store import CELL0, RESTART
from magnetar_control.store.tables import CELL
from magnetar_control.store.tables import hosts as table
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound
from magnetar_core.kinds import (
    AvailabilityZone,
    Cell,
    ComputeService,
    Host,
    Hypervisor,
    InstanceAction,
    Limits,
)
from magnetar_core.reconcile import warn

from .asks import Asks, Document, paged
from .driver import Driver
from .operations import Operation
from .server import Servers
from .server_shown import stamp

SERVERS = Servers()


class ComputeServices(Driver):
    """Made with their hosts, so here they are only changed."""

    kind = ComputeService

    def every(self, asks: Asks) -> list[Document]:
        """All compute services; for administrators."""
        found = asks.compute("GET", "/os-services", binary="nova-compute")["services"]
        return [{"id": one.get("id"), "name": one["host"], "binary": one["binary"], "status": one["status"],
                 "disabled_reason": one.get("disabled_reason"), "forced_down": one.get("forced_down"),
                 "state": one.get("state"), "zone": one.get("zone"), "updated_at": stamp(one.get("updated_at"))}
                for one in found]

    def given(self, key: str, want: Document) -> Document:
        """The key is the host's name, or the uuid."""
        return {"name": key, **self.kind.check(want, partial=True)}

    def complete(self, asks: Asks, want: Document, have: Document | None) -> Document:
        """A reason goes with disabled, and goes away with it."""
        if have is None:
            raise NotFound(f"There is no host {want.get('name')!r} in this cloud. A host comes into it by the settings "
                           "of its cell's conductor.", kind="compute_service")
        if want["status"] == "enabled":
            if want.get("disabled_reason") not in (None, have["disabled_reason"]):
                raise InvalidField("disabled_reason", "goes with status disabled")
            want = {**want, "disabled_reason": None}
        return {**want, "name": have["name"]}

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """PUT os-services."""
        body = {name: want[name] for name in names if name in ("status", "forced_down")}
        if "disabled_reason" in names or body.get("status") == "disabled":
            body["status"] = want["status"]
            if want["status"] == "disabled" and want["disabled_reason"]:
                body["disabled_reason"] = want["disabled_reason"]
        asks.compute("PUT", f"/os-services/{have['id']}", body)

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """A host that nothing is on leaves the cloud."""
        asks.compute("DELETE", f"/os-services/{have['id']}")


def _rows(asks: Asks) -> list[Mapping[Any, Any]]:
    """All hosts. Raises ``Forbidden``."""
    asks.compute("GET", "/os-hypervisors")
    with asks.cloud.store.api.read() as connection:
        return list(hosts.every(connection))


class Hypervisors(Driver):
    """Hosts as the scheduler sees them."""

    kind, makeable = Hypervisor, False

    def every(self, asks: Asks) -> list[Document]:
        """All; for administrators."""
        rows, views = _rows(asks), asks.cloud.hosts.all(fresh=True)
        cells = {cell.id: cell.name for cell in asks.cloud.store.cells()}
        found = []
        for row in rows:
            info, view = orjson.loads(row["info"]), views.get(row["name"])
            found.append({
                **{name: row[name] for name in (
                    "id", "name", "disabled", "disabled_reason", "forced_down", "servers", *(
                        f"{resource}{what}" for resource in ("vcpus", "memory_mb", "disk_gb")
                        for what in ("", "_used", "_limit")))},
                "cell": cells.get(row["cell_id"], ""), "zone": view.zone if view else "", "up": bool(view and view.up),
                "type": info.get("hypervisor_type"), "version": info.get("hypervisor_version"),
                "virt_types": info.get("virt_types") or []})
        return found


class Hosts(Driver):
    """What the agents say of their hosts."""

    kind, makeable = Host, False

    def every(self, asks: Asks) -> list[Document]:
        """All; for administrators."""
        return [{**orjson.loads(row["info"]), "name": row["name"]} for row in _rows(asks)]


class Cells(Driver):
    """For administrators."""

    kind = Cell
    takes_id = False

    def every(self, asks: Asks) -> list[Document]:
        """All but cell0."""
        if not asks.context.is_admin:
            raise Forbidden("Cells are for administrators of the cloud.")
        store = asks.cloud.store
        with store.api.read() as connection:
            rows = connection.execute(select(table.c.cell_id, func.count()).group_by(table.c.cell_id)).all()
        count: dict[str, int] = {row[0]: row[1] for row in rows}
        return [{"id": cell.id, "name": cell.name, "disabled": cell.disabled, "database": _told(cell.database_url),
                 "hosts": int(count.get(cell.id, 0)), "_url": cell.database_url}
                for cell in store.cells(fresh=True) if cell.id != CELL0]

    def given(self, key: str, want: Document) -> Document:
        """The key is the name."""
        found: Document = self.kind.check({"name": key, **want}, partial=True)
        return found

    def complete(self, asks: Asks, want: Document, have: Document | None) -> Document:
        """The URL of the database counts where it is another one."""
        if have and want.get("database_url") in (None, have["_url"]):
            return {name: value for name, value in want.items() if name != "database_url"} | {"name": have["name"]}
        if have:
            warn(f"Cell {have['name']} gets another database; what is in the one from before is not carried over: "
                 f"{RESTART}.")
        return want

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """Its tables, and then its row."""
        store = asks.cloud.store
        self._tables(want["database_url"])
        store.add_cell(want["name"], want["database_url"])
        if want["disabled"]:
            store.set_cell(want["name"], disabled=True)
        store.cells(fresh=True)

    def _tables(self, url: str) -> None:
        from magnetar_control.store.database import Database

        try:
            database = Database(url, "new cell", 1)
            try:
                schema.upgrade(database, CELL)
            finally:
                database.close()
        except (SQLAlchemyError, ValueError, OSError) as error:
            raise Conflict(f"The database of the cell does not answer, or refuses ({type(error).__name__}). Check "
                           "database_url from the machine of the API; nothing was changed.") from None

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Disabled or not; another database."""
        if "database_url" in names:
            self._tables(want["database_url"])
            asks.cloud.store.add_cell(have["name"], want["database_url"])
        if "disabled" in names:
            asks.cloud.store.set_cell(have["name"], disabled=want["disabled"])

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """Its row; the database stays."""
        asks.cloud.store.remove_cell(have["name"])


def _told(url: str) -> str:
    found = make_url(url)
    return f"{found.get_backend_name()}://{found.host or ''}/{found.database or ''}"


class InstanceActions(Driver):
    """Of the server that the list names."""

    kind, makeable = InstanceAction, False

    def filtered(self, asks: Asks, filters: dict[str, Any]) -> list[Document]:
        """GET /v1/instance_action?server=…, by name or uuid (of a deleted one by uuid)."""
        server = filters.pop("server", None)
        if not server:
            raise InvalidField("server", "is required: the server, by name or uuid, whose actions are wanted")
        row = SERVERS.row(asks, server)
        id = row.id if row is not None else server
        one = filters.pop("id", None)
        if one:
            return [_action(asks.compute("GET", f"/servers/{id}/os-instance-actions/{one}")["instanceAction"])]
        return [_action(each) for each in paged(asks.compute, f"/servers/{id}/os-instance-actions", "instanceActions")]


def _action(one: Mapping[str, Any]) -> Document:
    events = [{"event": event["event"], "started_at": stamp(event["start_time"]), "result": event["result"],
               "finished_at": stamp(event["finish_time"]),
               **{name: event[name] for name in ("host", "details") if event.get(name)}}
              for event in one.get("events") or ()]
    return {"id": one["request_id"], "server": one["instance_uuid"], "action": one["action"], "message": one["message"],
            "user_id": one["user_id"], "project_id": one["project_id"], "started_at": stamp(one["start_time"]),
            "updated_at": stamp(one.get("updated_at")), "events": events}


class LimitsOf(Driver):
    """Of the caller's project."""

    kind, makeable = Limits, False
    NAMES = {"instances": "maxTotalInstances", "instances_used": "totalInstancesUsed", "cores": "maxTotalCores",
             "cores_used": "totalCoresUsed", "ram": "maxTotalRAMSize", "ram_used": "totalRAMUsed",
             "metadata_items": "maxServerMeta", "key_pairs": "maxTotalKeypairs", "server_groups": "maxServerGroups",
             "server_groups_used": "totalServerGroupsUsed", "server_group_members": "maxServerGroupMembers"}

    def every(self, asks: Asks) -> list[Document]:
        """The one."""
        found = asks.compute("GET", "/limits")["limits"]["absolute"]
        return [{"name": asks.context.project_name or asks.project,
                 **{name: found.get(word) for name, word in self.NAMES.items()}}]


class AvailabilityZones(Driver):
    """Zones that servers may ask for."""

    kind, makeable = AvailabilityZone, False

    def every(self, asks: Asks) -> list[Document]:
        """With their hosts for administrators."""
        where: dict[str, list[str]] = {}
        if asks.context.is_admin:
            for host in asks.cloud.hosts.all().values():
                where.setdefault(host.zone, []).append(host.name)
        return [{"name": one["zoneName"], "available": one["zoneState"]["available"],
                 "hosts": sorted(where.get(one["zoneName"], ()))}
                for one in asks.compute("GET", "/os-availability-zone")["availabilityZoneInfo"]]
