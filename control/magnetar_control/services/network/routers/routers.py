# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Routers of an engine: interfaces in subnets, a gateway to an external network, static routes."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from sqlalchemy import Connection, RowMapping, func, select, update

from magnetar_control.services import Context, Document
from magnetar_control.services.network.ports import trunks, virtual_functions
from magnetar_control.services.network.ports.requested_networks import subnets_of
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    add,
    find,
    forbidden,
    own,
    transacted,
)
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import (
    addresses,
    floating_ips,
    forwardings,
    networks,
    ports,
    routers,
    subnets,
)
from magnetar_control.store.engine.database import now
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import router_ports, static_routes
from .router_ports import GATEWAY, INTERFACE

#: Static routes of a router, as Neutron's settings have it by default.
MOST_ROUTES = 30


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their gateways and routes; ``inside``: the subnets of their interfaces."""
    held: dict[str, list[RowMapping]] = {}
    inside: dict[str, list[str]] = {}
    for one in router_ports.of(connection, [row["id"] for row in rows]):
        if one["device_owner"] == GATEWAY:
            held.setdefault(one["device_id"], []).append(one)
        else:
            inside.setdefault(one["device_id"], []).append(one["subnet_id"])
    return [{**row, "inside": inside.get(row["id"], []), "routes": orjson.loads(row["routes"]), "gateway": {
        "network_id": held[row["id"]][0]["network_id"], "enable_snat": row["enable_snat"],
        "external_fixed_ips": router_ports.view(held[row["id"]])} if row["id"] in held else None} for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it, with its gateway."""
    gateway, routes = values.pop("gateway", None), values.pop("routes", None) or []
    values["enable_snat"] = (gateway or {}).get("enable_snat", True)
    add(connection, routers, values)
    if gateway:
        _check_gateway(context, "create", gateway)
        _set_gateway(connection, context, values["id"], gateway)
    found = router_ports.of(connection, [values["id"]])
    static_routes.check(found, routes)
    static_routes.check_loops(connection, context, values, found, routes)
    connection.execute(update(routers).where(routers.c.id == values["id"]).values(routes=orjson.dumps(routes).decode()))


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check and complete the values; the gateway is changed here."""
    row = find(connection, context, ROUTER, row["id"], lock=True)  # with the routes that others have set meanwhile
    if moved := "gateway" in values:
        gateway = values.pop("gateway")
        values["enable_snat"] = (gateway or {}).get("enable_snat", True)
        if gateway:
            _check_gateway(context, "update", gateway, documents(connection, [row])[0]["gateway"])
        _set_gateway(connection, context, row["id"], gateway)
    routes = values["routes"] if "routes" in values else orjson.loads(row["routes"])
    found = router_ports.of(connection, [row["id"]])
    static_routes.check(found, routes)
    if moved or "routes" in values:
        static_routes.check_loops(connection, context, {**row, **values}, found, routes)


def _check_gateway(context: Context, verb: str, requested: Document, current: Document | None = None) -> None:
    """Raise ``Forbidden`` unless the caller may choose the attributes of the *requested* gateway.

    Only admins turn SNAT off: the servers of the router would send from any address into the external network. Only
    admins choose addresses there. Everybody may repeat the values of the *current* gateway in the same network.
    """
    same = current if current and current["network_id"] == requested["network_id"] else {}
    if context.is_admin:
        return
    if not requested.get("enable_snat", True) and same.get("enable_snat", True):
        raise forbidden(f"{verb}_router:external_gateway_info:enable_snat", "only admins may turn SNAT off. Leave it "
                        "out, or ask an admin to set it")
    chosen = requested.get("external_fixed_ips")
    if chosen and not _repeats(chosen, same.get("external_fixed_ips", ())):
        raise forbidden(f"{verb}_router:external_gateway_info:external_fixed_ips", "only admins may choose the "
                        "address. Leave it out, or ask an admin to set it")


def _repeats(chosen: Sequence[Document], current: Sequence[Document]) -> bool:
    """Return whether the *chosen* ``external_fixed_ips`` are the *current* ones, in any order."""
    return len(chosen) == len(current) and all(
        any(address.items() <= have.items() for address in chosen) for have in current)


def _set_gateway(connection: Connection, context: Context, id: str, wish: Document | None) -> None:
    found = router_ports.of(connection, [id])
    have = [one for one in found if one["device_owner"] == GATEWAY]
    if wish and have and have[0]["network_id"] == wish["network_id"] and (
            not wish.get("external_fixed_ips") or _repeats(wish["external_fixed_ips"], router_ports.view(have))):
        return
    if have:
        _check_without_floating(connection, id)
        router_ports.remove(connection, have[0]["id"])
    if not wish:
        return
    network = router_ports.external(connection, context, wish["network_id"])
    choices = subnets_of(connection, [network["id"]])[network["id"]]
    router_ports.check_apart([one for one in found if one["device_owner"] == INTERFACE], choices)
    port = router_ports.make(connection, GATEWAY, id, network["id"])
    wishes = wish.get("external_fixed_ips") or [{"subnet_id": one["id"]} for one in router_ports.first_of_each(choices)]
    for fixed in wishes or [{}]:
        fitting = [one for one in choices if fixed.get("subnet_id") in (None, one["id"])]
        ipam.give(connection, port, network["id"], fitting, fixed.get("ip_address"),
                  f"external network {network['id']}")


def _check_without_floating(connection: Connection, id: str, subnet_id: str | None = None) -> None:
    """Raises ``Conflict`` where floating IPs reach servers through the router, of one subnet or any."""
    query = select(floating_ips.c.floating_ip_address).where(floating_ips.c.router_id == id)
    if subnet_id:
        forwarding = forwardings.c
        query = query.outerjoin(forwardings, forwarding.floatingip_id == floating_ips.c.id).join(
            addresses, (addresses.c.port_id == func.coalesce(floating_ips.c.port_id, forwarding.internal_port_id)) & (
                addresses.c.ip_address == func.coalesce(
                    floating_ips.c.fixed_ip_address, forwarding.internal_ip_address))).where(
            addresses.c.subnet_id == subnet_id)
    if used := connection.execute(query.limit(1)).scalar():
        raise Conflict(f"Router {id} is needed by floating IP {used}. Disassociate or delete that one first.",
                       type="RouterInterfaceInUseByFloatingIP" if subnet_id else
                       "RouterExternalGatewayInUseByFloatingIp")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when it has no interfaces, with its gateway."""
    found = router_ports.of(connection, [row["id"]])
    if any(one["device_owner"] == INTERFACE for one in found):
        raise Conflict(f"Router {row['id']} still has ports", type="RouterInUse")
    _check_without_floating(connection, row["id"])
    for one in found:
        router_ports.remove(connection, one["id"])


