# SPDX-License-Identifier: GPL-3.0-or-later
"""Static routes of routers. A route's next hop must be in a subnet of its router, and routes must not form a loop.

If the next hop is the address of another router's port (interface or gateway), that router forwards the packets by its
longest matching route, as in OVN. The router's own subnet wins against a route of the same length: packets end there.
All routes of the same length are followed, because packets take any of them. Packets that leave by a gateway's default
route reach no router of the cloud: external networks hold no interfaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import collapse_addresses, ip_address, ip_network
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context
from magnetar_control.services.network.resources import check_once
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import addresses, ports, routers
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField

from . import router_ports
from .router_ports import GATEWAY, INTERFACE

#: Limits of the check for loops: routers on one path, and routers in total. Each step takes two SQL statements.
DEPTH, MOST = 16, 64
DEFAULT = ("0.0.0.0/0", "::/0")


class AddressRange(NamedTuple):
    """An IP network as a pair of integers (its first and last address), which are fast to compare. *text*: the network
    in CIDR notation."""

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
        """Return whether this network contains *other*."""
        return self.version == other.version and self.first <= other.first and other.last <= self.last

    def meets(self, other: AddressRange) -> bool:
        return self.has(other) or other.has(self)


@dataclass
class RouteHop:
    """A static route of a router. *to*: the destination. *by*: the address of the next hop. *router_id*: the router
    with this address; ``None``: unknown, or no router."""

    to: AddressRange
    by: str
    router_id: str | None = None


@dataclass
class RouteStation:
    """A router in the search for routing loops. *hops*: its static routes. *inside*: (prefix, subnet id) of its
    connected subnets. *seen*: whether the caller may see the router."""

    id: str
    name: str
    seen: bool
    hops: list[RouteHop]
    inside: list[tuple[AddressRange, str]] = field(default_factory=list)

    def knows(self) -> Iterator[AddressRange]:
        """Yield the destinations of the router's static routes and the prefixes of its connected subnets."""
        yield from (hop.to for hop in self.hops)
        yield from (net for net, _subnet in self.inside)

    def leads(self, prefix: AddressRange) -> list[RouteHop]:
        """Return the static routes that the router uses for packets to *prefix*: the most specific matching ones
        (several with the same destination are possible).

        Empty if no route matches, or if a connected subnet matches at least as specifically.
        """
        fitting = [hop for hop in self.hops if hop.to.has(prefix)]  # each contains the next
        size = min((hop.to.size for hop in fitting), default=-1)
        if any(net.has(prefix) and net.size <= size for net, _subnet in self.inside):
            return []
        return [hop for hop in fitting if hop.to.size == size]


def check_static_routes(port_rows: Sequence[RowMapping], routes: Sequence[Document]) -> None:
    """Raise ``InvalidField`` for duplicate static *routes*, and for a route whose next hop is the router itself or in
    none of its subnets. *port_rows*: the ports of the router."""
    check_once("routes", routes)
    for route in routes:
        hop = ip_address(route["nexthop"])
        if hop.version != ip_network(route["destination"]).version:
            raise InvalidField("routes", "must have destination and nexthop of one IP version", route["nexthop"])
        if route["nexthop"] in {port_row["ip_address"] for port_row in port_rows}:
            raise InvalidField("routes", "must not have an address of the router itself as nexthop", route["nexthop"])
    if lost := stranded_route(port_rows, routes):
        raise InvalidField("routes", "must have a nexthop in a subnet that the router has an interface or its gateway "
                                     "in", lost["nexthop"])


def stranded_route(port_rows: Sequence[RowMapping], routes: Sequence[Document]) -> Document | None:
    """Return the first of *routes* whose next hop is in no subnet of the router; ``None`` if there is no such route.
    *port_rows*: the ports of the router."""
    subnets = [ip_network(port_row["cidr"]) for port_row in port_rows]
    return next((route for route in routes if not any(ip_address(route["nexthop"]) in net for net in subnets)), None)


def check_loops(connection: Connection, context: Context, router: Mapping[Any, Any] | RowMapping,
                port_rows: Sequence[RowMapping], routes: Sequence[Document], *, lost_subnet: str = "",
                new_address: str = "") -> None:
    """Raise ``Conflict`` if the static *routes* of *router* lead packets into a loop between routers, or through too
    many routers. *port_rows*: the ports of the router after the change. The caller has locked *router*; this function
    locks the routers that the packets can reach, so that two concurrent changes cannot form a loop together.

    After a change of interfaces, only new loops matter: *lost_subnet* (CIDR): check only packets to this subnet, whose
    interface was removed. *new_address*: check only loops through this next hop, the address of a new interface.
    """
    if not routes:
        return
    start = _station(context, router, routes)
    ranges = [AddressRange.of(lost_subnet)] if lost_subnet else [hop.to for hop in start.hops]
    stations = {start.id: start}
    start.inside = _inside(port_rows)
    level = [start]
    for _step in range(DEPTH):
        level = _next(connection, context, stations, level, ranges)
        if not level or len(stations) > MOST:
            break
    if level:
        raise Conflict(f"The routes of {start.name} lead over more than {DEPTH} routers one after another, or to more "
                       f"than {MOST}, farther than they are followed to see that they make no loop. Nothing is "
                       "changed. Let them lead to fewer routers.", type="RouterRoutesTooLong")
    known_ranges = {address_range for station in stations.values() for address_range in station.knows()}
    known_ranges = {*ranges, *(address_range for address_range in known_ranges
                               if any(other.has(address_range) for other in ranges))}
    for prefix in sorted(known_ranges):
        loop = _loop(stations, start, prefix, new_address, [], set())
        if loop and not (_is_covered(prefix, known_ranges) or _is_summary(stations, start, prefix, loop, known_ranges)):
            visible_ranges = {*ranges, *(address_range for station in stations.values() if station.seen
                                         for address_range in station.knows())}
            raise Conflict(_message(prefix, loop, visible_ranges), type="RouterRoutesInLoop")


