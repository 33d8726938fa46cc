# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports as NICs of servers: taken, made and shown."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

import orjson
from sqlalchemy import Connection, RowMapping, bindparam, exists, func, select, update

from magnetar_control.services import Context, Document
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
from magnetar_control.store.engine.database import now
from magnetar_core.addresses import link_local
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.hardware.pci import PAST_OVN
from magnetar_core.kinds.guest_data import MOST

from . import dns, reservations, virtual_functions

#: Servers in one statement.
MANY = 500
#: Statements that each new server needs, made once: to make one takes longer than to ask it.
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
    """Name on the hosts of the network that the agents make for *network_id*."""
    return f"mag-{network_id[:8]}"


def allocated(connection: Connection, context: Context, server: tuple[str, str, str], requested: Sequence[Document],
              groups: Sequence[str], check: Callable[[int], None]) -> list[Document]:
    """The NICs of *requested*; what is not there yet is made, or taken from the free ports. *server*: its uuid, its
    host name, and the host where it is to be, which ports of the engine are told. *check* is told how many are to be
    made."""
    server_id, hostname, host = server
    there, taken = _networks(connection, server_id, {wanted["network_id"] for wanted in requested})
    rows = connection.execute(_PLACES, {"server": server_id}).all() if taken else ()
    have = {row.id for row in rows if row.place != RESERVED}
    place = max((row.place for row in rows), default=-1)
    # The uuid of a port that is made follows from its server: the same, however often it is asked for.
    ids = [wanted.get("port_id") or str(uuid.uuid5(uuid.UUID(server_id), f"port {wanted.get('make') or number}"))
           for number, wanted in enumerate(requested)]
    new = [wanted for id, wanted in zip(ids, requested, strict=True) if id not in have]
    check(sum(not wanted.get("port_id") for wanted in new))
    for id, wanted in zip(ids, requested, strict=True):
        if id in have:
            continue
        place += 1
        network, choices = there[wanted["network_id"]]
        by_engine = network["by_engine"] and wanted.get("vnic_type") not in PAST_OVN
        told = {"dns_name": dns.of_server(hostname), "host": host} if by_engine else {"dns_name": ""}
        values = {"device_id": server_id, "device_owner": OWNER, "place": place, "tag": wanted.get("tag"), **told}
        if wanted.get("port_id"):
            _take(connection, id, hostname, values)
        else:
            secure = network["port_security_enabled"]
            _make(connection, context, id, wanted, choices,
                  {**values, "port_security_enabled": secure,
                   "security_groups": orjson.dumps(list(groups) if secure else []).decode()})
    seen = {nic["port_id"]: nic for nic in found(connection, server_id, states=False, lock=True)}
    for id, wanted in zip(ids, requested, strict=True):
        if id not in have and wanted.get("devices", {}) != seen[id].get("devices", {}):
            raise Conflict(f"The binding:vnic_type of port {id} changed after the server had claimed what the port "
                           "asks of a host. Try again.", type="PortInUse")
        if id not in have and wanted.get("resources", {}) != seen[id].get("resources", {}):
            raise Conflict(f"The QoS policy of port {id}, or its rules of minimum bandwidth, changed after the server "
                           "had claimed what the port asks of a host. Try again.", type="QosPolicyInUse")
    return [seen[id] for id in ids]


def _networks(connection: Connection, server_id: str,
              ids: Collection[str]) -> tuple[dict[str, tuple[RowMapping, list[RowMapping]]], int]:
    """Each of these networks with its subnets, oldest first; and how many ports the server has. Raises ``NotFound`` for
    a network that went meanwhile."""
    there: dict[str, tuple[RowMapping, list[RowMapping]]] = {}
    wanted, taken = sorted(ids), 0
    for row in connection.execute(_OF_NETWORKS, {"ids": wanted, "server": server_id}).mappings():
        taken = row["taken"]
        _network, choices = there.setdefault(row["of"], (row, []))
        if row["id"] is not None:
            choices.append(row)
    if gone := [id for id in wanted if id not in there]:
        raise NotFound(f"Network {gone[0]} could not be found.", type="NetworkNotFound")
    return there, taken


