# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a cloud has: compute_service, hypervisor, host, cell, instance_action, limits, availability_zone,
server_topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy.engine import make_url

from magnetar_control.api.v1.servers.server import SERVERS
from magnetar_control.api.v1.servers.server_view import stamp
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.hosts import availability_zones, cells, hypervisors, services
from magnetar_control.compute.servers import instance_actions, migrations
from magnetar_control.compute.servers.server_topology import topology
from magnetar_control.compute.target import Target, find
from magnetar_control.store.claims.allocations import RESOURCES
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_control.store.servers.migrations import LIVE
from magnetar_control.store.store import RESTART
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.fields import Kind
from magnetar_core.kinds import (
    AvailabilityZone,
    Cell,
    ComputeService,
    Host,
    HostTrait,
    Hypervisor,
    InstanceAction,
    Limits,
    Migration,
    ServerTopology,
)
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document, warn

from .driver import CloudDriver
from .provider import ResourceProviders, traits_of_hosts

#: The limits that are told, and those of what is counted.
MOST = ("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members")
MIGRATIONS = 1000  # told at most
USED = ("instances", "cores", "ram", "server_groups")


class ComputeServices(CloudDriver):
    """Made with their hosts, so here they are only changed."""

    kind = ComputeService

    def every(self, caller: Caller) -> list[Document]:
        return [_service(one) for one in services.every(caller, binary=COMPUTE)]

    def given(self, key: str, want: Document) -> Document:
        """The key is the host's name, or the uuid."""
        return {"name": key, **self.kind.check(want, partial=True)}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """A reason goes with disabled, and goes away with it."""
        if have is None:
            raise NotFound(f"There is no host {want.get('name')!r} in this cloud. A host comes into it by the settings "
                           "of its cell's conductor.", kind="compute_service")
        if want["status"] == "enabled":
            if want.get("disabled_reason") not in (None, have["disabled_reason"]):
                raise InvalidField("disabled_reason", "goes with status disabled")
            want = {**want, "disabled_reason": None}
        return {**want, "name": have["name"]}

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        told = {name: want[name] for name in names if name in ("status", "forced_down")}
        if "disabled_reason" in names or told.get("status") == "disabled":
            told["status"] = want["status"]
            if want["status"] == "disabled" and want["disabled_reason"]:
                told["disabled_reason"] = want["disabled_reason"]
        services.update(caller, str(have["id"]), **told)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """A host that nothing is on leaves the cloud."""
        services.remove(caller, str(have["id"]))


def _service(one: Service) -> Document:
    """The service; of one whose cell does not answer, its name."""
    shown = {"id": one.id, "status": "disabled" if one.disabled else "enabled", "disabled_reason": one.disabled_reason,
             "forced_down": one.forced_down, "state": "up" if one.up else "down", "zone": one.zone,
             "updated_at": stamp(one.seen_at)}
    return {**(shown if one.reachable else {**dict.fromkeys(shown), "status": "UNKNOWN"}),
            "name": one.host, "binary": one.binary}


class Reported(CloudDriver):
    """What is only reported, as *found* says for a caller."""

    makeable = False

    def __init__(self, kind: type[Kind], found: Callable[[Caller], list[Document]]) -> None:
        self.kind, self.found = kind, found

    def every(self, caller: Caller) -> list[Document]:
        return self.found(caller)


def _hypervisors(caller: Caller) -> list[Document]:
    """Hosts as the scheduler sees them; for administrators."""
    rows, views = hypervisors.rows(caller), caller.cloud.hosts.all(fresh=True)
    cell_names = {cell.id: cell.name for cell in caller.cloud.store.cells()}
    found = []
    names = ("id", "name", "disabled", "disabled_reason", "forced_down", "servers", *(
        f"{resource}{what}" for resource in RESOURCES for what in ("", "_used", "_limit")))
    for row in rows:
        info, view = orjson.loads(row["info"]), views.get(row["name"])
        found.append({
            **{name: row[name] for name in names}, "cell": cell_names.get(row["cell_id"], ""),
            "zone": view.zone if view else "", "up": bool(view and view.up), "type": info.get("hypervisor_type"),
            "version": info.get("hypervisor_version"), "virt_types": info.get("virt_types") or []})
    return found


def _hosts(caller: Caller) -> list[Document]:
    """What the agents say of their hosts; for administrators."""
    return [{**orjson.loads(row["info"]), "name": row["name"]} for row in hypervisors.rows(caller)]


def _limits(caller: Caller) -> list[Document]:
    """Of the caller's project."""
    most, used = quotas.show_limits(caller)
    return [{"name": caller.context.project_name or caller.project, **{name: most[name] for name in MOST},
             **{f"{name}_used": used[name] for name in USED}}]


