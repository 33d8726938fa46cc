# SPDX-License-Identifier: GPL-3.0-or-later
"""Static routes of routers: each leads to a neighbour of its router, and none in a loop.

A route leads to another router where its next hop is the address of a port of that one, interface or gateway. There
the longest match counts, as in OVN: of a route and the router's own subnet, which ends the way, the subnet where both
are as long; of routes as long as one another each, as packets take any of them. What leaves by a gateway's default
route goes to no router of the cloud: external networks hold no interfaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import collapse_addresses, ip_address, ip_network
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context, Document
from magnetar_control.services.network.resources import check_once
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import addresses, ports, routers
from magnetar_core.errors import Conflict, InvalidField

from . import router_ports
from .router_ports import GATEWAY, INTERFACE

#: How far routes are followed: routers one after another, and all of them. For each step there are two statements.
DEPTH, MOST = 16, 64
DEFAULT = ("0.0.0.0/0", "::/0")


class AddressRange(NamedTuple):
    """A network in numbers: many are compared."""

    version: int
    first: int
    last: int
    text: str

    @classmethod
    def of(cls, text: str) -> AddressRange:
        net = ip_network(text)
        return cls(net.version, int(net.network_address), int(net.broadcast_address), text)

    @property
    def size(self) -> int:
        return self.last - self.first

    def has(self, other: AddressRange) -> bool:
        """Whether all of *other* lies in it."""
        return self.version == other.version and self.first <= other.first and other.last <= self.last

    def meets(self, other: AddressRange) -> bool:
        return self.has(other) or other.has(self)


@dataclass
class RouteHop:
    """A static route of a router: destination, next hop, and the router that has that address, if one does."""

    to: AddressRange
    by: str
    router_id: str | None = None


@dataclass
class RouteStation:
    """A router that packets come to; *inside*: (prefix, subnet id) of its own subnets; *seen*: whether the caller is
    told of it."""

    id: str
    name: str
    seen: bool
    hops: list[RouteHop]
    inside: list[tuple[AddressRange, str]] = field(default_factory=list)

    def knows(self) -> Iterator[AddressRange]:
        """Destinations of its routes, and its own subnets."""
        yield from (hop.to for hop in self.hops)
        yield from (net for net, _subnet in self.inside)

    def leads(self, prefix: AddressRange) -> list[RouteHop]:
        """Where it sends what is in *prefix* and in no longer one that it knows: by several routes, or by none."""
        fitting = [hop for hop in self.hops if hop.to.has(prefix)]  # these lie in one another
        size = min((hop.to.size for hop in fitting), default=-1)
        if any(net.has(prefix) and net.size <= size for net, _subnet in self.inside):
            return []
        return [hop for hop in fitting if hop.to.size == size]


def check(found: Sequence[RowMapping], routes: Sequence[Document]) -> None:
    """Raises ``InvalidField`` where a route leads nowhere, or back to the router itself, whose ports are *found*, or
    where it stands twice."""
    check_once("routes", routes)
    for route in routes:
        hop = ip_address(route["nexthop"])
        if hop.version != ip_network(route["destination"]).version:
            raise InvalidField("routes", "must have destination and nexthop of one IP version", route["nexthop"])
        if route["nexthop"] in {one["ip_address"] for one in found}:
            raise InvalidField("routes", "must not have an address of the router itself as nexthop", route["nexthop"])
    if lost := stranded(found, routes):
        raise InvalidField("routes", "must have a nexthop in a subnet that the router has an interface or its gateway "
                                     "in", lost["nexthop"])


def stranded(found: Sequence[RowMapping], routes: Sequence[Document]) -> Document | None:
    """A route whose next hop is in no subnet of the router, whose ports are *found*."""
    subnets = [ip_network(one["cidr"]) for one in found]
    return next((route for route in routes if not any(ip_address(route["nexthop"]) in net for net in subnets)), None)


def check_loops(connection: Connection, context: Context, router: Mapping[Any, Any] | RowMapping,
                found: Sequence[RowMapping], routes: Sequence[Document], *, left: str = "", came: str = "") -> None:
    """Raises ``Conflict`` where what *router* sends by *routes* would go round between routers. Its ports *found* are
    as they will be, and its row is locked; those of the routers that it leads to are locked too, so that of two changes
    which make a loop together the second one sees the first. Without routes it costs nothing.

    Where the routes stay as they are, only loops are looked for that were none before: of what lies in the subnet
    *left*, or by the address that *came*."""
    if not routes:
        return
    start = _station(context, router, routes)
    wanted = [AddressRange.of(left)] if left else [hop.to for hop in start.hops]
    stations = {start.id: start}
    start.inside = _inside(found)
    level = [start]
    for _step in range(DEPTH):
        level = _next(connection, context, stations, level, wanted)
        if not level or len(stations) > MOST:
            break
    if level:
        raise Conflict(f"The routes of {start.name} lead over more than {DEPTH} routers one after another, or to more "
                       f"than {MOST}, farther than they are followed to see that they make no loop. Nothing is "
                       "changed. Let them lead to fewer routers.", type="RouterRoutesTooLong")
    known = {one for station in stations.values() for one in station.knows()}
    known = {*wanted, *(one for one in known if any(other.has(one) for other in wanted))}
    for prefix in sorted(known):
        loop = _loop(stations, start, prefix, came, [], set())
        if loop and not (_is_covered(prefix, known) or _is_summary(stations, start, prefix, loop, known)):
            told = {*wanted, *(one for station in stations.values() if station.seen for one in station.knows())}
            raise Conflict(_message(prefix, loop, told), type="RouterRoutesInLoop")


def _station(context: Context, router: Mapping[Any, Any] | RowMapping, routes: Iterable[Document]) -> RouteStation:
    name = f"router {router['name']} ({router['id']})" if router["name"] else f"router {router['id']}"
    return RouteStation(router["id"], name, context.is_admin or router["project_id"] == context.project_id,
                        [RouteHop(AddressRange.of(one["destination"]), one["nexthop"]) for one in routes])


def _inside(found: Iterable[RowMapping]) -> list[tuple[AddressRange, str]]:
    return [(AddressRange.of(one["cidr"]), one["subnet_id"]) for one in found]


def _next(connection: Connection, context: Context, stations: dict[str, RouteStation], level: Iterable[RouteStation],
          wanted: Sequence[AddressRange]) -> list[RouteStation]:
    """The routers that those of *level* lead on to with something of *wanted*; returns the new ones, of *stations*."""
    hops: dict[tuple[str, int], list[RouteHop]] = {}
    for station in level:
        for hop in station.hops:
            by = AddressRange.of(hop.by)
            if any(hop.to.meets(one) for one in wanted):
                for subnet in (subnet for net, subnet in station.inside if net.has(by)):
                    hops.setdefault((subnet, ipam.number(hop.by)), []).append(hop)
    if not hops:
        return []
    new: dict[str, RouteStation] = {}
    for row in connection.execute(select(
            *addresses.c["subnet_id", "number"], *routers.c["id", "name", "project_id", "routes"]).join(
            ports, ports.c.id == addresses.c.port_id).join(routers, routers.c.id == ports.c.device_id).where(
            addresses.c.subnet_id.in_({subnet for subnet, _number in hops}),
            addresses.c.number.in_({number for _subnet, number in hops}),
            ports.c.device_owner.in_((INTERFACE, GATEWAY))).order_by(routers.c.id).with_for_update(
            of=routers, key_share=True)).mappings():
        for hop in hops.get((row["subnet_id"], row["number"]), ()):
            hop.router_id = row["id"]
            if row["id"] not in stations:
                new[row["id"]] = stations[row["id"]] = _station(context, row, orjson.loads(row["routes"]))
    # Those without routes lead nowhere, whatever they have.
    leading = [station for station in new.values() if station.hops]
    for one in router_ports.of(connection, [station.id for station in leading]) if leading else ():
        new[one["device_id"]].inside += _inside([one])
    return leading


def _loop(stations: Mapping[str, RouteStation], at: RouteStation, prefix: AddressRange, came: str,
          path: list[tuple[RouteStation, RouteHop]], ended: set[str]) -> list[tuple[RouteStation, RouteHop]]:
    """The routers, and their routes, between which *prefix* goes round when it comes to *at* by *path*, and the next
    hop *came* where that is given; none of *ended* leads into such a loop."""
    for hop in at.leads(prefix):
        way = [*path, (at, hop)]
        before = [station.id for station, _hop in way]
        if hop.router_id in before:
            if came in ("", hop.by):
                return way[before.index(hop.router_id):]
        elif hop.router_id and hop.router_id in stations and hop.router_id not in ended and (
                loop := _loop(stations, stations[hop.router_id], prefix, came, way, ended)):
            return loop
    ended.add(at.id)
    return []


def _is_covered(prefix: AddressRange, known: Iterable[AddressRange]) -> bool:
    """Whether longer ones that are *known* are all of it, so that nothing goes by it."""
    longer = [ip_network(one.text) for one in known if prefix.has(one) and not one.has(prefix)]
    return list(collapse_addresses(longer)) == [ip_network(prefix.text)]  # type: ignore[type-var]


def _is_summary(stations: Mapping[str, RouteStation], start: RouteStation, prefix: AddressRange,
                loop: Sequence[tuple[RouteStation, RouteHop]], known: Iterable[AddressRange]) -> bool:
    """Whether routes of the *loop* are to unlike ranges, as where a hub sends a range to a spoke, which sends all else
    to the hub: a part of *prefix* arrives there, or may once the spoke has its subnet (its default route says no more
    than that); or such a part has gone from the spoke, and all routes are to more than *prefix*."""
    to = {hop.to for _station, hop in loop}
    if len(to) > 1 and any(one.text in DEFAULT for one in to):
        return True
    if all(one != prefix and one.has(prefix) for one in to):
        return True
    return len(to) > 1 and any(
        prefix.has(one) and not one.has(prefix) and start.leads(one)
        and not _loop(stations, start, one, "", [], set()) for one in known)


def _message(prefix: AddressRange, loop: Sequence[tuple[RouteStation, RouteHop]], told: Iterable[AddressRange]) -> str:
    """*told*: what the caller's own routers know, of which one has all of *prefix*. That one is named, where only
    another project's router knows *prefix*."""
    least = min((one for one in told if one.has(prefix)), key=lambda one: one.size)
    what = "Packets" if least == prefix else "Some packets"
    ways = "; ".join(f"{station.name} by {hop.by} (its route to {hop.to.text})" if station.seen else
                     "a router of another project" for station, hop in loop)
    return (f"{what} to {least.text} would go round in a loop of static routes: {ways}. Nothing is changed. Take the "
            f"route out of one of them, or have it lead elsewhere.")