def _take(connection: Connection, id: str, hostname: str, values: Document) -> None:
    """Take a port that somebody made beforehand. Raises ``NotFound``, ``Conflict`` where it is not free, nor reserved
    for the server, and ``InvalidRequest`` where it is called otherwise than the server."""
    reserved = (ports.c.device_id == values["device_id"]) & (ports.c.place == RESERVED)
    free = update(ports).where(ports.c.id == id, (ports.c.device_id == "") | reserved, ports.c.dns_name.in_(
        ("", values["dns_name"])), ports.c.device_owner != SUBPORT)
    if connection.execute(free.values(**values, updated_at=now())).rowcount:
        return
    there = connection.execute(select(*ports.c["dns_name", "device_id", "place"]).where(ports.c.id == id)).first()
    if there is None:
        raise NotFound(f"Port {id} could not be found.", type="PortNotFound")
    if there.device_id == "" or (there.device_id == values["device_id"] and there.place == RESERVED):
        dns.check_server(id, there.dns_name, hostname)
    raise Conflict(f"Port {id} is still in use.", type="PortInUse")


def _make(connection: Connection, context: Context, id: str, wanted: Document, choices: Sequence[RowMapping],
          values: Document) -> None:
    mac = ipam.add_port(connection, id=id, project_id=context.project_id, name="", network_id=wanted["network_id"],
                        status="DOWN", made_for_server=True, created_at=now(), **values)
    if mac is None:
        return  # another conductor made it meanwhile
    if wanted.get("fixed_ip"):
        ipam.give(connection, id, wanted["network_id"], choices, wanted["fixed_ip"],
                  f"any of the subnets on network {wanted['network_id']}")
        ipam.give_automatic(connection, id, mac, choices)
    else:
        ipam.give_all(connection, id, mac, choices, wanted["network_id"])


def found(connection: Connection, server_id: str, *, states: bool, lock: bool = False) -> list[Document]:
    """The NICs of a server, in its order; *states*: with ``port_state`` and ``host``. *lock*: what they ask of a host
    stays until the transaction ends."""
    rows: dict[str, list[RowMapping]] = {}
    for row in connection.execute(_BY_SERVER, {"server": server_id}).mappings():
        rows.setdefault(row["id"], []).append(row)
    asked = reservations.of_ports(connection, [each[0] for each in rows.values()], lock=lock)
    rates = virtual_functions.rates(connection, [each[0] for each in rows.values()])
    carried = _vlans(connection, [id for id, each in rows.items() if each[0]["carries"]])
    return [{**_nic(sorted(each, key=_is_six), states, rates.get(id, {}), carried.get(id)),
             **({"resources": asked[id]} if id in asked else {})} for id, each in rows.items()]


def _vlans(connection: Connection, parents: Sequence[str]) -> dict[str, list[Document]]:
    """Parent port to what the guest is told of its trunk's subports, by tag."""
    rows: dict[str, list[RowMapping]] = {}
    for row in connection.execute(_CARRIED, {"parents": parents}).mappings() if parents else ():
        rows.setdefault(row["id"], []).append(row)
    found: dict[str, list[Document]] = {}
    for each in rows.values():
        nic = _nic(sorted(each, key=_is_six), states=False, rate={})
        found.setdefault(each[0]["parent"], []).append({
            "segmentation_id": each[0]["segmentation_id"], "network_id": nic["network_id"], "port_id": nic["port_id"],
            **{name: nic["on_host"][name] for name in ("mac", "address") if name in nic["on_host"]},
            **nic.get("told", {})})
    return found


def _is_six(row: RowMapping | Document) -> bool:
    """Whether its address is of IPv6: such come after those of IPv4."""
    return ":" in (row["ip_address"] or "")


def addresses_of(connection: Connection, ids: Sequence[str]) -> dict[str, list[Document]]:
    """Port to its ``fixed_ips``."""
    given: dict[str, list[Document]] = {}
    for row in connection.execute(select(*addresses.c["port_id", "subnet_id", "ip_address"])
                                  .where(addresses.c.port_id.in_(ids)).order_by(addresses.c.number)):
        given.setdefault(row.port_id, []).append({"subnet_id": row.subnet_id, "ip_address": row.ip_address})
    return {id: sorted(found, key=_is_six) for id, found in given.items()}


