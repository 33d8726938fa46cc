# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: the agents of compute hosts and the conductors; hosts are disabled, forced down and removed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.values import TRUTH
from magnetar_control.api.values import Anything, Id, record
from magnetar_control.store import aggregates, conductors, hosts, services
from magnetar_control.store.allocations import Ratios
from magnetar_control.store.services import COMPUTE, CONDUCTOR, Service
from magnetar_control.store.tables import allocations, host_states
from magnetar_control.store.tables import hosts as table
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NotFound
from magnetar_core.values import Choices, Text

RULE = "os_compute_api:os-services:"
PATH = "/os-services"
#: Gates.
FORCED_DOWN, BY_UUID, CELL_DOWN, STRICT = 11, 53, 69, 75


def _every(call: Call) -> list[Service]:
    return services.every(call.cloud.store, call.settings.default_availability_zone, call.settings.host_down_after)


def _shown(call: Call, one: Service) -> dict[str, Any]:
    if not one.reachable:
        return {"binary": one.binary, "host": one.host, "status": "UNKNOWN"}
    shown = {"id": one.id if call.version >= BY_UUID else one.number, "binary": one.binary, "host": one.host,
             "zone": one.zone, "status": "disabled" if one.disabled else "enabled", "state": "up" if one.up else "down",
             "updated_at": one.seen_at, "disabled_reason": one.disabled_reason}
    if call.version >= FORCED_DOWN:
        shown["forced_down"] = one.forced_down
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET /os-services. Services of a cell that does not answer are named since 2.69, and left out before."""
    host, binary = call.query.get("host"), call.query.get("binary")
    return {"services": [_shown(call, one) for one in _every(call) if (one.reachable or call.version >= CELL_DOWN)
                         and host in (None, one.host) and binary in (None, one.binary)]}


def _uuid(call: Call) -> str:
    try:
        found: str = Id().check(call.params["id"], "id")
    except InvalidField:
        raise InvalidRequest(f"Invalid uuid {call.params['id'][:80]}") from None
    return found


def _compute_only(binary: str) -> None:
    if binary != COMPUTE:
        raise InvalidRequest(f"Updating a {binary} service is not supported. Only {COMPUTE} services can be updated.")


def _set(call: Call, name: str, values: Mapping[str, Any]) -> None:
    """Set columns of a host; the scheduler's conductors see it within a few seconds. Raises ``NotFound``."""
    settings = call.settings
    ratios = Ratios(settings.cpu_allocation_ratio, settings.ram_allocation_ratio, settings.disk_allocation_ratio)
    with call.cloud.store.api.write() as connection:
        known = hosts.set_host(connection, name, ratios, **values)
    if not known:
        raise NotFound(f"Host {name} could not be found.")
    call.cloud.hosts.all(fresh=True)


# Until 2.52: by words and the names of hosts ----------------------------------------------------------------------
HOST = Text(1, 255, r"[a-zA-Z0-9._-]+", "must be the name of a host")
REASON = Text(1, 255)
_NAMED = {"host": HOST, "binary": Text(1, 255)}


def _named(call: Call, values: Mapping[str, Any], **shown: Any) -> dict[str, Any]:
    host, binary = call.body["host"], call.body["binary"]
    _compute_only(binary)
    _set(call, host, values)
    return {"service": {"host": host, "binary": binary, **shown}}


def enable(call: Call) -> dict[str, Any]:
    """PUT …/enable."""
    return _named(call, {"disabled": False, "disabled_reason": None}, status="enabled")


def disable(call: Call) -> dict[str, Any]:
    """PUT …/disable: no new servers there."""
    return _named(call, {"disabled": True, "disabled_reason": None}, status="disabled")


def disable_with_reason(call: Call) -> dict[str, Any]:
    """PUT …/disable-log-reason."""
    reason = call.body["disabled_reason"]
    return _named(call, {"disabled": True, "disabled_reason": reason}, status="disabled", disabled_reason=reason)


def force_down(call: Call) -> dict[str, Any]:
    """PUT …/force-down: the host counts as down, whatever its agent says."""
    down = call.body["forced_down"]
    if not down:
        _check_evacuated(call, call.body["host"])
    return _named(call, {"forced_down": down}, forced_down=down)


# Since 2.53: by uuid ----------------------------------------------------------------------------------------------
UPDATE_BODY = record({"status": Choices("enabled", "disabled"), "disabled_reason": REASON, "forced_down": TRUTH})