def add_interface(connection: Connection, context: Context, id: str, wish: Document) -> Document:
    """An interface in a subnet, with its gateway's address, or of a port. Returns Neutron's answer."""
    router = find(connection, context, ROUTER, id, lock=True)
    if len(wish) != 1:
        raise InvalidRequest("Either subnet_id or port_id must be specified, and not both.", type="BadRequest")
    subnet, port = _place(connection, context, wish)
    network = connection.execute(select(networks).where(networks.c.id == subnet["network_id"]).with_for_update(
        read=True)).mappings().one()  # it becomes no external one meanwhile
    if network["project_id"] != context.project_id and not context.is_admin:
        # The router would advertise itself to all guests there, and forward packets of any source address to them.
        raise forbidden("add_router_interface", f"network {network['id']} belongs to another project. Ask an admin to "
                        "add the interface")
    if not network["by_engine"] or network["external"]:
        what = "external" if network["external"] else f"of type {network['type']}"
        raise InvalidRequest(f"Bad router request: network {network['id']} is {what}; a router has interfaces in "
                             "internal networks of OVN.", type="BadRequest")
    router_ports.check_apart(router_ports.of(connection, [id]), [subnet])
    if port is None:
        port = router_ports.make(connection, INTERFACE, id, network["id"], router["project_id"])
        router_ports.give_gateway_address(connection, port, subnet)
    else:
        connection.execute(update(ports).where(ports.c.id == port).values(
            device_id=id, device_owner=INTERFACE, port_security_enabled=False, security_groups="[]", pairs="[]",
            status="ACTIVE", updated_at=now()))
    if routes := orjson.loads(router["routes"]):  # and the address may be another router's next hop already
        found = router_ports.of(connection, [id])
        came = next(one["ip_address"] for one in found if one["id"] == port)
        static_routes.check_loops(connection, context, router, found, routes, came=came)
    return _answer(router, port, subnet)


