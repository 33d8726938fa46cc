# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports as NICs of servers: functions that create them, attach existing ports to a server, and show them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

from sqlalchemy import Connection, RowMapping, bindparam, exists, func, select, update

from magnetar_control.documents import PortOfServer, PortRequest, ServerNic
from magnetar_control.services import Context
from magnetar_control.services.network.security import host_groups
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import (
    OWNER,
    RESERVED,
    SUBPORT,
    TAKEN,
    addresses,
    floating_ips,
    networks,
    ports,
    subnets,
    subports,
    trunks,
)
from magnetar_control.store.engine.database import utc_now
from magnetar_core.addresses import link_local
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.hardware.pci import PAST_OVN
from magnetar_core.kinds.guest_data import MOST

from . import dns, reservations, virtual_functions

#: Maximum number of servers in one statement.
MANY = 500
#: Statements that each new server needs, built once: building one takes longer than executing it.
_PLACES = select(ports.c.id, ports.c.place).where(ports.c.device_id == bindparam("server"), TAKEN)
_OF_NETWORKS = select(
    networks.c.id.label("of"), *networks.c["port_security_enabled", "by_engine"], select(func.count()).select_from(
        ports).where(ports.c.device_id == bindparam("server"), TAKEN).scalar_subquery().label("taken"),
    subnets).join_from(
    networks, subnets, isouter=True).where(networks.c.id.in_(bindparam("ids", expanding=True))).order_by(
    subnets.c.created_at, subnets.c.id).with_for_update(read=True, of=networks)
_NICS = select(
    *ports.c["id", "network_id", "mac_address", "tag", "made_for_server", "status", "host", "port_security_enabled",
              "vnic_type", "profile", "security_groups"],
    networks.c.name.label("network"), reservations.POLICY.label("policy"),
    *networks.c["type", "bridge", "segment", "mtu", "by_engine"],
    *addresses.c["subnet_id", "ip_address"],
    *subnets.c["cidr", "enable_dhcp", "gateway_ip", "dns_nameservers", "host_routes", "ipv6_address_mode"]).join_from(
    ports, networks, networks.c.id == ports.c.network_id).outerjoin(
    addresses, addresses.c.port_id == ports.c.id).outerjoin(subnets, subnets.c.id == addresses.c.subnet_id)
_BY_SERVER = _NICS.add_columns(exists().where(trunks.c.port_id == ports.c.id).label("carries")).where(
    ports.c.device_id == bindparam("server"), TAKEN, ports.c.place != RESERVED).order_by(
    ports.c.place, ports.c.created_at, ports.c.id, addresses.c.number)
_CARRIED = _NICS.add_columns(subports.c.segmentation_id, trunks.c.port_id.label("parent")).join(
    subports, subports.c.port_id == ports.c.id).join(trunks, trunks.c.id == subports.c.trunk_id).where(
    trunks.c.port_id.in_(bindparam("parents", expanding=True))).order_by(
    subports.c.segmentation_id, addresses.c.number)


def host_name(network_id: str) -> str:
    """Return the name that the network *network_id* has on the hosts whose agents create it."""
    return f"mag-{network_id[:8]}"


