# SPDX-License-Identifier: GPL-3.0-or-later
"""Services: the agents of compute hosts, and the conductors. These use cases disable, force down and remove hosts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, func, select

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.numbers import parse_number_id
from magnetar_control.notifications import payloads
from magnetar_control.services.network.security import host_groups
from magnetar_control.store.claims.allocations import release_consumer_claims
from magnetar_control.store.engine.tables import allocations, host_states
from magnetar_control.store.engine.tables import hosts as table
from magnetar_control.store.hosts import (
    aggregates,
    conductors,
    drains,
    fencing_requests,
    fencings,
    host_removals,
    hosts,
    services,
)
from magnetar_control.store.hosts.services import COMPUTE, CONDUCTOR, Service
from magnetar_control.store.servers import migrations
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

RULE = "os_compute_api:os-services:"
ENABLED, DISABLED = "enabled", "disabled"


@use_case(f"{RULE}list")
def list_services(caller: Caller, host: str | None = None, binary: str | None = None) -> list[Service]:
    """Return all services, or only the services with the given *host* and *binary* (such as nova-compute). Services in
    a cell that does not answer have ``reachable`` false."""
    return [service for service in read_services(caller) if host in (None, service.host)
            and binary in (None, service.binary)]


def read_services(caller: Caller) -> list[Service]:
    """Return all services without a policy check, for operations that have checked a rule themselves."""
    return services.fetch_service_rows(caller.cloud.store, caller.settings.default_availability_zone,
                                       caller.settings.host_down_after)


def parse_uuid(text: str) -> str:
    """Return the uuid *text* in lower case with hyphens. Raises ``InvalidRequest`` when it is no uuid."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InvalidRequest(f"Invalid uuid {text[:80]}") from None


def _find_service(caller: Caller, id: str, *, by_uuid: bool) -> Service:
    """Return the service with the id *id*. *by_uuid*: *id* is a uuid; otherwise it is an integer id. Raises
    ``NotFound``, and ``InvalidRequest`` or ``InvalidField`` when *id* is malformed."""
    identifier = parse_uuid(id) if by_uuid else parse_number_id(id, "a service")
    for service in read_services(caller):
        if identifier == (service.id if by_uuid else service.number):
            return service
    raise NotFound(f"Service {id[:80]} not found.")


def _check_compute(binary: str) -> None:
    if binary != COMPUTE:
        raise InvalidRequest(f"Updating a {binary} service is not supported. Only {COMPUTE} services can be updated.")


@use_case(f"{RULE}update")
def update_service(caller: Caller, id: str, *, status: str | None = None, disabled_reason: str | None = None,
                   forced_down: bool | None = None) -> Service:
    """Enable or disable a compute host (*status*: enabled or disabled), or treat it as down even while its agent
    reports (*forced_down*). Return the service of the host. Parameters that are ``None`` change nothing. Raises
    ``InvalidRequest``, ``NotFound``."""
    service_id = parse_uuid(id)
    if disabled_reason is not None and status != DISABLED:
        raise InvalidRequest("Specifying disabled_reason requires that status is 'disabled'.")
    service = _find_service(caller, service_id, by_uuid=True)
    _check_compute(service.binary)
    set_host_columns(caller, service.host, status, disabled_reason, forced_down)
    return _find_service(caller, service_id, by_uuid=True)


@use_case(f"{RULE}update")
def update_host_service(caller: Caller, host: str, binary: str, *, status: str | None = None,
                        disabled_reason: str | None = None, forced_down: bool | None = None) -> None:
    """Enable or disable the compute host *host* (*status*, *disabled_reason*), or treat it as down even while its agent
    reports (*forced_down*). *binary* must be nova-compute."""
    _check_compute(binary)
    set_host_columns(caller, host, status, disabled_reason, forced_down)


def set_host_columns(caller: Caller, name: str, status: str | None, reason: str | None, forced_down: bool | None,
                     also: Callable[[Connection], None] = lambda _connection: None) -> None:
    """Change the columns of the host *name*. Set the status and the disabled reason unless *status* is ``None``. Set
    forced_down unless *forced_down* is ``None``. Enabling a host also ends its drain. *also*: a function that makes
    further changes in the same transaction. The scheduler sees the change within a few seconds. Raises ``NotFound``.
    Raises ``InvalidRequest`` if forced_down cannot be unset yet."""
    values: dict[str, Any] = {} if status is None else {"disabled": status == DISABLED, "disabled_reason": reason}
    if forced_down is not None:
        if not forced_down:
            _check_unfenced(caller, name)
            _check_evacuated(caller, name)
        values["forced_down"] = forced_down
    with caller.cloud.store.api.write() as connection:
        if not hosts.update_host_row(connection, name, **values):
            raise NotFound(f"Host {name} could not be found.")
        if status == ENABLED:
            drains.end_drain_row(connection, name)
        also(connection)
        if caller.cloud.notifications and (row := hosts.fetch_host_row(connection, name)) is not None:
            caller.notify(connection, partial(payloads.service_payload, row), "service.update")
    caller.cloud.hosts.all(fresh=True)


