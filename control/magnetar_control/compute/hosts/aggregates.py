# SPDX-License-Identifier: GPL-3.0-or-later
"""Aggregates: hosts put together by administrators, and the availability zones that come of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.numbers import MOST, number_of
from magnetar_control.notifications import payloads
from magnetar_control.scheduler.aggregate_filters import NUMBERS
from magnetar_control.scheduler.weighers import malformed
from magnetar_control.store.hosts import aggregates, hosts, image_requests, services
from magnetar_control.store.hosts.aggregates import ZONE, Aggregate
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError, NotFound
from magnetar_core.matching import finite

from . import availability_zones

RULE = "os_compute_api:os-aggregates:"
#: An aggregate's id, as the client gave it.
Id = str | int


@use_case(f"{RULE}index")
def every(caller: Caller) -> list[Aggregate]:
    """All."""
    return caller.fetch(aggregates.every)


@use_case(f"{RULE}show")
def show(caller: Caller, id: Id) -> Aggregate:
    """One. Raises ``NotFound``, ``InvalidField`` for what is no id."""
    return caller.fetch(_found, id)


def _found(connection: Any, id: Id, *, lock: bool = False) -> Aggregate:
    number = number_of(str(id), "an aggregate")
    found = aggregates.find(connection, number, lock=lock) if 0 < number <= MOST else None
    if found is None:
        raise NotFound(f"Aggregate {number} could not be found.")
    return found


def _exists(name: str) -> MagnetarError:
    return Conflict(f"Aggregate {name} already exists.")


@use_case(f"{RULE}create")
def create(caller: Caller, name: str, zone: str | None = None) -> Aggregate:
    """Make one without hosts. Raises ``Conflict``."""
    with caller.cloud.store.api.write() as connection:
        id = aggregates.make(connection, name, {ZONE: zone} if zone else {})
        if id is None:
            raise _exists(name)
        row = _found(connection, id)
        _tell(caller, connection, row, "create")
        return row


def _tell(caller: Caller, connection: Any, row: Aggregate, *names: str) -> None:
    """Tell what is done to an aggregate, which is *row* then."""
    for name in names:
        caller.notify(connection, lambda: payloads.wrapped(
            "AggregatePayload", "1.1", id=row.id, uuid=row.uuid, name=row.name, hosts=list(row.hosts),
            metadata=dict(row.metadata)), f"aggregate.{name}.start", f"aggregate.{name}.end")


def _changed(caller: Caller, id: Id, change: Callable[[Any, Aggregate], None], *told: str) -> Aggregate:
    """Do *change* in one transaction, and tell it by these names; the aggregate as it is then."""
    with caller.cloud.store.api.write() as connection:
        row = _found(connection, id, lock=True)
        change(connection, row)
        found = _found(connection, row.id)
        _tell(caller, connection, found, *told)
    caller.cloud.hosts.all(fresh=True)
    return found


@use_case(f"{RULE}update")
def update(caller: Caller, id: Id, want: Mapping[str, Any], *, keeps_zone: bool = False) -> Aggregate:
    """Set what *want* has of name and availability_zone (``None``: none). *keeps_zone*: the zone cannot be taken away,
    as in Nova. Raises ``Conflict``, ``InvalidRequest``."""

    def change(connection: Any, row: Aggregate) -> None:
        values: dict[str, Any] = {}
        if keeps_zone:
            _check_zone_stays(row, want, "update")
        if "name" in want:
            if aggregates.named(connection, want["name"]) not in (None, row.id):
                raise _exists(want["name"])
            values["name"] = want["name"]
        if ZONE in want:
            values["metadata"] = _merged(caller, connection, row, {ZONE: want[ZONE]}, "update")
        aggregates.change(connection, row.id, **values)

    told = [word for word, key in (("update_prop", "name"), ("update_metadata", ZONE)) if key in want]
    return _changed(caller, id, change, *told)


def _merged(caller: Caller, connection: Any, row: Aggregate, more: Mapping[str, str | None],
            word: str) -> dict[str, str]:
    """The metadata with *more*, where ``None`` takes a key away. Refuses a zone that the hosts cannot change to."""
    merged = {name: value for name, value in {**row.metadata, **more}.items() if value is not None}
    if ZONE in more and merged.get(ZONE) != row.zone:
        _check_zone(caller, connection, row, row.hosts, (row.zone, merged.get(ZONE)), word, InvalidRequest)
    return merged


def _check_zone(caller: Caller, connection: Any, row: Aggregate, names: Iterable[str],
                zones: tuple[str | None, str | None], word: str, error: type[MagnetarError]) -> None:
    """Whether hosts may go from one zone to another: they must be in no other one, and have no servers."""
    names, (old, new) = list(names), zones
    others = set(aggregates.zones(connection, names, but=row.id).values())
    if new and others - {new}:
        raise _refused(row, word, error, "One or more hosts already in availability zone(s) "
                       + ", ".join(sorted(others)))
    usual = caller.settings.default_availability_zone
    if (old or usual) != (new or usual) and not others and services.occupied(caller.cloud.store, names):
        raise _refused(row, word, error, "One or more hosts contain instances in this zone")


def _refused(row: Aggregate, word: str, error: type[MagnetarError], reason: str) -> MagnetarError:
    return error(f"Cannot perform action '{word}' on aggregate {row.id}. Reason: {reason}.")


@use_case(f"{RULE}update")
def check(caller: Caller, row: Aggregate | None, name: str, members: Sequence[str], zone: str | None) -> None:
    """Whether an aggregate (*row*; ``None``: a new one) may have this name, these hosts and this zone; nothing changes.
    Raises ``Conflict``, ``InvalidRequest``."""
    old = row or Aggregate(0, "", name, {}, "", None, ())
    with caller.cloud.store.api.read() as connection:
        if aggregates.named(connection, name) not in (None, old.id):
            raise _exists(name)
        gone, come = {*old.hosts} - {*members}, {*members} - {*old.hosts}
        stay = {*old.hosts} - gone
        for names, before, after in ((gone, old.zone, None), (stay, old.zone, zone), (come, None, zone)):
            if names and before != after:
                _check_zone(caller, connection, old, sorted(names), (before, after), "update", Conflict)


@use_case(f"{RULE}delete")
def delete(caller: Caller, id: Id) -> None:
    """Delete an empty one. Raises ``InvalidRequest`` for one with hosts."""
    with caller.cloud.store.api.write() as connection:
        row = _found(connection, id, lock=True)
        if row.hosts:
            raise _refused(row, "delete", InvalidRequest, "Host aggregate is not empty")
        aggregates.remove(connection, row.id)
        _tell(caller, connection, row, "delete")


@use_case(f"{RULE}add_host")
def add_host(caller: Caller, id: Id, host: str) -> Aggregate:
    """Put *host* into it. Raises ``NotFound``, ``Conflict``."""

    def change(connection: Any, row: Aggregate) -> None:
        if hosts.show(connection, host) is None:
            raise NotFound(f"Compute host {host} could not be found.")
        if host in row.hosts:
            raise Conflict(f"Aggregate {row.id} already has host {host}.")
        _put(caller, connection, row, host)

    return _changed(caller, id, change, "add_host")


def _put(caller: Caller, connection: Any, row: Aggregate, host: str) -> None:
    if row.zone:
        _check_zone(caller, connection, row, [host], (None, row.zone), "add_host_to_aggregate", Conflict)
    aggregates.put(connection, row.id, host)


@use_case(f"{RULE}remove_host")
def remove_host(caller: Caller, id: Id, host: str) -> Aggregate:
    """Take *host* out of it. Raises ``NotFound``, ``Conflict``."""

    def change(connection: Any, row: Aggregate) -> None:
        if host not in row.hosts:
            raise NotFound(f"Aggregate {row.id} has no host {host}.")
        _take(caller, connection, row, host)

    return _changed(caller, id, change, "remove_host")


def _take(caller: Caller, connection: Any, row: Aggregate, host: str) -> None:
    if row.zone:
        _check_zone(caller, connection, row, [host], (row.zone, None), "remove_host_from_aggregate", Conflict)
    aggregates.take(connection, row.id, host)


def set_of_host(caller: Caller, connection: Any, host: str, wanted: Collection[str]) -> None:
    """Have *host* be in the aggregates of these uuids, and no others; in a transaction with all aggregates locked.
    Raises ``InvalidRequest`` for a uuid of none, ``Forbidden``, ``Conflict``."""
    known = {one.uuid: one for one in aggregates.every(connection)}
    if missing := sorted({*wanted} - known.keys()):
        raise InvalidRequest(f"There is no host aggregate {missing[0][:80]}: make it first, with `openstack aggregate "
                             "create`.")
    go = [one for one in known.values() if host in one.hosts and one.uuid not in wanted]
    come = [one for one in known.values() if host not in one.hosts and one.uuid in wanted]
    for use, rows in ((remove_host, go), (add_host, come)):
        if rows:
            use.check_allowed(caller)
    zone = aggregates.zones(connection, [host]).get(host)
    for one in come:  # those first that keep its zone, which it may not leave with servers; another only when it left
        if one.zone in (None, zone):
            _put(caller, connection, one, host)
    for one in go:
        _take(caller, connection, one, host)
    for one in come:
        if one.zone not in (None, zone):
            _put(caller, connection, one, host)


def _check_zone_stays(row: Aggregate, want: Mapping[str, Any], word: str) -> None:
    """Raise ``InvalidRequest`` where *want* takes the availability zone away."""
    if ZONE in want and not want[ZONE]:
        raise _refused(row, word, InvalidRequest,
                       f"Aggregate {row.name} does not support empty named availability zone")


@use_case(f"{RULE}set_metadata")
def set_metadata(caller: Caller, id: Id, metadata: Mapping[str, str | None], *, keeps_zone: bool = False) -> Aggregate:
    """Add and change keys; ``None`` takes one away. Raises ``InvalidRequest``. What stands already may be said again:
    Horizon sends all of it along. *keeps_zone*: as for ``update``."""

    def change(connection: Any, row: Aggregate) -> None:
        if keeps_zone:
            _check_zone_stays(row, metadata, "update_aggregate_metadata")
        check_metadata(metadata, row.metadata)
        merged = _merged(caller, connection, row, metadata, "update_aggregate_metadata")
        aggregates.change(connection, row.id, metadata=merged)

    return _changed(caller, id, change, "update_metadata")


def check_metadata(metadata: Mapping[str, str | None], stands: Mapping[str, str]) -> None:
    """Raises ``InvalidField`` for what an aggregate of which *stands* already cannot be given besides: what the
    scheduler reads, and could make nothing of."""
    said = {name: value for name, value in metadata.items() if value not in (None, stands.get(name))}
    for name in malformed(said):
        raise InvalidField(f"metadata.{name}", "must be a finite number, such as 2.0 or -1.0: hosts are weighed with "
                           "it", said[name])
    for name, value in said.items():
        if name == ZONE:
            availability_zones.NAME.check(value, f"metadata.{ZONE}")
        elif name in NUMBERS and not all((finite(one) or 0.0) > 0 for one in value.split(",")):
            raise InvalidField(f"metadata.{name}", "must be a number above 0, or several with commas, of which the "
                               "least counts", value)
        elif name.startswith("trait:") and value != "required":
            raise InvalidField(f"metadata.{name}", "must be required, which keeps the hosts for servers that require "
                               "it", value)


@use_case("compute:aggregates:images")
def cache_images(caller: Caller, id: Id, images: Sequence[str]) -> None:
    """Have the hosts of an aggregate fetch images before a server needs them: the conductors bring them, one after the
    other. Raises ``NotFound`` for the aggregate, ``InvalidRequest`` for an image twice, or one without content."""
    if len({*images}) < len(images):
        raise InvalidRequest("Duplicate images in request")
    names = caller.fetch(_found, id).hosts
    for image in images:
        _check_content(caller, image)
    places: dict[str, list[str]] = {}
    for host in map(caller.cloud.hosts.get, names):
        if host is not None:
            places.setdefault(host.cell_id, []).append(host.name)
    for cell, of_cell in places.items():
        with caller.cloud.store.cell(cell).write() as connection:
            image_requests.ask(connection, of_cell, images)


def _check_content(caller: Caller, image: str) -> None:
    """Raises ``InvalidRequest`` for an image that hosts cannot fetch."""
    found = caller.cloud.services.image.show(caller.context, image)
    if found is None:
        raise InvalidRequest(f"Image {image} could not be found.")
    if found["status"] != "active":
        raise InvalidRequest(f"Image {image} is {found['status']}; only the content of active images can be brought to "
                             "hosts.")
    if "block_device_mapping" in (found.get("properties") or {}):
        raise InvalidRequest(f"Image {image} has no content of its own: it stands for snapshots of volumes.")