def _station(context: Context, router: Mapping[Any, Any] | RowMapping, routes: Iterable[Document]) -> RouteStation:
    name = f"router {router['name']} ({router['id']})" if router["name"] else f"router {router['id']}"
    return RouteStation(router["id"], name, context.is_admin or router["project_id"] == context.project_id,
                        [RouteHop(AddressRange.of(route["destination"]), route["nexthop"]) for route in routes])


def _inside(port_rows: Iterable[RowMapping]) -> list[tuple[AddressRange, str]]:
    return [(AddressRange.of(port_row["cidr"]), port_row["subnet_id"]) for port_row in port_rows]


def _next(connection: Connection, context: Context, stations: dict[str, RouteStation], level: Iterable[RouteStation],
          ranges: Sequence[AddressRange]) -> list[RouteStation]:
    """Do one step of the search for routers that packets to *ranges* can reach. *level*: the routers that the previous
    step has returned. Find the routers that are the next hops of the static routes of *level*, and add them to
    *stations* (by id). Return the added routers that have static routes themselves."""
    hops: dict[tuple[str, int], list[RouteHop]] = {}
    for station in level:
        for hop in station.hops:
            by = AddressRange.of(hop.by)
            if any(hop.to.meets(address_range) for address_range in ranges):
                for subnet in (subnet for net, subnet in station.inside if net.has(by)):
                    hops.setdefault((subnet, ipam.address_number(hop.by)), []).append(hop)
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
                new[row["id"]] = stations[row["id"]] = _station(context, row, row["routes"])
    # Routers without routes lead nowhere.
    leading = [station for station in new.values() if station.hops]
    for port_row in router_ports.ports_of_routers(connection, [station.id for station in leading]) if leading else ():
        new[port_row["device_id"]].inside += _inside([port_row])
    return leading


def _loop(stations: Mapping[str, RouteStation], at: RouteStation, prefix: AddressRange, new_address: str,
          path: list[tuple[RouteStation, RouteHop]], ended: set[str]) -> list[tuple[RouteStation, RouteHop]]:
    """Return the routing loop of packets to *prefix* that have reached the router *at*, as a list of (router, route
    that it uses); empty if there is none. *path*: the routers and routes that the packets have passed. *stations*: the
    known routers, by id. *new_address*: find only a loop through this next hop; empty: any loop. *ended*: ids of
    routers that are known to lead into no loop; this function adds further ones."""
    for hop in at.leads(prefix):
        way = [*path, (at, hop)]
        visited = [station.id for station, _hop in way]
        if hop.router_id in visited:
            if new_address in ("", hop.by):
                return way[visited.index(hop.router_id):]
        elif hop.router_id and hop.router_id in stations and hop.router_id not in ended and (
                loop := _loop(stations, stations[hop.router_id], prefix, new_address, way, ended)):
            return loop
    ended.add(at.id)
    return []


def _is_covered(prefix: AddressRange, known_ranges: Iterable[AddressRange]) -> bool:
    """Return whether more specific prefixes in *known_ranges* cover all addresses of *prefix*, so that no packet is
    routed by *prefix* itself."""
    longer = [ip_network(address_range.text) for address_range in known_ranges if prefix.has(address_range)
              and not address_range.has(prefix)]
    return list(collapse_addresses(longer)) == [ip_network(prefix.text)]  # type: ignore[type-var]


def _is_summary(stations: Mapping[str, RouteStation], start: RouteStation, prefix: AddressRange,
                loop: Sequence[tuple[RouteStation, RouteHop]], known_ranges: Iterable[AddressRange]) -> bool:
    """Return whether the *loop* of packets from *start* to *prefix* is harmless, because it results from a summary
    route (a route for a range of subnets). There are three such cases. First, all routes of the loop are wider than
    *prefix*: for example, a hub routes a whole range to a spoke, the spoke has a default route back, and does not have
    the subnet *prefix* any more. Second, the routes of the loop have different destinations, and one of these is a
    default route. Third, they have different destinations, and *known_ranges* contain a part of *prefix* whose packets
    get into no loop. *stations*: the known routers, by id."""
    to = {hop.to for _station, hop in loop}
    if len(to) > 1 and any(address_range.text in DEFAULT for address_range in to):
        return True
    if all(address_range != prefix and address_range.has(prefix) for address_range in to):
        return True
    return len(to) > 1 and any(
        prefix.has(address_range) and not address_range.has(prefix) and start.leads(address_range)
        and not _loop(stations, start, address_range, "", [], set()) for address_range in known_ranges)


def _message(prefix: AddressRange, loop: Sequence[tuple[RouteStation, RouteHop]],
             visible_ranges: Iterable[AddressRange]) -> str:
    """Return the error text for a *loop* of packets to *prefix*. *visible_ranges*: the prefixes that the caller may
    see. Because *prefix* may belong to another project, the text names the smallest visible prefix that contains it."""
    least = min((address_range for address_range in visible_ranges if address_range.has(prefix)),
                key=lambda address_range: address_range.size)
    subject = "Packets" if least == prefix else "Some packets"
    ways = "; ".join(f"{station.name} by {hop.by} (its route to {hop.to.text})" if station.seen else
                     "a router of another project" for station, hop in loop)
    return (f"{subject} to {least.text} would go round in a loop of static routes: {ways}. Nothing is changed. Take "
            "the "
            f"route out of one of them, or have it lead elsewhere.")
