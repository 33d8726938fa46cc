# SPDX-License-Identifier: GPL-3.0-or-later
"""Services: the agents of compute hosts, and the conductors. Hosts are disabled, forced down and removed here."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, delete, func, select

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.numbers import number_of
from magnetar_control.notifications import payloads
from magnetar_control.services.network.security import host_groups
from magnetar_control.store.claims.allocations import release
from magnetar_control.store.engine.tables import allocations, host_states
from magnetar_control.store.engine.tables import hosts as table
from magnetar_control.store.hosts import aggregates, conductors, host_removals, hosts, services
from magnetar_control.store.hosts.services import COMPUTE, CONDUCTOR, Service
from magnetar_control.store.servers import migrations
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

RULE = "os_compute_api:os-services:"
ENABLED, DISABLED = "enabled", "disabled"


@use_case(f"{RULE}list")
def every(caller: Caller, host: str | None = None, binary: str | None = None) -> list[Service]:
    """All, or those of a host or a binary; those of a cell that does not answer are not ``reachable``."""
    return [one for one in read_all(caller) if host in (None, one.host) and binary in (None, one.binary)]


def read_all(caller: Caller) -> list[Service]:
    """All, for use cases that have rules of their own."""
    return services.every(caller.cloud.store, caller.settings.default_availability_zone,
                          caller.settings.host_down_after)


def uuid_of(text: str) -> str:
    """The id that *text* is, in lower case with hyphens. Raises ``InvalidRequest`` when it is no uuid."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InvalidRequest(f"Invalid uuid {text[:80]}") from None


def _one(caller: Caller, id: str, *, by_uuid: bool) -> Service:
    """The service of that uuid, or of that number. Raises ``NotFound``, and what says that *id* is neither."""
    wanted = uuid_of(id) if by_uuid else number_of(id, "a service")
    for one in read_all(caller):
        if wanted == (one.id if by_uuid else one.number):
            return one
    raise NotFound(f"Service {id[:80]} not found.")


def _check_compute(binary: str) -> None:
    if binary != COMPUTE:
        raise InvalidRequest(f"Updating a {binary} service is not supported. Only {COMPUTE} services can be updated.")


@use_case(f"{RULE}update")
def update(caller: Caller, id: str, *, status: str | None = None, disabled_reason: str | None = None,
           forced_down: bool | None = None) -> Service:
    """Enable or disable a compute host (*status*: enabled, disabled), and count it as down whatever its agent says
    (*forced_down*); what is ``None`` stays. Raises ``InvalidRequest``, ``NotFound``."""
    wanted = uuid_of(id)
    if disabled_reason is not None and status != DISABLED:
        raise InvalidRequest("Specifying disabled_reason requires that status is 'disabled'.")
    service = _one(caller, wanted, by_uuid=True)
    _check_compute(service.binary)
    _set(caller, service.host, status, disabled_reason, forced_down)
    return _one(caller, wanted, by_uuid=True)


@use_case(f"{RULE}update")
def update_by_host(caller: Caller, host: str, binary: str, *, status: str | None = None,
                   disabled_reason: str | None = None, forced_down: bool | None = None) -> None:
    """As ``update``, of the service *binary* of *host*."""
    _check_compute(binary)
    _set(caller, host, status, disabled_reason, forced_down)


def _set(caller: Caller, name: str, status: str | None, reason: str | None, forced_down: bool | None) -> None:
    """Set columns of a host; the scheduler's conductors see it within a few seconds. Raises ``NotFound``."""
    values: dict[str, Any] = {} if status is None else {"disabled": status == DISABLED, "disabled_reason": reason}
    if forced_down is not None:
        if not forced_down:
            _check_evacuated(caller, name)
        values["forced_down"] = forced_down
    with caller.cloud.store.api.write() as connection:
        if not hosts.set_host(connection, name, **values):
            raise NotFound(f"Host {name} could not be found.")
        caller.notify(connection, lambda: payloads.service(hosts.show(connection, name) or {}), "service.update")
    caller.cloud.hosts.all(fresh=True)


def _check_evacuated(caller: Caller, name: str) -> None:
    """A host whose servers were evacuated may be up again when it has removed what is left of them."""
    row = caller.fetch(hosts.show, name)
    if row is not None and row["forced_down"] and services.evacuating(
            caller.cloud.store.cell(row["cell_id"]), name):
        raise InvalidRequest(f"Service host {name} cannot be updated: unset forced_down when the agent has removed "
                             "what is left of the servers that were evacuated from it, and none is being evacuated.")


@use_case(f"{RULE}delete")
def remove(caller: Caller, id: str, *, by_uuid: bool = True) -> None:
    """Remove a host that nothing is on, or a conductor that is no more. *id*: its uuid, or its number. Raises
    ``Conflict``, ``NotFound``."""
    service = _one(caller, id, by_uuid=by_uuid)
    cell = caller.cloud.store.cell(service.cell_id)
    if service.binary == CONDUCTOR:
        with cell.write() as connection:
            conductors.forget(connection, service.host)
        return
    if services.occupied(caller.cloud.store, [service.host]):
        raise Conflict("Unable to delete compute service that is hosting instances. Migrate or delete the instances "
                       "first.")
    if services.moving(caller.cloud.store, service.host):
        raise Conflict("Unable to delete compute service that has in-progress migrations. Complete the migrations or "
                       "delete the instances first.")
    with cell.read() as connection:
        left = [one.uuid for one in migrations.evacuated(connection, service.host)]
    with caller.cloud.store.api.write() as connection:
        row = hosts.show(connection, service.host) if caller.cloud.notifications else None
        _forget(connection, service, left)
        if row is not None:
            caller.notify(connection, lambda: payloads.service(row), "service.delete")
    with cell.write() as connection:
        for evacuation in left:
            migrations.change(connection, evacuation, was=migrations.DONE, status="completed")
        connection.execute(delete(host_states).where(host_states.c.host == service.host))
    caller.cloud.hosts.all(fresh=True)


def _forget(connection: Connection, service: Service, left: Collection[str]) -> None:
    """Remove the host, with the row locked so that no claim comes in between; *left*: evacuations whose claims go with
    it. Raises ``Conflict``."""
    connection.execute(select(table.c.id).where(table.c.id == service.id).with_for_update()).all()
    for evacuation in left:
        release(connection, evacuation)
    held = connection.execute(select(func.count()).select_from(allocations).where(
        allocations.c.host_id == service.id)).scalar_one()
    if held:
        raise Conflict("Unable to delete compute service: servers that are being built or moved hold resources of "
                       "the host. Wait until they are done, or delete them first.")
    aggregates.take(connection, None, service.host)
    host_groups.forget(connection, service.host)
    host_removals.forget(connection, service.host)
    connection.execute(delete(table).where(table.c.id == service.id))
