# SPDX-License-Identifier: GPL-3.0-or-later
"""Aggregates: groups of hosts that administrators define, and the availability zones that they form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.numbers import MOST, parse_number_id
from magnetar_control.notifications import payloads
from magnetar_control.scheduler.aggregate_filters import NUMBERS
from magnetar_control.scheduler.weighers import malformed_multipliers
from magnetar_control.store.hosts import aggregates, hosts, image_requests, services
from magnetar_control.store.hosts.aggregates import ZONE, Aggregate
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError, NotFound
from magnetar_core.matching import parse_finite

from . import availability_zones

RULE = "os_compute_api:os-aggregates:"
#: An aggregate's id, as the client sent it.
Id = str | int


@use_case(f"{RULE}index")
def list_aggregates(caller: Caller) -> list[Aggregate]:
    """Return all host aggregates."""
    return caller.fetch(aggregates.fetch_aggregate_rows)


@use_case(f"{RULE}show")
def show_aggregate(caller: Caller, id: Id) -> Aggregate:
    """Return the host aggregate *id*. Raises ``NotFound``, or ``InvalidField`` for a malformed id."""
    return caller.fetch(_find_aggregate, id)


def _find_aggregate(connection: Any, id: Id, *, lock: bool = False) -> Aggregate:
    number = parse_number_id(str(id), "an aggregate")
    aggregate = aggregates.fetch_aggregate_row(connection, number, lock=lock) if 0 < number <= MOST else None
    if aggregate is None:
        raise NotFound(f"Aggregate {number} could not be found.")
    return aggregate


def _aggregate_exists(name: str) -> MagnetarError:
    return Conflict(f"Aggregate {name} already exists.")


@use_case(f"{RULE}create")
def create_aggregate(caller: Caller, name: str, zone: str | None = None) -> Aggregate:
    """Create a host aggregate without hosts, and return it. *zone*: the availability zone of the aggregate; ``None``
    for no zone. Raises ``Conflict``."""
    with caller.cloud.store.api.write() as connection:
        id = aggregates.insert_aggregate_row(connection, name, {ZONE: zone} if zone else {})
        if id is None:
            raise _aggregate_exists(name)
        row = _find_aggregate(connection, id)
        _notify_aggregate(caller, connection, row, "create")
        return row


def _notify_aggregate(caller: Caller, connection: Any, row: Aggregate, *names: str) -> None:
    """Send the start and end notifications of each event in *names*, such as create, about the aggregate *row*."""
    for name in names:
        caller.notify(connection, lambda: payloads.versioned_object(
            "AggregatePayload", "1.1", id=row.id, uuid=row.uuid, name=row.name, hosts=list(row.hosts),
            metadata=dict(row.metadata)), f"aggregate.{name}.start", f"aggregate.{name}.end")


def _change_aggregate(caller: Caller, id: Id, change: Callable[[Any, Aggregate], None], *events: str) -> Aggregate:
    """Change the aggregate *id* in a transaction by calling *change(connection, aggregate)*; send the notifications
    *events* in the same transaction, and return the changed aggregate."""
    with caller.cloud.store.api.write() as connection:
        row = _find_aggregate(connection, id, lock=True)
        change(connection, row)
        aggregate = _find_aggregate(connection, row.id)
        _notify_aggregate(caller, connection, aggregate, *events)
    caller.cloud.hosts.all(fresh=True)
    return aggregate


@use_case(f"{RULE}update")
def update_aggregate(caller: Caller, id: Id, want: Mapping[str, Any], *, keeps_zone: bool = False) -> Aggregate:
    """Set the name and availability_zone in *want* (``None`` removes the zone), and return the aggregate. *keeps_zone*:
    refuse to remove the zone, as Nova does. Raises ``Conflict``, ``InvalidRequest``."""

    def change(connection: Any, row: Aggregate) -> None:
        values: dict[str, Any] = {}
        if keeps_zone:
            _check_zone_stays(row, want, "update")
        if "name" in want:
            if aggregates.fetch_aggregate_id(connection, want["name"]) not in (None, row.id):
                raise _aggregate_exists(want["name"])
            values["name"] = want["name"]
        if ZONE in want:
            values["metadata"] = _merged_metadata(caller, connection, row, {ZONE: want[ZONE]}, "update")
        aggregates.update_aggregate_row(connection, row.id, **values)

    events = [event for event, key in (("update_prop", "name"), ("update_metadata", ZONE)) if key in want]
    return _change_aggregate(caller, id, change, *events)


def _merged_metadata(caller: Caller, connection: Any, row: Aggregate, more: Mapping[str, str | None],
                     action: str) -> dict[str, str]:
    """Return the metadata of the aggregate *row* updated with *more*; a value of ``None`` removes the key. Raises
    ``InvalidRequest`` when *more* changes the availability zone, and the hosts of the aggregate cannot change to that
    zone. *action*: the name of the operation, for the error message."""
    merged = {name: value for name, value in {**row.metadata, **more}.items() if value is not None}
    if ZONE in more and merged.get(ZONE) != row.zone:
        _check_zone(caller, connection, row, row.hosts, (row.zone, merged.get(ZONE)), action, InvalidRequest)
    return merged


def _check_zone(caller: Caller, connection: Any, row: Aggregate, names: Iterable[str],
                zones: tuple[str | None, str | None], action: str, error: type[MagnetarError]) -> None:
    """Raise *error* when the hosts *names* of the aggregate *row* cannot change their availability zone from the first
    of *zones* to the second: another aggregate puts one of these hosts into a different zone, or one of them has
    servers. *action*: the name of the operation, for the error message."""
    names, (old, new) = list(names), zones
    other_zones = set(aggregates.fetch_host_zones(connection, names, excluded_id=row.id).values())
    if new and other_zones - {new}:
        raise _refused_action(row, action, error, "One or more hosts already in availability zone(s) "
                              + ", ".join(sorted(other_zones)))
    usual = caller.settings.default_availability_zone
    if (old or usual) != (new or usual) and not other_zones and services.hosts_with_servers(caller.cloud.store, names):
        raise _refused_action(row, action, error, "One or more hosts contain instances in this zone")


def _refused_action(row: Aggregate, action: str, error: type[MagnetarError], reason: str) -> MagnetarError:
    return error(f"Cannot perform action '{action}' on aggregate {row.id}. Reason: {reason}.")


@use_case(f"{RULE}update")
def check_aggregate(caller: Caller, row: Aggregate | None, name: str, members: Sequence[str], zone: str | None) -> None:
    """Check that the aggregate *row* (``None``: a new aggregate) may get *name*, the hosts *members* and the
    availability zone *zone*. Nothing is changed. Raises ``Conflict``, ``InvalidRequest``."""
    old = row or Aggregate(0, "", name, {}, "", None, ())
    with caller.cloud.store.api.read() as connection:
        if aggregates.fetch_aggregate_id(connection, name) not in (None, old.id):
            raise _aggregate_exists(name)
        leaving, joining = {*old.hosts} - {*members}, {*members} - {*old.hosts}
        staying = {*old.hosts} - leaving
        for names, old_zone, new_zone in ((leaving, old.zone, None), (staying, old.zone, zone), (joining, None, zone)):
            if names and old_zone != new_zone:
                _check_zone(caller, connection, old, sorted(names), (old_zone, new_zone), "update", Conflict)


@use_case(f"{RULE}delete")
def delete_aggregate(caller: Caller, id: Id) -> None:
    """Delete the aggregate *id*. Raises ``InvalidRequest`` if it has hosts."""
    with caller.cloud.store.api.write() as connection:
        row = _find_aggregate(connection, id, lock=True)
        if row.hosts:
            raise _refused_action(row, "delete", InvalidRequest, "Host aggregate is not empty")
        aggregates.remove_aggregate_row(connection, row.id)
        _notify_aggregate(caller, connection, row, "delete")


@use_case(f"{RULE}add_host")
def add_host_to_aggregate(caller: Caller, id: Id, host: str) -> Aggregate:
    """Add *host* to an aggregate, and return the aggregate. Raises ``NotFound``, ``Conflict``."""

    def change(connection: Any, row: Aggregate) -> None:
        if hosts.fetch_host_row(connection, host) is None:
            raise NotFound(f"Compute host {host} could not be found.")
        if host in row.hosts:
            raise Conflict(f"Aggregate {row.id} already has host {host}.")
        _put_host(caller, connection, row, host)

    return _change_aggregate(caller, id, change, "add_host")


def _put_host(caller: Caller, connection: Any, row: Aggregate, host: str) -> None:
    if row.zone:
        _check_zone(caller, connection, row, [host], (None, row.zone), "add_host_to_aggregate", Conflict)
    aggregates.insert_aggregate_host_row(connection, row.id, host)


@use_case(f"{RULE}remove_host")
def remove_host_from_aggregate(caller: Caller, id: Id, host: str) -> Aggregate:
    """Remove *host* from an aggregate, and return the aggregate. Raises ``NotFound``, ``Conflict``."""

    def change(connection: Any, row: Aggregate) -> None:
        if host not in row.hosts:
            raise NotFound(f"Aggregate {row.id} has no host {host}.")
        _take_host(caller, connection, row, host)

    return _change_aggregate(caller, id, change, "remove_host")


def _take_host(caller: Caller, connection: Any, row: Aggregate, host: str) -> None:
    if row.zone:
        _check_zone(caller, connection, row, [host], (row.zone, None), "remove_host_from_aggregate", Conflict)
    aggregates.remove_aggregate_host_row(connection, row.id, host)


def set_host_aggregates(caller: Caller, connection: Any, host: str, aggregate_ids: Collection[str]) -> None:
    """Put *host* into the aggregates *aggregate_ids* (uuids), and remove it from all others. *connection*: a
    transaction that has locked all aggregates. Raises ``InvalidRequest`` for an unknown uuid, ``Forbidden``,
    ``Conflict``."""
    aggregates_by_id = {aggregate.uuid: aggregate for aggregate in aggregates.fetch_aggregate_rows(connection)}
    if missing := sorted({*aggregate_ids} - aggregates_by_id.keys()):
        raise InvalidRequest(f"There is no host aggregate {missing[0][:80]}: make it first, with `openstack aggregate "
                             "create`.")
    leaving = [aggregate for aggregate in aggregates_by_id.values() if host in aggregate.hosts
               and aggregate.uuid not in aggregate_ids]
    joining = [aggregate for aggregate in aggregates_by_id.values() if host not in aggregate.hosts
               and aggregate.uuid in aggregate_ids]
    for use, rows in ((remove_host_from_aggregate, leaving), (add_host_to_aggregate, joining)):
        if rows:
            use.check_allowed(caller)
    zone = aggregates.fetch_host_zones(connection, [host]).get(host)
    # First aggregates that keep the host's zone, which it cannot leave with servers. It joins another zone only after
    # it left.
    for aggregate in joining:
        if aggregate.zone in (None, zone):
            _put_host(caller, connection, aggregate, host)
    for aggregate in leaving:
        _take_host(caller, connection, aggregate, host)
    for aggregate in joining:
        if aggregate.zone not in (None, zone):
            _put_host(caller, connection, aggregate, host)


def _check_zone_stays(row: Aggregate, want: Mapping[str, Any], action: str) -> None:
    """Raise ``InvalidRequest`` when the requested fields *want* remove the availability zone of the aggregate *row*.
    *action*: the name of the operation, for the error message."""
    if ZONE in want and not want[ZONE]:
        raise _refused_action(row, action, InvalidRequest,
                              f"Aggregate {row.name} does not support empty named availability zone")


@use_case(f"{RULE}set_metadata")
def set_aggregate_metadata(caller: Caller, id: Id, metadata: Mapping[str, str | None], *,
                           keeps_zone: bool = False) -> Aggregate:
    """Update the metadata of an aggregate with *metadata*; a value of ``None`` removes the key. Return the aggregate.
    Unchanged values are accepted even if invalid, because Horizon sends all keys. *keeps_zone*: refuse to remove the
    availability zone, as Nova does. Raises ``InvalidRequest``."""

    def change(connection: Any, row: Aggregate) -> None:
        if keeps_zone:
            _check_zone_stays(row, metadata, "update_aggregate_metadata")
        check_aggregate_metadata(metadata, row.metadata)
        merged = _merged_metadata(caller, connection, row, metadata, "update_aggregate_metadata")
        aggregates.update_aggregate_row(connection, row.id, metadata=merged)

    return _change_aggregate(caller, id, change, "update_metadata")


def check_aggregate_metadata(metadata: Mapping[str, str | None], current_metadata: Mapping[str, str]) -> None:
    """Raise ``InvalidField`` if *metadata* has an invalid value under a key that the scheduler reads. Values that equal
    those in *current_metadata* are not checked."""
    new_values = {name: value for name, value in metadata.items() if value not in (None, current_metadata.get(name))}
    for name in malformed_multipliers(new_values):
        raise InvalidField(f"metadata.{name}", "must be a finite number, such as 2.0 or -1.0: hosts are weighed with "
                           "it", new_values[name])
    for name, value in new_values.items():
        if name == ZONE:
            availability_zones.NAME.check(value, f"metadata.{ZONE}")
        elif name in NUMBERS and not all((parse_finite(number) or 0.0) > 0 for number in value.split(",")):
            raise InvalidField(f"metadata.{name}", "must be a number above 0, or several with commas, of which the "
                               "least counts", value)
        elif name.startswith("trait:") and value != "required":
            raise InvalidField(f"metadata.{name}", "must be required, which keeps the hosts for servers that require "
                               "it", value)


@use_case("compute:aggregates:images")
def cache_aggregate_images(caller: Caller, id: Id, images: Sequence[str]) -> None:
    """Queue requests to the hosts of an aggregate to download *images* (uuids) into their caches before a server needs
    them. Conductors send the requests one after the other. Raises ``NotFound`` for the aggregate, ``InvalidRequest``
    for a duplicate image or one without content."""
    if len({*images}) < len(images):
        raise InvalidRequest("Duplicate images in request")
    names = caller.fetch(_find_aggregate, id).hosts
    for image in images:
        _check_content(caller, image)
    places: dict[str, list[str]] = {}
    for host in map(caller.cloud.hosts.get, names):
        if host is not None:
            places.setdefault(host.cell_id, []).append(host.name)
    for cell, of_cell in places.items():
        with caller.cloud.store.cell(cell).write() as connection:
            image_requests.upsert_image_requests(connection, of_cell, images)


def _check_content(caller: Caller, image: str) -> None:
    """Raise ``InvalidRequest`` for an image that hosts cannot download: it does not exist, is not active, or only
    describes snapshots of volumes."""
    image_document = caller.cloud.services.image.show(caller.context, image)
    if image_document is None:
        raise InvalidRequest(f"Image {image} could not be found.")
    if image_document["status"] != "active":
        raise InvalidRequest(
            f"Image {image} is {image_document['status']}; only the content of active images can be brought to "
                             "hosts.")
    if "block_device_mapping" in (image_document.get("properties") or {}):
        raise InvalidRequest(f"Image {image} has no content of its own: it stands for snapshots of volumes.")