def _answer(router: RowMapping, port: str, subnet: RowMapping) -> Document:
    return {"id": router["id"], "tenant_id": router["project_id"], "project_id": router["project_id"], "port_id": port,
            "network_id": subnet["network_id"], "subnet_id": subnet["id"], "subnet_ids": [subnet["id"]]}


def _place(connection: Connection, context: Context, wish: Document) -> tuple[RowMapping, str | None]:
    """The subnet that is meant, and the port, of the caller's project, which nobody else takes until the transaction
    ends."""
    if wish.get("subnet_id"):
        query = select(subnets).where(subnets.c.id == wish["subnet_id"], own(subnets)(context))
        subnet = connection.execute(query).mappings().first()
        if subnet is None:
            raise NotFound(f"Subnet {wish['subnet_id']} could not be found.", type="SubnetNotFound")
        if subnet["gateway_ip"] is None:
            raise InvalidRequest("Bad router request: Subnet for router interface must have a gateway IP.",
                                 type="BadRequest")
        return subnet, None
    found = connection.execute(select(subnets, *ports.c["device_id", "vnic_type"]).join(
        addresses, addresses.c.subnet_id == subnets.c.id).join(ports, ports.c.id == addresses.c.port_id).where(
        ports.c.id == wish["port_id"], own(ports)(context)).with_for_update(of=ports)).mappings().all()
    if not found:
        raise NotFound(f"Port {wish['port_id']} could not be found.", type="PortNotFound")
    if found[0]["device_id"]:
        raise Conflict(f"Port {wish['port_id']} is in use by {found[0]['device_id']}.", type="PortInUse")
    trunks.check_in_none(connection, str(wish["port_id"]))
    virtual_functions.check_reached({"id": wish["port_id"], "vnic_type": found[0]["vnic_type"]})
    if len(found) > 1:
        raise InvalidRequest(f"Bad router request: port {wish['port_id']} has addresses of several subnets, and an "
                             "interface is in one. Give the subnet.", type="BadRequest")
    return found[0], str(wish["port_id"])


def remove_interface(connection: Connection, context: Context, id: str, wish: Document) -> Document:
    """Take an interface away, by its subnet_id or port_id. Returns Neutron's answer."""
    router = find(connection, context, ROUTER, id, lock=True)
    found = router_ports.of(connection, [id])
    mine = [one for one in found if one["device_owner"] == INTERFACE
            and wish.get("subnet_id") in (None, one["subnet_id"]) and wish.get("port_id") in (None, one["id"])]
    if not wish or not mine:
        raise NotFound(f"Router {id} does not have an interface with id {wish.get('port_id') or wish.get('subnet_id')}",
                       type="RouterInterfaceNotFound")
    _check_without_floating(connection, id, mine[0]["subnet_id"])
    rest, routes = [one for one in found if one["id"] != mine[0]["id"]], orjson.loads(router["routes"])
    if used := static_routes.stranded(rest, routes):
        raise Conflict(f"Router interface for subnet {mine[0]['subnet_id']} on router {id} cannot be deleted, as it is "
                       f"required by one or more routes: that to {used['destination']} by {used['nexthop']} leads "
                       "through it. Remove the routes first.", type="RouterInterfaceInUseByRoute")
    router_ports.remove(connection, mine[0]["id"])
    static_routes.check_loops(connection, context, router, rest, routes, left=mine[0]["cidr"])
    subnet = connection.execute(select(subnets).where(subnets.c.id == mine[0]["subnet_id"])).mappings().one()
    return _answer(router, mine[0]["id"], subnet)


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """The router and its ports, also those that go."""
    return [f"router/{row['id']}", *(f"port/{one['id']}" for one in router_ports.of(connection, [row["id"]]))]


