# SPDX-License-Identifier: GPL-3.0-or-later
"""os-aggregates: hosts put together by administrators, and the availability zones that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import KEY
from magnetar_control.api.values import Wrapped, record
from magnetar_control.store import aggregates, hosts, services
from magnetar_control.store.aggregates import ZONE, Aggregate
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError, NotFound
from magnetar_core.kinds.common import NAME
from magnetar_core.values import MapOf, Nullable, Text

RULE = "os_compute_api:os-aggregates:"
PATH = "/os-aggregates"
#: Gate.
SHOWS_UUID = 41
ZONE_NAME = Text(1, 255, r"[^\s\x00-\x1f\x7f:](?:[^\x00-\x1f\x7f:]*[^\s\x00-\x1f\x7f:])?",
                 "must be printable text without a colon, and without a blank at the beginning or the end")


def _shown(call: Call, row: Aggregate, *, whole: bool = True) -> dict[str, Any]:
    """The keys; not *whole*: as POST answers."""
    shown: dict[str, Any] = {
        "id": row.id, "name": row.name, "availability_zone": row.zone, "created_at": row.created_at,
        "updated_at": row.updated_at, "deleted": False, "deleted_at": None}
    if call.version >= SHOWS_UUID:
        shown["uuid"] = row.uuid
    if whole:
        shown.update(hosts=row.hosts, metadata=row.metadata)
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET /os-aggregates."""
    with call.cloud.store.api.read() as connection:
        return {"aggregates": [_shown(call, row) for row in aggregates.every(connection)]}


def _id(call: Call) -> int:
    text = call.params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidField("id", "must be a whole number, the id of an aggregate", text)
    return int(text)


def _found(connection: Any, id: int, *, lock: bool = False) -> Aggregate:
    found = aggregates.find(connection, id, lock=lock)
    if found is None:
        raise NotFound(f"Aggregate {id} could not be found.")
    return found


def show(call: Call) -> dict[str, Any]:
    """GET /os-aggregates/{id}."""
    with call.cloud.store.api.read() as connection:
        return {"aggregate": _shown(call, _found(connection, _id(call)))}


def _exists(name: str) -> MagnetarError:
    return Conflict(f"Aggregate {name} already exists.")


def create(call: Call) -> dict[str, Any]:
    """POST /os-aggregates."""
    name, zone = call.body["name"], call.body.get("availability_zone")
    with call.cloud.store.api.write() as connection:
        id = aggregates.make(connection, name, {ZONE: zone} if zone else {})
        if id is None:
            raise _exists(name)
        return {"aggregate": _shown(call, _found(connection, id), whole=False)}


def _changed(call: Call, change: Callable[[Any, Aggregate], None]) -> dict[str, Any]:
    """Do *change* to the aggregate of the path in one transaction; the answer shows it as it is then."""
    id = _id(call)
    with call.cloud.store.api.write() as connection:
        change(connection, _found(connection, id, lock=True))
        row = _found(connection, id)
    call.cloud.hosts.all(fresh=True)
    return {"aggregate": _shown(call, row)}


def update(call: Call) -> dict[str, Any]:
    """PUT /os-aggregates/{id}: name, zone."""
    want = call.body
    if not want:
        raise InvalidField("aggregate", "must name name or availability_zone")

    def change(connection: Any, row: Aggregate) -> None:
        values: dict[str, Any] = {}
        if "name" in want:
            if aggregates.named(connection, want["name"]) not in (None, row.id):
                raise _exists(want["name"])
            values["name"] = want["name"]
        if "availability_zone" in want:
            values["metadata"] = _merged(call, connection, row, {ZONE: want["availability_zone"]}, "update",
                                         InvalidRequest)
        aggregates.change(connection, row.id, **values)

    return _changed(call, change)


def _merged(call: Call, connection: Any, row: Aggregate, more: dict[str, str | None], word: str,
            error: type[MagnetarError]) -> dict[str, str]:
    """The metadata with *more*, where ``None`` takes a key away. Refuses a zone that the hosts cannot change to."""
    merged = {name: value for name, value in {**row.metadata, **more}.items() if value is not None}
    if ZONE in more and merged.get(ZONE) != row.zone:
        _check_zone(call, connection, row, row.hosts, (row.zone, merged.get(ZONE)), word, error)
    return merged


