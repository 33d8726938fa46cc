# SPDX-License-Identifier: GPL-3.0-or-later
"""Reserved room to fail: new claims are refused when afterwards the loss of one host could not be absorbed.

The hosts of a zone in a cell are looked at together. If a host fails, its claims must fit into what the other hosts of
the zone have free. A new server takes its amounts from the sum of the free amounts, on whichever host it is. So one
comparison decides for all hosts of the zone: free amounts of all hosts, less the new amounts, must be at least the
free and used amounts of the largest host.

Sums do not see that a large server may find no single host with enough room, nor groups, traits and devices; the check
in ``room`` does. It tries each server, which takes too long for each create.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from magnetar_control.store.claims.allocations import Amounts

from .filters import PROFILE, Filter
from .host_state import HostState
from .request_spec import RequestSpec

NAME = "RoomToFailFilter"
#: Each resource in messages, with its unit.
UNITS = ("CPUs", "MiB of memory", "GiB of disk", "dedicated CPUs")


class ZoneRoom(NamedTuple):
    """The free capacity of the hosts of one zone in one cell, and the reserve that must stay free in case one host
    fails. *free*: the free amounts of all hosts that are up and enabled. *largest*: the reserve by resource: the claims
    plus the free amount of the host where this sum is greatest. If this host fails, its claims need room on other
    hosts, and its free amount is lost. *hosts*: by resource, the name of this host."""

    free: Amounts
    largest: Amounts
    hosts: tuple[str, ...]

    def shortage(self, added: Amounts) -> int | None:
        """Return the index of the first resource for which too little would stay free if *added* were claimed; ``None``
        if there is no such resource."""
        return next((at for at, more in enumerate(added) if more > 0
                     and self.free[at] - more < self.largest[at]), None)


def room_by_zone(hosts: Iterable[HostState]) -> dict[tuple[str, str], ZoneRoom]:
    """Return the free capacity of each zone in each cell, by (id of the cell, name of the zone)."""
    rooms: dict[tuple[str, str], tuple[list[float], list[float], list[str]]] = {}
    for host in hosts:
        profile = host.profile
        free, largest, names = rooms.setdefault((profile.cell_id, profile.zone), (
            [0, 0, 0, 0], [0, 0, 0, 0], ["", "", "", ""]))
        takes = profile.up and profile.enabled and profile.cell_enabled and not host.columns.forced_down
        for at in range(len(free)):
            used = host.used[at]
            left = max(0, host.limits[at] - used) if takes else 0
            free[at] += left
            if used + left > largest[at]:
                largest[at], names[at] = used + left, host.name
    return {key: ZoneRoom(Amounts(*map(int, free)), Amounts(*map(int, largest)), tuple(names))
            for key, (free, largest, names) in rooms.items()}


def claims_more(spec: RequestSpec) -> bool:
    """Return whether the reserve (capacity that must stay free in each zone in case a host fails) applies to the
    request: the request increases the claims in the cloud, and no administrator has chosen the host."""
    return spec.keeps_reserve and not spec.forced and not spec.past_filters and any(spec.added)


def reserve_filter(hosts: Iterable[HostState]) -> Filter:
    """Return a filter that keeps a reserve: it refuses a host if too little would stay free in the host's zone to
    evacuate any one failed host. The reserve is computed from the present claims on *hosts*."""
    rooms = room_by_zone(hosts)

    def room_of(host: HostState) -> ZoneRoom:
        return rooms[host.profile.cell_id, host.profile.zone]

    def passes(host: HostState, spec: RequestSpec) -> bool:
        """If any one host of the zone fails after the server is placed, the servers of the failed host still fit on the
        other hosts of the zone."""
        return room_of(host).shortage(spec.added) is None

    def lacks(host: HostState, spec: RequestSpec) -> str:
        room = room_of(host)
        at = room.shortage(spec.added) or 0
        spare = max(0, room.free[at] - room.largest[at])
        return (f"is in zone {host.profile.zone}, where room for the loss of host {room.hosts[at]} is reserved "
                f"(reserve_room_to_fail): {spare} of {spec.added[at]} {UNITS[at]} can be claimed")
    return Filter(NAME, PROFILE, passes, claims_more, lacks=lacks)