def update(call: Call) -> dict[str, Any]:
    """PUT /os-services/{id}: status, disabled_reason, forced_down."""
    id, want = _uuid(call), call.body
    if not want:
        raise InvalidField("body", "must have status, disabled_reason or forced_down")
    if "disabled_reason" in want and want.get("status") != "disabled":
        raise InvalidRequest("Specifying disabled_reason requires that status is 'disabled'.")
    service = _found(call, lambda one: one.id == id)
    _compute_only(service.binary)
    values: dict[str, Any] = {}
    if "status" in want:
        values = {"disabled": want["status"] == "disabled", "disabled_reason": want.get("disabled_reason")}
    if "forced_down" in want:
        if not want["forced_down"]:
            _check_evacuated(call, service.host)
        values["forced_down"] = want["forced_down"]
    _set(call, service.host, values)
    return {"service": _shown(call, _found(call, lambda one: one.id == id))}


def _found(call: Call, fits: Callable[[Service], bool]) -> Service:
    for one in _every(call):
        if fits(one):
            return one
    raise NotFound(f"Service {call.params['id'][:80]} not found.")


def _check_evacuated(call: Call, name: str) -> None:
    """A host whose servers were evacuated may be up again when it has removed what is left of them."""
    with call.cloud.store.api.read() as connection:
        row = hosts.show(connection, name)
    if row is not None and row["forced_down"] and services.moving(
            call.cloud.store.cell(row["cell_id"]), name, only=("evacuation",)):
        raise InvalidRequest(f"Service host {name} cannot be updated: unset forced_down when the agent has removed "
                             "what is "
                             "left of the servers that were evacuated from it.")


def remove(call: Call) -> Answer:
    """DELETE /os-services/{id}: a host that nothing is on, or a conductor that is no more."""
    if call.version >= BY_UUID:
        id = _uuid(call)
        service = _found(call, lambda one: one.id == id)
    else:
        text = call.params["id"]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InvalidField("id", "must be a whole number, the id of a service", text)
        service = _found(call, lambda one: one.number == int(text))
    cell = call.cloud.store.cell(service.cell_id)
    if service.binary == CONDUCTOR:
        with cell.write() as connection:
            conductors.forget(connection, service.host)
        return Answer(None, 204)
    if services.occupied(call.cloud.store, [service.host]):
        raise Conflict("Unable to delete compute service that is hosting instances. Migrate or delete the instances "
                       "first.")
    if services.moving(cell, service.host):
        raise Conflict("Unable to delete compute service that has in-progress migrations. Complete the migrations or "
                       "delete the instances first.")
    with call.cloud.store.api.write() as connection:
        _forget(connection, service)
    with cell.write() as connection:
        connection.execute(delete(host_states).where(host_states.c.host == service.host))
    call.cloud.hosts.all(fresh=True)
    return Answer(None, 204)


def _forget(connection: Connection, service: Service) -> None:
    """Remove the host, with the row locked so that no claim comes in between. Raises ``Conflict``."""
    connection.execute(select(table.c.id).where(table.c.id == service.id).with_for_update()).all()
    held = connection.execute(select(func.count()).select_from(allocations).where(
        allocations.c.host_id == service.id)).scalar_one()
    if held:
        raise Conflict("Unable to delete compute service: servers that are being built or moved hold resources of "
                       "the host. Wait until they are done, or delete them first.")
    aggregates.take(connection, None, service.host)
    connection.execute(delete(table).where(table.c.id == service.id))


def _word(word: str, handler: Callable[[Call], Any], since: int = 1, **more: Any) -> Operation:
    body = record({**_NAMED, **more}, *_NAMED, *more)
    return Operation(method="PUT", path=f"{PATH}/{word}", handler=handler, name=f"os-services.{word}",
                     rule=f"{RULE}update", since=since, until=BY_UUID - 1, body=body)


_TEXT = Query(value=Anything())
OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="os-services.list", rule=f"{RULE}list", strict=STRICT,
              query={"host": _TEXT, "binary": _TEXT}),
    _word("enable", enable), _word("disable", disable),
    _word("disable-log-reason", disable_with_reason, disabled_reason=REASON),
    _word("force-down", force_down, FORCED_DOWN, forced_down=TRUTH),
    Operation(method="PUT", path=PATH + "/{id}", handler=update, name="os-services.update", rule=f"{RULE}update",
              since=BY_UUID, body=UPDATE_BODY),
    Operation(method="DELETE", path=PATH + "/{id}", handler=remove, name="os-services.delete", rule=f"{RULE}delete",
              status=204),
)
