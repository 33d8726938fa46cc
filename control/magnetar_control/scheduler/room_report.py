# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of room to fail for the whole cloud, for availability zones and for aggregates (see ``room``).

Only hosts of the scope are assumed to fail. Their servers may find places on all hosts that the scheduler allows, also
outside the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from magnetar_control.settings import Settings
from magnetar_control.store.hosts import aggregates
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.store import Store
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, abbreviate_names

from .current_hosts import read_current_hosts
from .hosts import HostStates
from .room import HostRoom, check_room

#: The scopes of reports: all hosts, the hosts of an availability zone, or those of an aggregate.
CLOUD, ZONE, AGGREGATE = "cloud", "zone", "aggregate"
#: Number of servers that a report names for each host.
MOST_NAMES = 10


class Scope(NamedTuple):
    """A set of hosts for which a report is made: the cloud, a zone or an aggregate. ``kind``: ``CLOUD``, ``ZONE`` or
    ``AGGREGATE``."""

    kind: str
    name: str
    hosts: frozenset[str]


class RoomReport(NamedTuple):
    """The results of ``room.check_room`` for all hosts of a scope: whether the servers of any one failed host would fit
    on other hosts."""

    scope: Scope
    rooms: Sequence[HostRoom]

    @property
    def holds(self) -> bool:
        """Return whether the servers of each host of the scope would fit on other hosts if their host failed."""
        return all(room.holds for room in self.rooms)

    @property
    def lacking(self) -> list[HostRoom]:
        """The results of the hosts whose servers would not all fit on other hosts. The host with the most servers that
        would not fit comes first."""
        rooms = [room for room in self.rooms if not room.holds]
        return sorted(rooms, key=lambda room: (-len(room.unplaced), room.host))

    @property
    def reason(self) -> str:
        """A text of one or two sentences that explains the value of ``holds``."""
        if not self.rooms:
            return "It has no hosts."
        if self.holds:
            return f"If any one of {len(self.rooms)} hosts fails, all of its servers have a place on other hosts."
        worst = self.lacking[0]
        return f"{len(self.lacking)} of {len(self.rooms)} hosts may not fail. {describe_lacking_host(worst)}"

    def as_document(self) -> Document:
        """Return the report as the JSON document of a resource of the type ``capacity``."""
        kind, name = self.scope.kind, self.scope.name
        return {"name": name, "scope": kind, "zone": name if kind == ZONE else None,
                "aggregate": name if kind == AGGREGATE else None, "holds": self.holds,
                "reason": self.reason,
                "hosts": len(self.rooms), "servers": sum(room.servers or 0 for room in self.rooms),
                "lacking": [{"host": room.host, "servers": room.servers, "unplaced": len(room.unplaced),
                             "examples": [{"id": id, "name": name} for id, name in room.unplaced[:MOST_NAMES]],
                             "reason": room.reason} for room in self.lacking]}


def describe_lacking_host(room: HostRoom) -> str:
    """Return a text that says how many servers of a host would not fit on other hosts, and why."""
    if room.servers is None:
        return f"{room.host}: {room.reason}"
    names = abbreviate_names([name for _id, name in room.unplaced], 3)
    return (f"{room.host}: {len(room.unplaced)} of {room.servers} servers have no place on another host ({names}). "
            f"{room.reason}")


def report_room(store: Store, volumes: Any, settings: Settings, zone: str | None = None, aggregate: str | None = None,
                *, cell_id: str | None = None,
                pause: Callable[[float], object] = lambda _seconds: None) -> list[RoomReport]:
    """Return reports for the cloud, for each zone and for each aggregate; if *zone* (a name) or *aggregate* (a name or
    uuid) is given, only for this zone or aggregate. *volumes*: the volume service. *cell_id*: consider only the hosts
    of this cell. *pause*: see ``check_room``. Raises ``InvalidField`` for an unknown zone or aggregate."""
    states = read_current_hosts(store, settings)
    with store.api.read() as connection:
        groups = aggregates.fetch_aggregate_rows(connection)
    of_cell = {name for name, row in states.rows.items() if cell_id in (None, row.cell_id)}
    scopes = [scope._replace(hosts=scope.hosts & of_cell) for scope in _scopes(states, groups, zone, aggregate)]
    rooms = check_room(store, volumes, states, frozenset().union(*(scope.hosts for scope in scopes)), pause)
    return [RoomReport(scope, [room for room in rooms if room.host in scope.hosts]) for scope in scopes]


def _scopes(states: HostStates, groups: Sequence[Aggregate], zone: str | None, aggregate: str | None) -> list[Scope]:
    """Return the sets of hosts to report on: the zone *zone* or the aggregate *aggregate*; if both are ``None``, the
    cloud, all zones, and all aggregates (*groups*). Raises ``InvalidField`` for an unknown zone or aggregate."""
    by_zone: dict[str, set[str]] = {group.zone: set() for group in groups if group.zone}
    for name, host in states.hosts.items():
        by_zone.setdefault(host.profile.zone, set()).add(name)
    zones = [Scope(ZONE, name, frozenset(by_zone[name])) for name in sorted(by_zone)]
    by_name = sorted(groups, key=lambda group: group.name)
    named = [Scope(AGGREGATE, group.name, frozenset(group.hosts) & states.hosts.keys()) for group in by_name]
    if zone is None and aggregate is None:
        return [Scope(CLOUD, CLOUD, frozenset(states.hosts)), *zones, *named]
    scopes = []
    if zone is not None:
        scopes += [_found("zone", "availability zone", zone, zones, {})]
    if aggregate is not None:
        scopes += [_found("aggregate", "aggregate", aggregate, named, {group.uuid: group.name for group in by_name})]
    return scopes


def _found(field: str, resource_type: str, name: str, scopes: Sequence[Scope], names_by_uuid: dict[str, str]) -> Scope:
    for scope in scopes:
        if scope.name == names_by_uuid.get(name, name):
            return scope
    known = ", ".join(scope.name for scope in scopes) or "none"
    raise InvalidField(field, f"there is no {resource_type} of this name in the cloud; there are: {known}", name)