def allocate_network_ports(connection: Connection, context: Context, server: tuple[str, str, str],
                           requested: Sequence[PortRequest], groups: Sequence[str],
                           check: Callable[[int], None]) -> list[ServerNic]:
    """Create or attach a server's ports, and return its NICs for *requested*. *server*: (uuid, host name, host).
    *groups*: security groups of new ports. *check*: called with the number of new ports; may raise a quota error."""
    server_id, hostname, host = server
    networks_by_id, taken = _networks(connection, server_id, {request["network_id"] for request in requested})
    rows = connection.execute(_PLACES, {"server": server_id}).all() if taken else ()
    have = {row.id for row in rows if row.place != RESERVED}
    place = max((row.place for row in rows), default=-1)
    # The uuid of a created port is derived from its server: a repeated call creates no second port.
    ids = [request.get("port_id") or str(uuid.uuid5(uuid.UUID(server_id), f"port {request.get('make') or number}"))
           for number, request in enumerate(requested)]
    new = [request for id, request in zip(ids, requested, strict=True) if id not in have]
    check(sum(not request.get("port_id") for request in new))
    for id, request in zip(ids, requested, strict=True):
        if id in have:
            continue
        place += 1
        network, choices = networks_by_id[request["network_id"]]
        by_engine = network["by_engine"] and request.get("vnic_type") not in PAST_OVN
        engine_columns = {"dns_name": dns.server_dns_name(hostname), "host": host} if by_engine else {"dns_name": ""}
        values = {"device_id": server_id, "device_owner": OWNER, "place": place, "tag": request.get("tag"),
                  **engine_columns}
        if request.get("port_id"):
            _take_port(connection, id, hostname, values)
        else:
            secure = network["port_security_enabled"]
            _make_port(connection, context, id, request, choices,
                       {**values, "port_security_enabled": secure,
                        "security_groups": list(groups) if secure else []})
    nics_by_port = {nic["port_id"]: nic for nic in nics_of_server(connection, server_id, lock=True)}
    for id, request in zip(ids, requested, strict=True):
        if id not in have and request.get("devices", {}) != nics_by_port[id].get("devices", {}):
            raise Conflict(f"The binding:vnic_type of port {id} changed after the server had claimed what the port "
                           "asks of a host. Try again.", type="PortInUse")
        if id not in have and request.get("resources", {}) != nics_by_port[id].get("resources", {}):
            raise Conflict(f"The QoS policy of port {id}, or its rules of minimum bandwidth, changed after the server "
                           "had claimed what the port asks of a host. Try again.", type="QosPolicyInUse")
    return [nics_by_port[id] for id in ids]


def _networks(connection: Connection, server_id: str,
              ids: Collection[str]) -> tuple[dict[str, tuple[RowMapping, list[RowMapping]]], int]:
    """Return (networks, number of ports that the server has). The networks are {network id: (row of the network, rows
    of its subnets, oldest first)} for *ids*. Raises ``NotFound`` for a network that was deleted meanwhile."""
    networks_by_id: dict[str, tuple[RowMapping, list[RowMapping]]] = {}
    network_ids, taken = sorted(ids), 0
    for row in connection.execute(_OF_NETWORKS, {"ids": network_ids, "server": server_id}).mappings():
        taken = row["taken"]
        _network, choices = networks_by_id.setdefault(row["of"], (row, []))
        if row["id"] is not None:
            choices.append(row)
    if missing_ids := [id for id in network_ids if id not in networks_by_id]:
        raise NotFound(f"Network {missing_ids[0]} could not be found.", type="NetworkNotFound")
    return networks_by_id, taken


def _take_port(connection: Connection, id: str, hostname: str, values: Document) -> None:
    """Attach the existing port *id* to a server: set the columns *values* of its row. *hostname*: the server's host
    name. Raises ``NotFound``; ``Conflict`` when the port is neither free nor reserved for the server;
    ``InvalidRequest`` when its ``dns_name`` does not match *hostname*."""
    reserved = (ports.c.device_id == values["device_id"]) & (ports.c.place == RESERVED)
    free = update(ports).where(ports.c.id == id, (ports.c.device_id == "") | reserved, ports.c.dns_name.in_(
        ("", values["dns_name"])), ports.c.device_owner != SUBPORT)
    if connection.execute(free.values(**values, updated_at=utc_now())).rowcount:
        return
    port = connection.execute(select(*ports.c["dns_name", "device_id", "place"]).where(ports.c.id == id)).first()
    if port is None:
        raise NotFound(f"Port {id} could not be found.", type="PortNotFound")
    if port.device_id == "" or (port.device_id == values["device_id"] and port.place == RESERVED):
        dns.check_server(id, port.dns_name, hostname)
    raise Conflict(f"Port {id} is still in use.", type="PortInUse")


def _make_port(connection: Connection, context: Context, id: str, request: PortRequest, choices: Sequence[RowMapping],
               values: Document) -> None:
    own_mac = {"mac_address": request["mac"]} if "mac" in request else {}
    mac = ipam.add_port(connection, id=id, project_id=context.project_id, name="", network_id=request["network_id"],
                        status="DOWN", made_for_server=True, created_at=utc_now(), **own_mac, **values)
    if mac is None:
        if own_mac and not connection.execute(select(ports.c.id).where(ports.c.id == id)).first():
            raise Conflict(f"The MAC address {request['mac']} belongs to another port.", type="MacAddressInUse")
        return  # another conductor created it meanwhile
    if "addresses" in request:
        for address in request["addresses"]:
            ipam.give_address(connection, id, request["network_id"], choices, address,
                              f"any of the subnets on network {request['network_id']}")
    elif request.get("fixed_ip"):
        ipam.give_address(connection, id, request["network_id"], choices, request["fixed_ip"],
                          f"any of the subnets on network {request['network_id']}")
        ipam.give_automatic(connection, id, mac, choices)
    else:
        ipam.give_all(connection, id, mac, choices, request["network_id"])