def floating(connection: Connection, server_ids: Sequence[str]) -> dict[str, dict[tuple[str, str], str]]:
    """Server to its floating IPs: (MAC, fixed address) to floating address."""
    given: dict[str, dict[tuple[str, str], str]] = {}
    for at in range(0, len(server_ids), MANY):
        for row in connection.execute(select(
                *ports.c["device_id", "mac_address"],
                *floating_ips.c["fixed_ip_address", "floating_ip_address"]).join(
                ports, ports.c.id == floating_ips.c.port_id).where(
                ports.c.device_id.in_(server_ids[at:at + MANY]), TAKEN)):
            given.setdefault(row.device_id, {})[row.mac_address, row.fixed_ip_address] = row.floating_ip_address
    return given


def _nic(rows: Sequence[RowMapping], states: bool, rate: Mapping[str, int],
         vlans: Sequence[Document] | None = None) -> Document:
    """The NIC of a port's *rows*, one for each address, which carries *vlans*; *rate*: what its QoS policy says of a
    virtual function."""
    row, flat = rows[0], rows[0]["type"] == "flat"
    function = virtual_functions.is_one(row)
    engine = row["by_engine"] and not function
    fixed = [{"subnet_id": one["subnet_id"], "ip_address": one["ip_address"]} for one in rows if one["ip_address"]]
    devices = virtual_functions.devices(row)
    on_host = virtual_functions.on_host(row, rate) if devices else {"port": row["id"]} if engine else {
        "bridge": row["bridge"]} if flat else {"network": host_name(row["network_id"])}
    on_host["mac"] = row["mac_address"]
    four = [one for one in rows if one["ip_address"] and not _is_six(one)]
    if four:
        # Where there is no DHCP on the bridge, the guest sets its address itself, with the prefix.
        static = next((one for one in four if function or (
            (flat or engine) and one["enable_dhcp"] is False)), None)
        on_host["address"] = (f"{static['ip_address']}/{static['cidr'].partition('/')[2]}" if static else
                              four[0]["ip_address"])
    if not (engine or function):  # which filters by itself
        on_host.update(_security(row, fixed, flat))
    nic = {"port_id": row["id"], "network_id": row["network_id"], "network": row["network"], "mac": row["mac_address"],
           "fixed_ips": fixed, "tag": row["tag"], "created": row["made_for_server"], "on_host": on_host,
           **({"network_affinity": near} if (near := reservations.near(row)) else {}),
           **({"devices": devices} if devices else {}),
           **({"told": told} if (told := {**_told(rows), **({"vlans": vlans} if vlans else {})}) else {})}
    return {**nic, "port_state": row["status"], "host": row["host"]} if states else nic


def _security(row: RowMapping, fixed: Sequence[Document], flat: bool) -> Document:
    """What the agent is told of the port's security, where it is not what the agent does anyway."""
    if not row["port_security_enabled"]:
        return {"port_security": False}
    others = [one["ip_address"] for one in fixed[1:]]
    # On a bridge the agent does not know that the port has no IPv6 address but the link-local one.
    known = [*others, *([link_local(row["mac_address"])] if flat and fixed else ())]
    return {"security_groups": host_groups.of_port(row), **({"allowed_addresses": known} if known else {})}


def _told(rows: Sequence[RowMapping]) -> Document:
    """What the guest is told of the subnet of its first address of IPv4, and of its addresses of IPv6, where there is
    something to tell."""
    row, six = rows[0], [one for one in rows if _is_six(one)]
    found: Document = {"mtu": row["mtu"] if row["by_engine"] or row["mtu"] != 1500 else None}
    if not _is_six(row):
        found.update(gateway=row["gateway_ip"], dns_nameservers=orjson.loads(row["dns_nameservers"] or "[]")[:MOST],
                     host_routes=[{name: one[name] for name in ("destination", "nexthop")}
                                  for one in orjson.loads(row["host_routes"] or "[]")[:MOST]])
    found["ipv6"] = [{
        "address": f"{one['ip_address']}/{one['cidr'].partition('/')[2]}", "mode": one["ipv6_address_mode"],
        "gateway": one["gateway_ip"], "dns_nameservers": orjson.loads(one["dns_nameservers"])[:MOST]}
        for one in six[:MOST]]
    return {name: value for name, value in found.items() if value}
