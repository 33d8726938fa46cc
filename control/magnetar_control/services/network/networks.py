# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks. A network of type ``nat`` or ``isolated`` is made by the agents on each host that needs it; ``flat`` is a
*bridge* that each host has already. With an engine, ``ovn`` is between hosts, and ``flat`` and ``vlan`` are on a
physical network, by the name that hosts have for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, select, true

from magnetar_control.services import Context, Document
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.ports import dns, qos, reservations, trunks, virtual_functions
from magnetar_control.services.network.ports.nics import host_name
from magnetar_control.services.network.ports.requested_networks import seen
from magnetar_control.services.network.routers.router_ports import INTERFACE, OWN
from magnetar_control.services.network.subnets import ipam
from magnetar_control.store.engine.database import advisory_lock
from magnetar_control.store.hosts import host_removals
from magnetar_core.errors import Conflict, InvalidField

from . import sharing
from .resources import NetworkResource, add, either, find, own
from .tables import networks, ports, subnet_pools, subnets

#: Name of a network device.
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}")
#: Name of a physical network, which stands in a list of name:bridge pairs on hosts.
PHYSICAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}")
BRIDGE, SEGMENT, TYPE = "provider:physical_network", "provider:segmentation_id", "provider:network_type"
#: Types that the agents make on each host, and those that an engine makes.
OF_AGENTS, OF_ENGINE = ("nat", "isolated"), ("ovn", "flat", "vlan")
#: Bytes that Geneve takes of each packet between hosts: the headers of Ethernet, IPv4, UDP and Geneve with OVN's
#: option.
GENEVE = 58
USUAL_MTU = 1500
#: Bytes that a link of IPv6 must carry (RFC 8200, section 5).
LEAST_MTU = 1280


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with the ids of their subnets, and the address scopes that these are of: ``scopes``, by IP version."""
    ids: dict[str, list[str]] = {row["id"]: [] for row in rows}
    scopes: dict[str, dict[int, str]] = {row["id"]: {} for row in rows}
    query = select(*subnets.c["id", "network_id", "cidr"], subnet_pools.c.address_scope_id).outerjoin(
        subnet_pools, subnet_pools.c.id == subnets.c.subnetpool_id)
    for one in connection.execute(query.where(subnets.c.network_id.in_(ids)).order_by(subnets.c.created_at)):
        ids[one.network_id].append(one.id)
        if one.address_scope_id is not None:
            scopes[one.network_id][6 if ipam.is_six(one.cidr) else 4] = one.address_scope_id
    shared = sharing.told(connection, rows)
    return [{**row, "subnets": ids[row["id"]], "scopes": scopes[row["id"]],
             "shared_with": shared[row["id"]]["shared_with"]} for row in rows]


def create(physical_mtu: int | None, connection: Connection, context: Context, values: Document) -> None:
    """Add it. A bridge belongs to a flat network, and to no other. *physical_mtu*: of the hosts' networks, where there
    is an engine."""
    values["by_engine"] = physical_mtu is not None and values["type"] in OF_ENGINE
    _check_internal(values, values)
    _check_default(connection, values)
    check_up(values, values["admin_state_up"])
    if physical_mtu is not None and values["by_engine"]:
        _check_physical(connection, values)
        _check_mtu(values, _most(physical_mtu, values["type"]))
    else:
        _check_bridge(values)
        values["mtu"] = values["mtu"] or USUAL_MTU
    if values["by_engine"] and "qos_policy_id" not in values:
        values["qos_policy_id"] = qos.default(connection, values["project_id"])
    else:
        qos.check(connection, context, values, values)
    dns.check_domain(connection, values)
    add(connection, networks, values)
    sharing.begin(connection, "network", values)


def _check_mtu(values: Document, most: int) -> None:
    if (values["mtu"] or 0) > most:
        raise InvalidField("mtu", f"must be at most {most}, which the hosts' networks leave for one of type "
                                  f"{values['type']} (setting physical_mtu)", values["mtu"])
    values["mtu"] = values["mtu"] or most


def _check_other_mtu(physical_mtu: int | None, connection: Connection, row: RowMapping, values: Document) -> None:
    """Raises an error where the network of *row*, which is locked, cannot have the MTU of *values*. DHCP and router
    advertisements say another one at once; NICs of servers have that which was when they came."""
    if physical_mtu is None or not row["by_engine"]:
        raise InvalidField("mtu", f"cannot change, but of a network of OVN: hosts may have this one of type "
                                  f"{row['type']} already. Create another network", values["mtu"])
    _check_mtu({**row, **values}, _most(physical_mtu, row["type"]))
    if values["mtu"] < LEAST_MTU and connection.execute(select(subnets.c.id).where(
            subnets.c.network_id == row["id"], subnets.c.cidr.contains(":")).limit(1)).first():
        raise Conflict(f"mtu: must be at least {LEAST_MTU}, as the network has a subnet of IPv6: on links of less "
                       "guests do without it.", type="NetworkMTUSubnetConflict")
    trunks.check_mtu(connection, row["id"], values["mtu"])
    if trunks.at_servers(connection, row["id"]):
        raise Conflict(f"The MTU of network {row['id']} cannot change while servers have ports on it: their NICs have "
                       f"its MTU of {row['mtu']}. Take the servers off it first, or create another network.",
                       type="NetworkInUse")


def _most(physical_mtu: int, type: str) -> int:
    """The most that a network of an engine carries."""
    return physical_mtu - (GENEVE if type == "ovn" else 0)


def _check_physical(connection: Connection, values: Document) -> None:
    """Of a network that the engine makes: where it is. There is one network at each place."""
    type, physical, segment = values["type"], values["bridge"], values.get("segment")
    if (physical is not None) != (type != "ovn"):
        raise InvalidField(BRIDGE, "must be the name that hosts have for the physical network (ovn-bridge-mappings), "
                                   "for a network of type flat or vlan, and only for these", physical)
    if physical is not None and not PHYSICAL.fullmatch(physical):
        raise InvalidField(BRIDGE, "must be letters, digits, dots, dashes and underscores", physical)
    if (segment is not None) != (type == "vlan"):
        raise InvalidField(SEGMENT, "must be the VLAN tag, from 1 to 4094, of a network of type vlan, and of no other",
                           segment)
    same = select(networks.c.id).where(networks.c.by_engine, networks.c.bridge == physical,
                                       networks.c.segment.is_not_distinct_from(segment))
    if physical is not None and (there := connection.execute(same).scalar()):
        where = physical if segment is None else f"{physical}, VLAN {segment}"
        raise Conflict(f"Unable to create the network. Network {there} is on {where} already.",
                       type="FlatNetworkInUse" if segment is None else "VlanIdInUse")


def _check_bridge(values: Document) -> None:
    type, bridge = values["type"], values["bridge"]
    if type in ("ovn", "vlan"):
        raise InvalidField(TYPE, "must be nat, isolated or flat: this cloud has no engine of networks (setting "
                                 "ovn_northbound)", type)
    if values.get("segment") is not None:
        raise InvalidField(SEGMENT, "is for networks of type vlan", values["segment"])
    if type == "flat" and not bridge:
        raise InvalidField(BRIDGE, "must be the name of the bridge that the hosts have, for a flat network")
    if type != "flat" and bridge:
        raise InvalidField(BRIDGE, f"cannot be given for a network of type {type}, which the agents make on each host")
    if type == "flat" and not DEVICE.fullmatch(bridge):
        raise InvalidField(BRIDGE, "must be the name of a network device", bridge)


def _check_internal(values: Document, made: Document | RowMapping) -> None:
    if values.get("external") and not (made["by_engine"] and made["bridge"]):
        raise InvalidField("router:external", "must be false, but of a network of OVN on a physical network (type flat "
                                              "or vlan): the others do not reach out of the hosts")


def _check_default(connection: Connection, values: Document) -> None:
    """Of a network with all its *values*: one is the default, and it is external, as the first routers of projects lead
    out by it."""
    if not values["is_default"]:
        return
    if not values["external"]:
        raise InvalidField("is_default", "must be false, but of an external network: to it lead the routers that are "
                                         "made with the first networks of projects", True)
    advisory_lock(connection, "default network", "external")
    there = connection.execute(select(networks.c.id).where(
        networks.c.external, networks.c.is_default, networks.c.id != values["id"])).scalar()
    if there is not None:
        raise Conflict(f"A default external network already exists: {there}. Make it no default first.",
                       type="DefaultExternalNetworkExists")


def check_up(network: Document | RowMapping, up: bool) -> None:
    """Raises ``InvalidField`` where *network*, or a port of it, is to be down, and its packets would pass."""
    if not up and not network["by_engine"]:
        raise InvalidField("admin_state_up", "must be true, but on networks of OVN: hosts pass the packets of a "
                                             f"network of type {network['type']} whatever is said here", False)


def update(physical_mtu: int | None, connection: Connection, context: Context, row: RowMapping,
           values: Document) -> None:
    """It stays shared while others have ports on it."""
    if values.get("mtu", row["mtu"]) != row["mtu"]:
        _check_other_mtu(physical_mtu, connection, find(connection, context, NETWORK, row["id"], lock=True), values)
    if "external" in values or "is_default" in values:  # nobody takes it for what it was until it is changed
        row = find(connection, context, NETWORK, row["id"], lock=True)
    _check_internal(values, row)
    if row["external"] and values.get("external") is False:
        values.setdefault("is_default", False)  # which only an external one is
    if any(values.get(name, row[name]) != row[name] for name in ("external", "is_default")):  # the first one is hosts'
        _check_default(connection, {**row, **values})
    check_up(row, values.get("admin_state_up", True))
    qos.check(connection, context, row, values, row["qos_policy_id"])
    if values.get("qos_policy_id", row["qos_policy_id"]) != row["qos_policy_id"]:
        find(connection, context, NETWORK, row["id"], lock=True)  # no server takes a port there until it is changed
        virtual_functions.check_network(connection, row["id"])
        reservations.check_policy(connection, (ports.c.network_id == row["id"]) & ports.c.qos_policy_id.is_(None),
                                  row["qos_policy_id"], values["qos_policy_id"])
    dns.check_domain(connection, {**row, **values})
    if row["external"] and values.get("external") is False and connection.execute(select(ports.c.id).where(
            ports.c.network_id == row["id"], ports.c.device_owner.startswith(OWN)).limit(1)).first():
        raise Conflict(f"External network {row['id']} cannot be updated to be made non-external, since it has existing "
                       "gateway ports or floating IPs.", type="ExternalNetworkInUse")
    if values.get("external") and not row["external"] and connection.execute(select(ports.c.device_id).where(
            ports.c.network_id == row["id"], ports.c.device_owner == INTERFACE).limit(1)).first():
        # Its gateway would be that router, to which routers that go out here would send all they know no way for.
        raise Conflict(f"Network {row['id']} cannot be made external while routers have interfaces in it. Remove these "
                       "first.", type="NetworkInUse")
    sharing.follow(connection, "network", row, values)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes with its subnets, when no port is on it. Ports of other projects are not named."""
    used = connection.execute(select(ports.c.id, own(ports)(context)).where(
        ports.c.network_id == row["id"]).limit(20)).all()
    if used:
        named = ", ".join(id for id, seen in used if seen)
        others = "" if all(seen for _id, seen in used) else "; some are other projects'"
        raise Conflict(f"Unable to complete operation on network {row['id']}. There are one or more ports still in "
                       f"use on the network{f', id for these ports is {named}' if named else ''}{others}.",
                       type="NetworkInUse")
    sharing.forget(connection, row["id"])
    host_removals.begin(connection, "network", host_name(row["id"]))


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """The network; its ports, where it goes up or down, or has another QoS policy or domain; the routers that
    advertise its MTU, where that is another."""
    found = [f"network/{row['id']}"]
    if changed and changed.get("mtu", row["mtu"]) != row["mtu"]:
        found += [f"router/{id}" for id in connection.execute(select(ports.c.device_id).distinct().where(
            ports.c.network_id == row["id"], ports.c.device_owner == INTERFACE)).scalars()]
    if changed and any(changed.get(name, row[name]) != row[name]
                       for name in ("admin_state_up", "qos_policy_id", "dns_domain")):
        found += changes.ports(connection.execute(select(ports.c.id).where(ports.c.network_id == row["id"])).scalars())
    return found


def resource(physical_mtu: int | None = None) -> NetworkResource:
    """Networks. *physical_mtu*: see ``create``."""
    usual: dict[str, Any] = {"type": "nat", "mtu": USUAL_MTU} if physical_mtu is None else {"type": "ovn", "mtu": None}
    return NetworkResource(
        name="network", table=networks, visible=seen, documents=documents, create=partial(create, physical_mtu),
        update=partial(update, physical_mtu), delete=delete, units=units,
        defaults={"name": "", "description": "", "admin_state_up": True, "shared": False, "is_default": False,
                  "external": False, "port_security_enabled": True, "dns_domain": "", "bridge": None,
                  "segment": None, **usual},
        admin=frozenset({"shared", "is_default", "external", "type", "bridge", "segment"}),
        filters={"external": lambda values: networks.c.external.is_(
                    bool({value.lower() for value in values} & {"true", "1"})),
                 "status": either({"ACTIVE": true()})})


#: As others look for them.
NETWORK = resource()