def nics_of_server(connection: Connection, server_id: str, *, lock: bool = False) -> list[ServerNic]:
    """Return the NICs of a server, in attachment order. *lock*: until the transaction ends, lock the rows that
    determine which host resources (bandwidth, devices) the NICs need."""
    return cast("list[ServerNic]", _nics_of_server(connection, server_id, states=False, lock=lock))


def ports_of_server(connection: Connection, server_id: str) -> list[PortOfServer]:
    """Return the NICs of a server, in attachment order, each with the status and host of its port."""
    return cast("list[PortOfServer]", _nics_of_server(connection, server_id, states=True))


def _nics_of_server(connection: Connection, server_id: str, *, states: bool, lock: bool = False) -> list[Document]:
    rows: dict[str, list[RowMapping]] = {}
    for row in connection.execute(_BY_SERVER, {"server": server_id}).mappings():
        rows.setdefault(row["id"], []).append(row)
    bandwidth_by_port = reservations.bandwidth_of_ports(connection, [each[0] for each in rows.values()], lock=lock)
    rates = virtual_functions.function_rates(connection, [each[0] for each in rows.values()])
    carried = _vlans(connection, [id for id, each in rows.items() if each[0]["carries"]])
    return [{**_nic(sorted(each, key=_is_six), states, rates.get(id, {}), carried.get(id)),
             **({"resources": bandwidth_by_port[id]} if id in bandwidth_by_port else {})} for id, each in rows.items()]


def _vlans(connection: Connection, parents: Sequence[str]) -> dict[str, list[Document]]:
    """Return the trunk subports of each of the ports *parents*, with the data that the guest needs to configure them:
    {parent port: [{segmentation_id, network_id, port_id, mac, address, …}, sorted by VLAN tag]}."""
    rows: dict[str, list[RowMapping]] = {}
    for row in connection.execute(_CARRIED, {"parents": parents}).mappings() if parents else ():
        rows.setdefault(row["id"], []).append(row)
    vlans_by_parent: dict[str, list[Document]] = {}
    for each in rows.values():
        nic = _nic(sorted(each, key=_is_six), states=False, rate={})
        vlans_by_parent.setdefault(each[0]["parent"], []).append({
            "segmentation_id": each[0]["segmentation_id"], "network_id": nic["network_id"], "port_id": nic["port_id"],
            **{name: nic["on_host"][name] for name in ("mac", "address") if name in nic["on_host"]},
            **nic.get("told", {})})
    return vlans_by_parent


def _is_six(row: RowMapping | Document) -> bool:
    """Return whether the address in *row* is IPv6. As a sort key this sorts IPv4 addresses first."""
    return ":" in (row["ip_address"] or "")


#: Built once: building it takes longer than executing it.
_FIXED = select(*addresses.c["port_id", "subnet_id", "ip_address"]).where(
    addresses.c.port_id.in_(bindparam("ids", expanding=True))).order_by(addresses.c.number)


def addresses_of(connection: Connection, ids: Sequence[str]) -> dict[str, list[Document]]:
    """Return the addresses of the ports *ids*: {port id: value of its field ``fixed_ips``}."""
    addresses_by_port: dict[str, list[Document]] = {}
    for row in connection.execute(_FIXED, {"ids": list(ids)}):
        addresses_by_port.setdefault(row.port_id, []).append({"subnet_id": row.subnet_id, "ip_address": row.ip_address})
    return {id: sorted(fixed_ips, key=_is_six) for id, fixed_ips in addresses_by_port.items()}


def floating_ips_by_server(connection: Connection, server_ids: Sequence[str]) -> dict[str, dict[tuple[str, str], str]]:
    """Return the floating IPs of the servers *server_ids*: {server: {(MAC, fixed address): floating address}}."""
    floating_by_server: dict[str, dict[tuple[str, str], str]] = {}
    for at in range(0, len(server_ids), MANY):
        for row in connection.execute(select(
                *ports.c["device_id", "mac_address"],
                *floating_ips.c["fixed_ip_address", "floating_ip_address"]).join(
                ports, ports.c.id == floating_ips.c.port_id).where(
                ports.c.device_id.in_(server_ids[at:at + MANY]), TAKEN)):
            floating_by_server.setdefault(row.device_id, {})[row.mac_address,
                                                             row.fixed_ip_address] = row.floating_ip_address
    return floating_by_server