def _migrations(caller: Caller) -> list[Document]:
    """As their sources see them, newest first. Names of hosts are for who may read them."""
    rows, _more = migrations.page(caller, {}, limit=MIGRATIONS)
    names = migrations.names_of_servers(caller, rows)
    hosts = caller.allows(migrations.HOSTS_OF_ALL)
    empty = {field.name: None for field in Migration.fields}
    return [{**empty, "id": row.uuid, "name": names.get(row.server_id, row.server_id), "server": row.server_id,
             "description": "", "created_at": stamp(row.created_at), "updated_at": stamp(row.updated_at),
             "side": "source", "peer": (row.target or "") if hosts else "", "host": row.source if hosts else "",
             "type": "live" if row.type == LIVE else "cold", "status": row.status,
             "progress": orjson.loads(row.progress) if row.progress else None} for row in rows]


def _availability_zones(caller: Caller) -> list[Document]:
    """Zones that servers may ask for; with their hosts for administrators."""
    where: dict[str, list[str]] = {}
    if caller.is_admin:
        for host in caller.cloud.hosts.all().values():
            where.setdefault(host.zone, []).append(host.name)
    return [{"name": zone.name, "available": zone.available, "hosts": sorted(where.get(zone.name, ()))}
            for zone in availability_zones.every(caller)]


class Cells(CloudDriver):
    """For administrators."""

    kind = Cell
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        """All but cell0."""
        return [{"id": cell.id, "name": cell.name, "disabled": cell.disabled, "database": _told(cell.database_url),
                 "hosts": count, "_url": cell.database_url} for cell, count in cells.every(caller)]

    def given(self, key: str, want: Document) -> Document:
        return self.kind.check({"name": key, **want}, partial=True)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """The URL of the database counts where it is another one."""
        if have and want.get("database_url") in (None, have["_url"]):
            return {name: value for name, value in want.items() if name != "database_url"} | {"name": have["name"]}
        if have:
            warn(f"Cell {have['name']} gets another database; what is in the one from before is not carried over: "
                 f"{RESTART}.")
        return want

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        cells.create(caller, want["name"], want["database_url"], disabled=want["disabled"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        cells.update(caller, have["name"], **{n: want[n] for n in ("database_url", "disabled") if n in names})

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Its row; the database stays."""
        cells.delete(caller, have["name"])


def _told(url: str) -> str:
    found = make_url(url)
    return f"{found.get_backend_name()}://{found.host or ''}/{found.database or ''}"


class InstanceActions(CloudDriver):
    """Of the server that the list names."""

    kind, makeable = InstanceAction, False

    def every(self, caller: Caller) -> list[Document]:
        """There is no list of those of all servers."""
        raise InvalidField("server", "is required: the server, by name or uuid, whose actions are wanted")

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """GET /v1/instance_action?server=…, by name or uuid (of a deleted one by uuid)."""
        server = filters.pop("server", None)
        if not server:
            return self.every(caller)
        target = _target(caller, server)
        request_id = filters.pop("id", None)
        if request_id:
            return [_action(caller, target, *instance_actions.show(caller, target, request_id))]
        return [_action(caller, target, one) for one in instance_actions.page(caller, target)]


def _target(caller: Caller, server: str, *, deleted: bool = True) -> Target:
    """The server of a name or uuid; of a *deleted* one, of a uuid. Raises ``NotFound``."""
    row = SERVERS.row(caller, server)
    return find(caller, server if row is None else row.id, deleted=deleted)


class ServerTopologies(CloudDriver):
    """Of the server that the list or the path names."""

    kind, makeable = ServerTopology, False

    def every(self, caller: Caller) -> list[Document]:
        """There is no list of those of all servers."""
        raise InvalidField("server", "is required: the server, by name or uuid, whose topology is wanted")

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """GET /v1/server_topology?server=…"""
        server = filters.pop("server", None)
        return [self.find(caller, server)] if server else self.every(caller)

    def find(self, caller: Caller, key: str) -> Document:
        target = _target(caller, key, deleted=False)
        return {"server": target.row.id, **topology(caller, target)}


def _action(caller: Caller, target: Target, row: Any, events: Sequence[Any] | None = ()) -> Document:
    return {"id": row.request_id, "server": row.server_id, "action": ACTIONS[row.action].label, "message": row.message,
            "user_id": row.user_id, "project_id": row.project_id, "started_at": stamp(row.start_time),
            "updated_at": stamp(row.updated_at), "events": [_event(caller, target, one) for one in events or ()]}


def _event(caller: Caller, target: Target, row: Any) -> Document:
    shown = {"event": row.event, "started_at": stamp(row.start_time), "result": row.result,
             "finished_at": stamp(row.finish_time)}
    for name, rule in (("host", instance_actions.EVENTS), ("details", instance_actions.DETAILS)):
        if getattr(row, name) and caller.allows(rule, target.row):
            shown[name] = getattr(row, name)
    return shown


CLOUD_ONLY: Sequence[CloudDriver] = (
    Reported(Host, _hosts), ComputeServices(), Reported(Hypervisor, _hypervisors), Cells(), InstanceActions(),
    Reported(Limits, _limits), Reported(Migration, _migrations), Reported(AvailabilityZone, _availability_zones),
    ServerTopologies(), ResourceProviders(), Reported(HostTrait, traits_of_hosts))
