# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Routers of an engine: interfaces in subnets, a gateway to an external network, static routes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, func, select, update

from magnetar_control.services import Context
from magnetar_control.services.network.ports import trunks, virtual_functions
from magnetar_control.services.network.ports.requested_networks import subnets_of
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    find_resource_row,
    forbidden_by_policy,
    insert_resource_row,
    rows_of_caller,
    run_transaction,
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
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import router_ports, static_routes
from .router_ports import GATEWAY, INTERFACE

#: Maximum number of static routes of a router: the default of Neutron's settings.
MOST_ROUTES = 30


def router_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert router *rows* to documents for callers, with ``gateway`` (Neutron's external_gateway_info) and ``inside``
    (the ids of the subnets of its interfaces)."""
    gateway_rows: dict[str, list[RowMapping]] = {}
    inside: dict[str, list[str]] = {}
    for port_row in router_ports.ports_of_routers(connection, [row["id"] for row in rows]):
        if port_row["device_owner"] == GATEWAY:
            gateway_rows.setdefault(port_row["device_id"], []).append(port_row)
        else:
            inside.setdefault(port_row["device_id"], []).append(port_row["subnet_id"])
    return [{**row, "inside": inside.get(row["id"], []), "gateway": {
        "network_id": gateway_rows[row["id"]][0]["network_id"], "enable_snat": row["enable_snat"],
        "external_fixed_ips": router_ports.fixed_ips_of_rows(gateway_rows[row["id"]])} if row["id"] in gateway_rows
             else None} for row in rows]


def create_router_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a router with its external gateway and static routes."""
    gateway, routes = values.pop("gateway", None), values.pop("routes", None) or []
    values["enable_snat"] = (gateway or {}).get("enable_snat", True)
    insert_resource_row(connection, routers, values)
    if gateway:
        _check_gateway(context, "create", gateway)
        _set_gateway(connection, context, values["id"], gateway)
    port_rows = router_ports.ports_of_routers(connection, [values["id"]])
    static_routes.check_static_routes(port_rows, routes)
    static_routes.check_loops(connection, context, values, port_rows, routes)
    connection.execute(update(routers).where(routers.c.id == values["id"]).values(routes=routes))


def prepare_router_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the router *row*, and change its external gateway. Replace the key ``gateway`` in
    *values* by the column ``enable_snat``. Raises ``InvalidField``, ``Forbidden``, ``Conflict``."""
    # with the routes that others have set meanwhile
    row = find_resource_row(connection, context, ROUTER, row["id"], lock=True)
    if moved := "gateway" in values:
        gateway = values.pop("gateway")
        values["enable_snat"] = (gateway or {}).get("enable_snat", True)
        if gateway:
            _check_gateway(context, "update", gateway, router_documents(connection, [row])[0]["gateway"])
        _set_gateway(connection, context, row["id"], gateway)
    routes = values.get("routes", row["routes"])
    port_rows = router_ports.ports_of_routers(connection, [row["id"]])
    static_routes.check_static_routes(port_rows, routes)
    if moved or "routes" in values:
        static_routes.check_loops(connection, context, {**row, **values}, port_rows, routes)


def _check_gateway(context: Context, verb: str, requested: Document, current: Document | None = None) -> None:
    """Raise ``Forbidden`` unless the caller may choose the attributes of the *requested* external gateway. *current*:
    the present gateway, whose values any caller may repeat. *verb*: create or update, for the error.

    Only admins may turn SNAT off, because servers behind the router could then send with any source address into the
    external network. Only admins may choose the gateway's addresses in the external network.
    """
    same = current if current and current["network_id"] == requested["network_id"] else {}
    if context.is_admin:
        return
    if not requested.get("enable_snat", True) and same.get("enable_snat", True):
        raise forbidden_by_policy(f"{verb}_router:external_gateway_info:enable_snat",
                                  "only admins may turn SNAT off. Leave it "
                                  "out, or ask an admin to set it")
    chosen = requested.get("external_fixed_ips")
    if chosen and not _repeats(chosen, same.get("external_fixed_ips", ())):
        raise forbidden_by_policy(f"{verb}_router:external_gateway_info:external_fixed_ips",
                                  "only admins may choose the "
                                  "address. Leave it out, or ask an admin to set it")


def _repeats(chosen: Sequence[Document], current: Sequence[Document]) -> bool:
    """Return whether the addresses *chosen* (external_fixed_ips) are the *current* addresses, in any order."""
    return len(chosen) == len(current) and all(
        any(address.items() <= have.items() for address in chosen) for have in current)


def _set_gateway(connection: Connection, context: Context, id: str, wish: Document | None) -> None:
    port_rows = router_ports.ports_of_routers(connection, [id])
    have = [port_row for port_row in port_rows if port_row["device_owner"] == GATEWAY]
    if wish and have and have[0]["network_id"] == wish["network_id"] and (
            not wish.get("external_fixed_ips") or _repeats(wish["external_fixed_ips"],
                                                           router_ports.fixed_ips_of_rows(have))):
        return
    if have:
        _check_without_floating(connection, id)
        router_ports.delete_cloud_port(connection, have[0]["id"])
    if not wish:
        return
    network = router_ports.find_external_network(connection, context, wish["network_id"])
    choices = subnets_of(connection, [network["id"]])[network["id"]]
    router_ports.check_apart([port_row for port_row in port_rows if port_row["device_owner"] == INTERFACE], choices)
    port = router_ports.create_cloud_port(connection, GATEWAY, id, network["id"])
    wishes = wish.get("external_fixed_ips") or [{"subnet_id": subnet["id"]}
                                                for subnet in router_ports.first_of_each(choices)]
    for fixed in wishes or [{}]:
        fitting = [subnet for subnet in choices if fixed.get("subnet_id") in (None, subnet["id"])]
        ipam.give_address(connection, port, network["id"], fitting, fixed.get("ip_address"),
                          f"external network {network['id']}")


def _check_without_floating(connection: Connection, id: str, subnet_id: str | None = None) -> None:
    """Raise ``Conflict`` when floating IPs use the router *id*. *subnet_id*: check only floating IPs that lead to ports
    in this subnet."""
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


def prepare_router_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the external gateway of the router *row*, which will be deleted. Raises ``Conflict`` while the router has
    interfaces."""
    port_rows = router_ports.ports_of_routers(connection, [row["id"]])
    if any(port_row["device_owner"] == INTERFACE for port_row in port_rows):
        raise Conflict(f"Router {row['id']} still has ports", type="RouterInUse")
    _check_without_floating(connection, row["id"])
    for port_row in port_rows:
        router_ports.delete_cloud_port(connection, port_row["id"])


def add_interface(connection: Connection, context: Context, id: str, wish: Document) -> Document:
    """Add an interface to the router *id*. *wish*: {subnet_id}: create a port with the gateway address of this subnet;
    or {port_id}: use this port. Return the response body in Neutron's format."""
    router = find_resource_row(connection, context, ROUTER, id, lock=True)
    if len(wish) != 1:
        raise InvalidRequest("Either subnet_id or port_id must be specified, and not both.", type="BadRequest")
    subnet, port = _interface_subnet(connection, context, wish)
    network = connection.execute(select(networks).where(networks.c.id == subnet["network_id"]).with_for_update(
        read=True)).mappings().one()  # it does not become external meanwhile
    if network["project_id"] != context.project_id and not context.is_admin:
        # The router would advertise itself to all guests there, and forward packets of any source address to them.
        raise forbidden_by_policy("add_router_interface",
                                  f"network {network['id']} belongs to another project. Ask an admin to "
                                  "add the interface")
    if not network["by_engine"] or network["external"]:
        network_kind = "external" if network["external"] else f"of type {network['type']}"
        raise InvalidRequest(
            f"Bad router request: network {network['id']} is {network_kind}; a router has interfaces in "
                             "internal networks of OVN.", type="BadRequest")
    router_ports.check_apart(router_ports.ports_of_routers(connection, [id]), [subnet])
    if port is None:
        port = router_ports.create_cloud_port(connection, INTERFACE, id, network["id"], router["project_id"])
        router_ports.give_gateway_address(connection, port, subnet)
    else:
        connection.execute(update(ports).where(ports.c.id == port).values(
            device_id=id, device_owner=INTERFACE, port_security_enabled=False, security_groups=[], pairs=[],
            status="ACTIVE", updated_at=utc_now()))
    if routes := router["routes"]:  # the address may be another router's next hop already
        port_rows = router_ports.ports_of_routers(connection, [id])
        new_address = next(port_row["ip_address"] for port_row in port_rows if port_row["id"] == port)
        static_routes.check_loops(connection, context, router, port_rows, routes, new_address=new_address)
    return _answer(router, port, subnet)


def _answer(router: RowMapping, port: str, subnet: RowMapping) -> Document:
    return {"id": router["id"], "tenant_id": router["project_id"], "project_id": router["project_id"], "port_id": port,
            "network_id": subnet["network_id"], "subnet_id": subnet["id"], "subnet_ids": [subnet["id"]]}


def _interface_subnet(connection: Connection, context: Context, wish: Document) -> tuple[RowMapping, str | None]:
    """Return (row of the subnet, port id) for a new router interface. *wish*: {subnet_id} or {port_id}; for a subnet
    the returned port id is ``None``. A named port must be free and belong to the caller's project; it is locked until
    the transaction ends. Raises ``NotFound``, ``Conflict``, ``InvalidRequest``."""
    if wish.get("subnet_id"):
        query = select(subnets).where(subnets.c.id == wish["subnet_id"], rows_of_caller(subnets)(context))
        subnet = connection.execute(query).mappings().first()
        if subnet is None:
            raise NotFound(f"Subnet {wish['subnet_id']} could not be found.", type="SubnetNotFound")
        if subnet["gateway_ip"] is None:
            raise InvalidRequest("Bad router request: Subnet for router interface must have a gateway IP.",
                                 type="BadRequest")
        return subnet, None
    subnet_rows = connection.execute(select(subnets, *ports.c["device_id", "vnic_type"]).join(
        addresses, addresses.c.subnet_id == subnets.c.id).join(ports, ports.c.id == addresses.c.port_id).where(
        ports.c.id == wish["port_id"], rows_of_caller(ports)(context)).with_for_update(of=ports)).mappings().all()
    if not subnet_rows:
        raise NotFound(f"Port {wish['port_id']} could not be found.", type="PortNotFound")
    if subnet_rows[0]["device_id"]:
        raise Conflict(f"Port {wish['port_id']} is in use by {subnet_rows[0]['device_id']}.", type="PortInUse")
    trunks.check_in_none(connection, str(wish["port_id"]))
    virtual_functions.check_reached({"id": wish["port_id"], "vnic_type": subnet_rows[0]["vnic_type"]})
    if len(subnet_rows) > 1:
        raise InvalidRequest(f"Bad router request: port {wish['port_id']} has addresses of several subnets, and an "
                             "interface is in one. Give the subnet.", type="BadRequest")
    return subnet_rows[0], str(wish["port_id"])


def remove_interface(connection: Connection, context: Context, id: str, wish: Document) -> Document:
    """Remove an interface from the router *id*. *wish*: {subnet_id} or {port_id} of the interface. Return the response
    body in Neutron's format."""
    router = find_resource_row(connection, context, ROUTER, id, lock=True)
    port_rows = router_ports.ports_of_routers(connection, [id])
    mine = [port_row for port_row in port_rows if port_row["device_owner"] == INTERFACE
            and wish.get("subnet_id") in (None, port_row["subnet_id"])
            and wish.get("port_id") in (None, port_row["id"])]
    if not wish or not mine:
        raise NotFound(f"Router {id} does not have an interface with id {wish.get('port_id') or wish.get('subnet_id')}",
                       type="RouterInterfaceNotFound")
    _check_without_floating(connection, id, mine[0]["subnet_id"])
    routes = router["routes"]
    remaining_rows = [port_row for port_row in port_rows if port_row["id"] != mine[0]["id"]]
    if used := static_routes.stranded_route(remaining_rows, routes):
        raise Conflict(f"Router interface for subnet {mine[0]['subnet_id']} on router {id} cannot be deleted, as it is "
                       f"required by one or more routes: that to {used['destination']} by {used['nexthop']} leads "
                       "through it. Remove the routes first.", type="RouterInterfaceInUseByRoute")
    router_ports.delete_cloud_port(connection, mine[0]["id"])
    static_routes.check_loops(connection, context, router, remaining_rows, routes, lost_subnet=mine[0]["cidr"])
    subnet = connection.execute(select(subnets).where(subnets.c.id == mine[0]["subnet_id"])).mappings().one()
    return _answer(router, mine[0]["id"], subnet)


def changed_router_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that any change of the router *row* affects:
    ``router/ID``, and ``port/ID`` of each of its ports."""
    return [f"router/{row['id']}", *(f"port/{port_row['id']}" for port_row in router_ports.ports_of_routers(
        connection, [row["id"]]))]


class RouterStore(NetworkStore):
    """The operations on routers and their interfaces."""

    def interface(self, context: Context, id: str, wish: Document, *, put: bool) -> Document:
        """Add an interface to the router *id* if *put* is true, otherwise remove it. *wish*: {subnet_id} or {port_id}.
        Return the response body in Neutron's format."""
        self._check_writer(context, "add_interface_to" if put else "remove_interface_from")

        def act(connection: Connection) -> Document:
            done = (add_interface if put else remove_interface)(connection, context, id, wish)
            self.log.note(connection, f"router/{id}", f"port/{done['port_id']}")
            return done

        return run_transaction(self.database, act)

    def routes(self, context: Context, id: str, routes: Sequence[Document], *, put: bool) -> Document:
        """Add the static *routes* to the router *id* if *put* is true, otherwise remove them. Return the router. Routes
        that already exist, or are already removed, are no error. Concurrent changes of other routes are not lost.
        Raises ``InvalidRequest`` for too many routes."""
        self._check_writer(context, "add_extraroutes_to" if put else "remove_extraroutes_from")

        def act(connection: Connection) -> Document:
            have: Documents = find_resource_row(connection, context, ROUTER, id, lock=True)["routes"]
            new_routes = [route for route in have if put or route not in routes]
            for route in routes if put else ():
                if route not in new_routes:
                    new_routes.append(route)
            if len(new_routes) > MOST_ROUTES:
                raise InvalidRequest(f"Unable to complete operation for {id}: a router has {MOST_ROUTES} static "
                                     f"routes at most, and these would be {len(new_routes)}.", type="RoutesExhausted")
            self._update(connection, context, id, {"routes": new_routes})
            return self._documents(connection, id)[0]

        return run_transaction(self.database, act)

    def put(self, context: Context, id: str | None, values: Document, parts: Sequence[str] | None,
            dry: bool = False) -> Document:
        """Change the router *id*, or create one if *id* is ``None``, in one transaction, and return it. *values*: the
        fields to set. *parts*: the ids of all subnets that the router will have interfaces in. ``None``: do not change
        the interfaces."""
        self._check_writer(context, "update" if id else "create")
        own_values = {name: value for name, value in values.items() if name != "routes"}
        routes = values.get("routes")

        def act(connection: Connection) -> Document:
            this = id or self.make(connection, context, own_values)
            if id is not None and routes is not None:  # they may use interfaces that go or come
                self._update(connection, context, this, {"routes": []})
            if parts is not None:
                self._leave(connection, context, this, parts)
            if id is not None and own_values:
                self._update(connection, context, this, dict(own_values))
            if parts is not None:
                self._enter(connection, context, this, parts)
            if routes is not None:
                self._update(connection, context, this, {"routes": routes})
            return self._documents(connection, this)[0]

        return run_transaction(self.database, act, dry)

    def join(self, connection: Connection, context: Context, id: str, subnet: str) -> None:
        """Add an interface in the subnet *subnet* to the router *id*, within the caller's transaction."""
        self._enter(connection, context, id, [subnet])

    def dismantle(self, connection: Connection, context: Context, id: str) -> None:
        """Delete the router *id* with its static routes and interfaces, within the caller's transaction."""
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
    return [port_row["subnet_id"] for port_row in router_ports.ports_of_routers(connection, [id])
            if port_row["device_owner"] == INTERFACE]


ROUTER = NetworkResource(
    name="router", table=routers, visible=rows_of_caller(routers), documents=router_documents, create=create_router_row,
    update=prepare_router_update,
    delete=prepare_router_delete, units=changed_router_units, defaults={"name": "", "description": "",
                                                                        "admin_state_up": True})