def _check_zone(call: Call, connection: Any, row: Aggregate, names: Iterable[str],
                zones: tuple[str | None, str | None], word: str, error: type[MagnetarError]) -> None:
    """Whether hosts may go from one zone to another: they must be in no other one, and have no servers."""
    names, (old, new) = list(names), zones
    others = set(aggregates.zones(connection, names, but=row.id).values())
    if new and others - {new}:
        raise _refused(row, word, error, "One or more hosts already in availability zone(s) "
                       + ", ".join(sorted(others)))
    usual = call.settings.default_availability_zone
    if (old or usual) != (new or usual) and not others and services.occupied(call.cloud.store, names):
        raise _refused(row, word, error, "One or more hosts contain instances in this zone")


def _refused(row: Aggregate, word: str, error: type[MagnetarError], reason: str) -> MagnetarError:
    return error(f"Cannot perform action '{word}' on aggregate {row.id}. Reason: {reason}.")


def delete(call: Call) -> Answer:
    """DELETE /os-aggregates/{id}: an empty one."""
    with call.cloud.store.api.write() as connection:
        row = _found(connection, _id(call), lock=True)
        if row.hosts:
            raise _refused(row, "delete", InvalidRequest, "Host aggregate is not empty")
        aggregates.remove(connection, row.id)
    return Answer(None, 200)


def add_host(call: Call) -> dict[str, Any]:
    """The action add_host."""
    host = call.body["host"]

    def change(connection: Any, row: Aggregate) -> None:
        if hosts.show(connection, host) is None:
            raise NotFound(f"Compute host {host} could not be found.")
        if host in row.hosts:
            raise Conflict(f"Aggregate {row.id} already has host {host}.")
        if row.zone:
            _check_zone(call, connection, row, [host], (None, row.zone), "add_host_to_aggregate", Conflict)
        aggregates.put(connection, row.id, host)

    return _changed(call, change)


def remove_host(call: Call) -> dict[str, Any]:
    """The action remove_host."""
    host = call.body["host"]

    def change(connection: Any, row: Aggregate) -> None:
        if host not in row.hosts:
            raise NotFound(f"Aggregate {row.id} has no host {host}.")
        if row.zone:
            _check_zone(call, connection, row, [host], (row.zone, None), "remove_host_from_aggregate", Conflict)
        aggregates.take(connection, row.id, host)

    return _changed(call, change)


def set_metadata(call: Call) -> dict[str, Any]:
    """The action set_metadata: keys are added and changed; null takes one away."""
    more = call.body["metadata"]

    def change(connection: Any, row: Aggregate) -> None:
        merged = _merged(call, connection, row, more, "update_aggregate_metadata", InvalidRequest)
        aggregates.change(connection, row.id, metadata=merged)

    return _changed(call, change)


HOST = Text(1, 255, r"[a-zA-Z0-9._-]+", "must be the name of a host")
_BODY = {"name": NAME, "availability_zone": Nullable(ZONE_NAME)}


def _row(method: str, path: str, handler: Callable[[Call], Any], name: str, rule: str, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"os-aggregates.{name}", rule=RULE + rule, **more)


def _action(handler: Callable[[Call], Any], name: str, body: Any) -> Operation:
    return _row("POST", PATH + "/{id}/action", handler, f"action.{name}", name, action=name, body=Wrapped(name, body))


OPERATIONS = (
    _row("GET", PATH, index, "list", "index", strict=102),
    _row("POST", PATH, create, "create", "create", body=Wrapped("aggregate", record(_BODY, "name"))),
    _row("GET", PATH + "/{id}", show, "show", "show", strict=102),
    _row("PUT", PATH + "/{id}", update, "update", "update", body=Wrapped("aggregate", record(_BODY))),
    _row("DELETE", PATH + "/{id}", delete, "delete", "delete"),
    _action(add_host, "add_host", record({"host": HOST}, "host")),
    _action(remove_host, "remove_host", record({"host": HOST}, "host")),
    _action(set_metadata, "set_metadata", record({"metadata": MapOf(KEY, Nullable(Text(0, 255)), 1000)}, "metadata")),
)