def _nic(rows: Sequence[RowMapping], states: bool, rate: Mapping[str, int],
         vlans: Sequence[Document] | None = None) -> Document:
    """Return the NIC of a port, for the server and its agent. *rows*: the port's rows, one for each address. *states*:
    whether to include the port's status and host. *rate*: for a virtual function, its rate limits from the QoS policy.
    *vlans*: the port's subports, from ``_vlans``."""
    row, flat = rows[0], rows[0]["type"] == "flat"
    function = virtual_functions.is_host_device(row)
    engine = row["by_engine"] and not function
    fixed = [{"subnet_id": address_row["subnet_id"], "ip_address": address_row["ip_address"]} for address_row in rows
             if address_row["ip_address"]]
    devices = virtual_functions.devices_of_port(row)
    on_host = virtual_functions.host_device_nic(row, rate) if devices else {"port": row["id"]} if engine else {
        "bridge": row["bridge"]} if flat else {"network": host_name(row["network_id"])}
    on_host["mac"] = row["mac_address"]
    four = [address_row for address_row in rows if address_row["ip_address"] and not _is_six(address_row)]
    if four:
        # Without DHCP on the bridge, the guest sets its address itself, with the prefix.
        static = next((address_row for address_row in four if function or (
            (flat or engine) and address_row["enable_dhcp"] is False)), None)
        on_host["address"] = (f"{static['ip_address']}/{static['cidr'].partition('/')[2]}" if static else
                              four[0]["ip_address"])
    if not (engine or function):  # those filter by themselves
        on_host.update(_security(row, fixed, flat))
    nic = {"port_id": row["id"], "network_id": row["network_id"], "network": row["network"], "mac": row["mac_address"],
           "fixed_ips": fixed, "tag": row["tag"], "created": row["made_for_server"], "on_host": on_host,
           **({"network_affinity": near} if (near := reservations.network_affinity(row)) else {}),
           **({"devices": devices} if devices else {}),
           **({"told": guest_facts} if (guest_facts := {**_guest_facts(rows), **({"vlans": vlans} if vlans else {})})
              else {})}
    return {**nic, "port_state": row["status"], "host": row["host"]} if states else nic


def _security(row: RowMapping, fixed: Sequence[Document], flat: bool) -> Document:
    """Return the fields of a NIC for port security, in the form that agents need. If port security is off, return only
    ``port_security`` (false). Otherwise return ``security_groups`` and, if not empty, ``allowed_addresses``: the
    addresses after the first one and, if *flat*, the link-local address. *row*: the port. *fixed*: the port's
    addresses. *flat*: whether the agent connects the port to a bridge of the host."""
    if not row["port_security_enabled"]:
        return {"port_security": False}
    other_addresses = [fixed_ip["ip_address"] for fixed_ip in fixed[1:]]
    # On a bridge the agent does not know that the port's only IPv6 address is the link-local one.
    allowed_addresses = [*other_addresses, *([link_local(row["mac_address"])] if flat and fixed else ())]
    return {"security_groups": host_groups.groups_of_port(row),
            **({"allowed_addresses": allowed_addresses} if allowed_addresses else {})}


def _guest_facts(rows: Sequence[RowMapping]) -> Document:
    """Return the network data that the guest gets: the MTU, the gateway, name servers and routes of the first IPv4
    subnet, and the IPv6 addresses. *rows*: the port's rows, one for each address. Empty values are omitted."""
    row, six = rows[0], [address_row for address_row in rows if _is_six(address_row)]
    facts: Document = {"mtu": row["mtu"] if row["by_engine"] or row["mtu"] != 1500 else None}
    if not _is_six(row):
        facts.update(gateway=row["gateway_ip"], dns_nameservers=(row["dns_nameservers"] or [])[:MOST],
                     host_routes=[{name: route[name] for name in ("destination", "nexthop")}
                                  for route in (row["host_routes"] or [])[:MOST]])
    facts["ipv6"] = [{
        "address": f"{address_row['ip_address']}/{address_row['cidr'].partition('/')[2]}",
        "mode": address_row["ipv6_address_mode"],
        "gateway": address_row["gateway_ip"], "dns_nameservers": address_row["dns_nameservers"][:MOST]}
        for address_row in six[:MOST]]
    return {name: value for name, value in facts.items() if value}
