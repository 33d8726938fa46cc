# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a cloud has: compute_service, hypervisor, host, cell, instance_action, limits, availability_zone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy.engine import make_url

from magnetar_control.compute import availability_zones, cells, hypervisors, limits, services
from magnetar_control.store.services import COMPUTE, Service
from magnetar_control.store.store import RESTART
from magnetar_core.errors import InvalidField, NotFound
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
        return [_service(one) for one in services.every(asks, binary=COMPUTE)]

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
        """Status, reason and whether it is forced down."""
        told = {name: want[name] for name in names if name in ("status", "forced_down")}
        if "disabled_reason" in names or told.get("status") == "disabled":
            told["status"] = want["status"]
            if want["status"] == "disabled" and want["disabled_reason"]:
                told["disabled_reason"] = want["disabled_reason"]
        services.update(asks, str(have["id"]), **told)

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """A host that nothing is on leaves the cloud."""
        services.remove(asks, str(have["id"]))


def _service(one: Service) -> Document:
    """The service; of one whose cell does not answer, its name."""
    shown: Document = {"id": None, "name": one.host, "binary": one.binary, "status": "UNKNOWN", "disabled_reason": None,
                       "forced_down": None, "state": None, "zone": None, "updated_at": None}
    if one.reachable:
        shown.update(id=one.id, status="disabled" if one.disabled else "enabled", disabled_reason=one.disabled_reason,
                     forced_down=one.forced_down, state="up" if one.up else "down", zone=one.zone,
                     updated_at=stamp(one.seen_at))
    return shown


class Hypervisors(Driver):
    """Hosts as the scheduler sees them."""

    kind, makeable = Hypervisor, False

    def every(self, asks: Asks) -> list[Document]:
        """All; for administrators."""
        rows, views = hypervisors.rows(asks), asks.cloud.hosts.all(fresh=True)
        names = {cell.id: cell.name for cell in asks.cloud.store.cells()}
        found = []
        for row in rows:
            info, view = orjson.loads(row["info"]), views.get(row["name"])
            found.append({
                **{name: row[name] for name in (
                    "id", "name", "disabled", "disabled_reason", "forced_down", "servers", *(
                        f"{resource}{what}" for resource in ("vcpus", "memory_mb", "disk_gb")
                        for what in ("", "_used", "_limit")))},
                "cell": names.get(row["cell_id"], ""), "zone": view.zone if view else "", "up": bool(view and view.up),
                "type": info.get("hypervisor_type"), "version": info.get("hypervisor_version"),
                "virt_types": info.get("virt_types") or []})
        return found


class Hosts(Driver):
    """What the agents say of their hosts."""

    kind, makeable = Host, False

    def every(self, asks: Asks) -> list[Document]:
        """All; for administrators."""
        return [{**orjson.loads(row["info"]), "name": row["name"]} for row in hypervisors.rows(asks)]


class Cells(Driver):
    """For administrators."""

    kind = Cell
    takes_id = False

    def every(self, asks: Asks) -> list[Document]:
        """All but cell0."""
        return [{"id": cell.id, "name": cell.name, "disabled": cell.disabled, "database": _told(cell.database_url),
                 "hosts": count, "_url": cell.database_url} for cell, count in cells.every(asks)]

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
        cells.create(asks, want["name"], want["database_url"], disabled=want["disabled"])

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Disabled or not; another database."""
        cells.update(asks, have["name"], **{name: want[name] for name in ("database_url", "disabled") if name in names})

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """Its row; the database stays."""
        cells.delete(asks, have["name"])


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
    MOST = ("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members")
    USED = ("instances", "cores", "ram", "server_groups")

    def every(self, asks: Asks) -> list[Document]:
        """The one."""
        most, used = limits.show(asks)
        return [{"name": asks.context.project_name or asks.project, **{name: most[name] for name in self.MOST},
                 **{f"{name}_used": used[name] for name in self.USED}}]


class AvailabilityZones(Driver):
    """Zones that servers may ask for."""

    kind, makeable = AvailabilityZone, False

    def every(self, asks: Asks) -> list[Document]:
        """With their hosts for administrators."""
        where: dict[str, list[str]] = {}
        if asks.context.is_admin:
            for host in asks.cloud.hosts.all().values():
                where.setdefault(host.zone, []).append(host.name)
        return [{"name": zone.name, "available": zone.available, "hosts": sorted(where.get(zone.name, ()))}
                for zone in availability_zones.every(asks)]