class RouterStore(NetworkStore):
    """Routers, with their interfaces."""

    def interface(self, context: Context, id: str, wish: Document, *, put: bool) -> Document:
        """Add an interface (*put*), or remove one; *wish*: {subnet_id} or {port_id}."""
        self._check_writer(context, "add_interface_to" if put else "remove_interface_from")

        def act(connection: Connection) -> Document:
            done = (add_interface if put else remove_interface)(connection, context, id, wish)
            self.log.note(connection, f"router/{id}", f"port/{done['port_id']}")
            return done

        return transacted(self.database, act)

    def routes(self, context: Context, id: str, given: Sequence[Document], *, put: bool) -> Document:
        """Add the static routes *given* (*put*), or remove them; those that are there, or are not, stay so. Others are
        as another caller has them meanwhile. Raises ``InvalidRequest`` where there would be more than a router has."""
        self._check_writer(context, "add_extraroutes_to" if put else "remove_extraroutes_from")

        def act(connection: Connection) -> Document:
            have = orjson.loads(find(connection, context, ROUTER, id, lock=True)["routes"])
            wanted = [one for one in have if put or one not in given]
            for one in given if put else ():
                if one not in wanted:
                    wanted.append(one)
            if len(wanted) > MOST_ROUTES:
                raise InvalidRequest(f"Unable to complete operation for {id}: a router has {MOST_ROUTES} static "
                                     f"routes at most, and these would be {len(wanted)}.", type="RoutesExhausted")
            self._update(connection, context, id, {"routes": wanted})
            return self._documents(connection, id)[0]

        return transacted(self.database, act)

    def put(self, context: Context, id: str | None, values: Document, held: Sequence[str] | None,
            dry: bool = False) -> Document:
        """Make a router of *values* (without *id*), or change it, so that it has interfaces in the subnets *held*
        and no others; ``None``: as they are. One transaction."""
        self._check_writer(context, "update" if id else "create")
        own = {name: value for name, value in values.items() if name != "routes"}
        routes = values.get("routes")

        def act(connection: Connection) -> Document:
            this = id or self.make(connection, context, own)
            if id is not None and routes is not None:  # which may lead by what goes, and by what comes
                self._update(connection, context, this, {"routes": []})
            if held is not None:
                self._leave(connection, context, this, held)
            if id is not None and own:
                self._update(connection, context, this, dict(own))
            if held is not None:
                self._enter(connection, context, this, held)
            if routes is not None:
                self._update(connection, context, this, {"routes": routes})
            return self._documents(connection, this)[0]

        return transacted(self.database, act, dry)

    def join(self, connection: Connection, context: Context, id: str, subnet: str) -> None:
        """An interface in *subnet*, in a transaction that does more."""
        self._enter(connection, context, id, [subnet])

    def dismantle(self, connection: Connection, context: Context, id: str) -> None:
        """Remove a router with its routes and interfaces, in a transaction that does more."""
        self._update(connection, context, id, {"routes": []})
        self._leave(connection, context, id, [])
        self.drop(connection, context, id)

    def _leave(self, connection: Connection, context: Context, id: str, inside: Sequence[str]) -> None:
        for subnet in sorted(set(_inside(connection, id)) - set(inside)):
            done = remove_interface(connection, context, id, {"subnet_id": subnet})
            self.log.note(connection, f"router/{id}", f"port/{done['port_id']}")

    def _enter(self, connection: Connection, context: Context, id: str, inside: Sequence[str]) -> None:
        have = _inside(connection, id)
        for subnet in inside:
            if subnet not in have:
                done = add_interface(connection, context, id, {"subnet_id": subnet})
                self.log.note(connection, f"router/{id}", f"port/{done['port_id']}")


def _inside(connection: Connection, id: str) -> list[str]:
    return [one["subnet_id"] for one in router_ports.of(connection, [id]) if one["device_owner"] == INTERFACE]


ROUTER = NetworkResource(
    name="router", table=routers, visible=own(routers), documents=documents, create=create, update=change,
    delete=delete, units=units, defaults={"name": "", "description": "", "admin_state_up": True})
