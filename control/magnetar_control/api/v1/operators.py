# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of kinds that only a cloud has: compute_service, hypervisor, host, cell, instance_action,
limits, availability_zone, server_topology, capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.engine import make_url

from magnetar_control.api.v1.servers.server import SERVERS
from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.hosts import availability_zones, capacity, cells, hypervisors, services
from magnetar_control.compute.servers import instance_actions, migrations
from magnetar_control.compute.servers.server_topology import show_server_topology
from magnetar_control.compute.target import ServerTarget, find_server_target
from magnetar_control.store.actions.action_row import ActionEvent, ShownAction
from magnetar_control.store.claims.allocations import RESOURCES
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_control.store.servers.migrations import LIVE
from magnetar_control.store.store import RESTART
from magnetar_core.actions import ACTIONS
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Kind
from magnetar_core.kinds import (
    AvailabilityZone,
    Capacity,
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
from magnetar_core.reconcile import warn_caller

from .balance import Balances
from .driver import CloudDriver, missing_host_error
from .host_fence import HostFences
from .host_maintenance import HostMaintenances
from .incident import Incidents
from .provider import ResourceProviders, traits_of_hosts

#: The limits that are shown, and the limits with a count of usage.
MOST = ("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members")
MIGRATIONS = 1000  # shown at most
USED = ("instances", "cores", "ram", "server_groups")


class ComputeServices(CloudDriver):
    """The driver of the v1 API for compute services. Each host has one compute service. This API can enable, disable
    and remove it, but not create it."""

    kind = ComputeService

    def every(self, caller: Caller) -> list[Document]:
        return [_service(service) for service in services.list_services(caller, binary=COMPUTE)]

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check. *key*: the host's name or the service's uuid. Raises
        ``InvalidField``."""
        return {"name": key, **self.kind.check(want, partial=True)}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want*, without a disabled_reason if the service is enabled. Raises ``InvalidField``
        for a new disabled_reason of an enabled service, and ``NotFound`` for an unknown host."""
        if have is None:
            raise missing_host_error(want, "compute_service")
        if want["status"] == "enabled":
            if want.get("disabled_reason") not in (None, have["disabled_reason"]):
                raise InvalidField("disabled_reason", "goes with status disabled")
            want = {**want, "disabled_reason": None}
        return {**want, "name": have["name"]}

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        changes = {name: want[name] for name in names if name in ("status", "forced_down")}
        if "disabled_reason" in names or changes.get("status") == "disabled":
            changes["status"] = want["status"]
            if want["status"] == "disabled" and want["disabled_reason"]:
                changes["disabled_reason"] = want["disabled_reason"]
        services.update_service(caller, str(have["id"]), **changes)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Remove the host of the compute service from the cloud. The host must have no servers."""
        services.delete_service(caller, str(have["id"]))


def _service(service: Service) -> Document:
    """Return the compute service *service* in the format of the v1 API. If its cell does not respond, the fields are
    ``None``, except name, binary and the status UNKNOWN."""
    shown = {"id": service.id, "status": "disabled" if service.disabled else "enabled",
             "disabled_reason": service.disabled_reason,
             "forced_down": service.forced_down, "state": "up" if service.up else "down", "zone": service.zone,
             "updated_at": agent_timestamp(service.seen_at)}
    return {**(shown if service.reachable else {**dict.fromkeys(shown), "status": "UNKNOWN"}),
            "name": service.host, "binary": service.binary}


class Reported(CloudDriver):
    """A driver of the v1 API for a read-only resource type. *kind*: the class that declares the fields of the resource
    type. *report*: a function that returns the resources for a caller."""

    makeable = False

    def __init__(self, kind: type[Kind], report: Callable[[Caller], list[Document]]) -> None:
        self.kind, self.found = kind, report

    def every(self, caller: Caller) -> list[Document]:
        return self.found(caller)


def _hypervisors(caller: Caller) -> list[Document]:
    """Return the hosts with their resources, usage and limits, as the scheduler sees them. Raises an error unless the
    caller is an administrator."""
    rows, views = hypervisors.list_host_rows(caller), caller.cloud.hosts.all(fresh=True)
    cell_names = {cell.id: cell.name for cell in caller.cloud.store.cells()}
    documents = []
    names = ("id", "name", "disabled", "disabled_reason", "forced_down", "servers", *(
        f"{resource}{suffix}" for resource in RESOURCES for suffix in ("", "_used", "_limit")))
    for row in rows:
        info, view = row.info, views.get(row.name)
        documents.append({
            **{name: getattr(row, name) for name in names}, "cell": cell_names.get(row.cell_id, ""),
            "zone": view.zone if view else "", "up": bool(view and view.up), "type": info.get("hypervisor_type"),
            "version": info.get("hypervisor_version"), "virt_types": info.get("virt_types") or []})
    return documents


def _hosts(caller: Caller) -> list[Document]:
    """Return, for each host, the facts that the host's agent reports, such as the hypervisor version. Only
    administrators may call it."""
    return [{**row.info, "name": row.name} for row in hypervisors.list_host_rows(caller)]


def _limits(caller: Caller) -> list[Document]:
    """Return a list with one item: the quota limits of the caller's project, and the project's usage of some of the
    limited resources."""
    most, used = quotas.show_quota_limits(caller)
    return [{"name": caller.context.project_name or caller.project, **{name: most[name] for name in MOST},
             **{f"{name}_used": used[name] for name in USED}}]


def _migrations(caller: Caller) -> list[Document]:
    """Return the newest migrations, each with its source host as ``host`` and its target host as ``peer``. The two
    fields are empty for callers who may not see hosts."""
    rows, _more = migrations.list_migrations(caller, {}, limit=MIGRATIONS)
    names = migrations.names_of_servers(caller, rows)
    hosts = caller.allows(migrations.HOSTS_OF_ALL)
    empty = {field.name: None for field in Migration.fields}
    return [{**empty, "id": row.uuid, "name": names.get(row.server_id, row.server_id), "server": row.server_id,
             "description": "", "created_at": agent_timestamp(row.created_at),
             "updated_at": agent_timestamp(row.updated_at),
             "side": "source", "peer": (row.target or "") if hosts else "", "host": row.source if hosts else "",
             "type": "live" if row.type == LIVE else "cold", "status": row.status,
             "progress": row.progress} for row in rows]


def _availability_zones(caller: Caller) -> list[Document]:
    """Return the availability zones that servers can request. Administrators also see the hosts in each zone."""
    where: dict[str, list[str]] = {}
    if caller.is_admin:
        for host in caller.cloud.hosts.all().values():
            where.setdefault(host.zone, []).append(host.name)
    return [{"name": zone.name, "available": zone.available, "hosts": sorted(where.get(zone.name, ()))}
            for zone in availability_zones.list_availability_zones(caller)]


class Cells(CloudDriver):
    """The driver of the v1 API for cells. Only administrators may use it."""

    kind = Cell
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        """Return all cells except cell0, in the format of the v1 API."""
        return [{"id": cell.id, "name": cell.name, "disabled": cell.disabled,
                 "database": _public_database_url(cell.database_url),
                 "hosts": count, "_url": cell.database_url} for cell, count in cells.list_cells(caller)]

    def given(self, key: str, want: Document) -> Document:
        return self.kind.check({"name": key, **want}, partial=True)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want*, without database_url if the URL does not change. Add a warning to the answer
        if an existing cell gets a new database."""
        if have and want.get("database_url") in (None, have["_url"]):
            return {name: value for name, value in want.items() if name != "database_url"} | {"name": have["name"]}
        if have:
            warn_caller(
                f"Cell {have['name']} gets another database; what is in the one from before is not carried over: "
                        f"{RESTART}.")
        return want

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        cells.create_cell(caller, want["name"], want["database_url"], disabled=want["disabled"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        cells.update_cell(caller, have["name"], **{n: want[n] for n in ("database_url", "disabled") if n in names})

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Remove the cell from the API database. The database of the cell is not changed."""
        cells.delete_cell(caller, have["name"])


def _public_database_url(url: str) -> str:
    parsed_url = make_url(url)
    return f"{parsed_url.get_backend_name()}://{parsed_url.host or ''}/{parsed_url.database or ''}"


class InstanceActions(CloudDriver):
    """The driver of the v1 API for instance actions (the history of actions on a server). A list request must name a
    server."""

    kind, makeable = InstanceAction, False

    def every(self, caller: Caller) -> list[Document]:
        """Raise ``InvalidField``: a list of the actions of all servers is not supported."""
        raise InvalidField("server", "is required: the server, by name or uuid, whose actions are wanted")

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the actions of one server: GET /v1/instance_action?server=…. An existing server is named by name or
        uuid, a deleted server by uuid."""
        server = filters.pop("server", None)
        if not server:
            return self.every(caller)
        target = _target(caller, server)
        request_id = filters.pop("id", None)
        if request_id:
            return [_action(caller, target, *instance_actions.show_instance_action(caller, target, request_id))]
        return [_action(caller, target, row) for row in instance_actions.list_instance_actions(caller, target)]


def _target(caller: Caller, server: str, *, deleted: bool = True) -> ServerTarget:
    """Return the server with the name or uuid *server*. *deleted*: also find a deleted server, by its uuid. Raises
    ``NotFound``."""
    row = SERVERS.row(caller, server)
    return find_server_target(caller, server if row is None else row.id, deleted=deleted)


class ServerTopologies(CloudDriver):
    """The driver of the v1 API for NUMA topologies of servers. A request must name a server, either in the filter of a
    list or in the URL path."""

    kind, makeable = ServerTopology, False

    def every(self, caller: Caller) -> list[Document]:
        """Raise ``InvalidField``: a list of the topologies of all servers is not supported."""
        raise InvalidField("server", "is required: the server, by name or uuid, whose topology is wanted")

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return a list with the NUMA topology of one server: GET /v1/server_topology?server=… (a name or uuid)."""
        server = filters.pop("server", None)
        return [self.find(caller, server)] if server else self.every(caller)

    def find(self, caller: Caller, key: str) -> Document:
        target = _target(caller, key, deleted=False)
        return {"server": target.row.id, **show_server_topology(caller, target)}


class Capacities(CloudDriver):
    """The driver of the v1 API for capacity reports. A report shows whether the remaining hosts have room for the
    servers of a host that fails. There is a report for the cloud, for each availability zone and for each aggregate.
    Only administrators may use this driver."""

    kind, makeable = Capacity, False

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the capacity reports: GET /v1/capacity. The filter ``zone`` or ``aggregate`` selects one report;
        without a filter, return all reports."""
        zone, aggregate = filters.pop("zone", None), filters.pop("aggregate", None)
        return [report.as_document() for report in capacity.list_room_reports(caller, zone, aggregate)]


def _action(caller: Caller, target: ServerTarget, row: ShownAction,
            events: Sequence[ActionEvent] | None = ()) -> Document:
    return {"id": row.request_id, "server": row.server_id, "action": ACTIONS[row.action].label, "message": row.message,
            "user_id": row.user_id, "project_id": row.project_id, "started_at": agent_timestamp(row.start_time),
            "updated_at": agent_timestamp(row.updated_at), "events": [_event(caller, target, event) for event in events
                                                                      or ()]}


def _event(caller: Caller, target: ServerTarget, row: ActionEvent) -> Document:
    shown = {"event": row.event, "started_at": agent_timestamp(row.start_time), "result": row.result,
             "finished_at": agent_timestamp(row.finish_time)}
    for name, rule in (("host", instance_actions.EVENTS), ("details", instance_actions.DETAILS)):
        if getattr(row, name) and caller.allows(rule, target.row):
            shown[name] = getattr(row, name)
    return shown


CLOUD_ONLY: Sequence[CloudDriver] = (
    Reported(Host, _hosts), ComputeServices(), Reported(Hypervisor, _hypervisors), Cells(), InstanceActions(),
    Reported(Limits, _limits), Reported(Migration, _migrations), Reported(AvailabilityZone, _availability_zones),
    ServerTopologies(), ResourceProviders(), Reported(HostTrait, traits_of_hosts), Capacities(), HostMaintenances(),
    Balances(), Incidents(), HostFences())