def _check_unfenced(caller: Caller, name: str) -> None:
    """Raise ``InvalidRequest`` when the host *name* is fenced. The command `magnetar host unfence` must unfence it
    first."""
    if caller.fetch(fencings.is_host_held, name):
        raise InvalidRequest(f"Service host {name} cannot be updated: the host is fenced. An administrator ends that "
                             f"with `magnetar host unfence {name}`, which also resets forced_down.")


def _check_evacuated(caller: Caller, name: str) -> None:
    """Raise ``InvalidRequest`` when an evacuation from the host *name* is unfinished: a server is still being
    evacuated, or an evacuated server is not yet removed from the host."""
    row = caller.fetch(hosts.fetch_host_row, name)
    if row is not None and row.forced_down and services.host_has_evacuations(
            caller.cloud.store.cell(row.cell_id), name):
        raise InvalidRequest(f"Service host {name} cannot be updated: unset forced_down when the agent has removed "
                             "what is left of the servers that were evacuated from it, and none is being evacuated.")


@use_case(f"{RULE}delete")
def delete_service(caller: Caller, id: str, *, by_uuid: bool = True) -> None:
    """Remove a compute host that has no servers, or a conductor that does not run any more. *id*: the id of its
    service. *by_uuid*: *id* is a uuid; otherwise it is an integer id. Raises ``Conflict``, ``NotFound``."""
    service = _find_service(caller, id, by_uuid=by_uuid)
    cell = caller.cloud.store.cell(service.cell_id)
    if service.binary == CONDUCTOR:
        with cell.write() as connection:
            conductors.remove_conductors_named(connection, service.host)
        return
    if services.hosts_with_servers(caller.cloud.store, [service.host]):
        raise Conflict("Unable to delete compute service that is hosting instances. Migrate or delete the instances "
                       "first.")
    if services.host_has_migrations(caller.cloud.store, service.host):
        raise Conflict("Unable to delete compute service that has in-progress migrations. Complete the migrations or "
                       "delete the instances first.")
    with cell.read() as connection:
        evacuations = [migration.uuid for migration in migrations.fetch_evacuation_rows(connection, service.host)]
    with caller.cloud.store.api.write() as connection:
        row = hosts.fetch_host_row(connection, service.host) if caller.cloud.notifications else None
        _forget_host(connection, service, evacuations)
        if row is not None:
            caller.notify(connection, partial(payloads.service_payload, row), "service.delete")
    with cell.write() as connection:
        for evacuation in evacuations:
            migrations.update_migration_row(connection, evacuation, expected_status=migrations.DONE, status="completed")
        connection.execute(delete(host_states).where(host_states.c.host == service.host))
        drains.remove_drained_servers(connection, service.host)
    caller.cloud.hosts.all(fresh=True)


def _forget_host(connection: Connection, service: Service, evacuations: Collection[str]) -> None:
    """Delete the host of *service* and the rows that refer to it. The host's row is locked first, so that no resources
    of the host are claimed during the deletion. *evacuations*: uuids of evacuations from the host; their claims are
    released. Raises ``Conflict`` when other claims remain."""
    connection.execute(select(table.c.id).where(table.c.id == service.id).with_for_update()).all()
    for evacuation in evacuations:
        release_consumer_claims(connection, evacuation)
    claim_count = connection.execute(select(func.count()).select_from(allocations).where(
        allocations.c.host_id == service.id)).scalar_one()
    if claim_count:
        raise Conflict("Unable to delete compute service: servers that are being built or moved hold resources of "
                       "the host. Wait until they are done, or delete them first.")
    aggregates.remove_aggregate_host_row(connection, None, service.host)
    host_groups.forget_host_groups(connection, service.host)
    host_removals.remove_host_removals(connection, service.host)
    fencings.remove_fencing_row(connection, service.host)
    fencing_requests.remove_fencing_request(connection, service.host)
    drains.remove_drain_row(connection, service.host)
    connection.execute(delete(table).where(table.c.id == service.id))
