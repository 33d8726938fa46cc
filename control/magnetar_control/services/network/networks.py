# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks. Without an engine, the agents make networks of type ``nat`` or ``isolated`` on each host that needs them; a
``flat`` network is a bridge (*bridge*) that each host has already. With an engine, ``ovn`` is a network between hosts;
a ``flat`` or ``vlan`` network is on the physical network that hosts call *bridge*."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, select, true

from magnetar_control.services import Context
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.ports import dns, qos, reservations, trunks, virtual_functions
from magnetar_control.services.network.ports.nics import host_name
from magnetar_control.services.network.ports.requested_networks import networks_visible_to
from magnetar_control.services.network.routers.router_ports import INTERFACE, OWN
from magnetar_control.services.network.subnets import ipam
from magnetar_control.store.engine.database import advisory_lock
from magnetar_control.store.hosts import host_removals
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField

from . import sharing
from .resources import NetworkResource, choice_filter, find_resource_row, insert_resource_row, rows_of_caller
from .tables import networks, ports, subnet_pools, subnets

#: Name of a network device.
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}")
#: Name of a physical network, which hosts have in a list of name:bridge pairs.
PHYSICAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}")
BRIDGE, SEGMENT, TYPE = "provider:physical_network", "provider:segmentation_id", "provider:network_type"
#: Types that the agents make on each host, and types that an engine makes.
OF_AGENTS, OF_ENGINE = ("nat", "isolated"), ("ovn", "flat", "vlan")
#: Bytes that Geneve takes of each packet between hosts: the headers of Ethernet, IPv4, UDP and Geneve with OVN's
#: option.
GENEVE = 58
USUAL_MTU = 1500
#: Bytes that an IPv6 link must carry (RFC 8200, section 5).
LEAST_MTU = 1280


def network_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Return the networks *rows* in the form for callers, with ``subnets`` (ids), ``scopes`` ({IP version: id of the
    address scope of the subnets}) and ``shared_with`` (ids of projects)."""
    ids: dict[str, list[str]] = {row["id"]: [] for row in rows}
    scopes: dict[str, dict[int, str]] = {row["id"]: {} for row in rows}
    query = select(*subnets.c["id", "network_id", "cidr"], subnet_pools.c.address_scope_id).outerjoin(
        subnet_pools, subnet_pools.c.id == subnets.c.subnetpool_id)
    for subnet in connection.execute(query.where(subnets.c.network_id.in_(ids)).order_by(subnets.c.created_at)):
        ids[subnet.network_id].append(subnet.id)
        if subnet.address_scope_id is not None:
            scopes[subnet.network_id][6 if ipam.is_six(subnet.cidr) else 4] = subnet.address_scope_id
    shared = sharing.sharing_of_rows(connection, rows)
    return [{**row, "subnets": ids[row["id"]], "scopes": scopes[row["id"]],
             "shared_with": shared[row["id"]]["shared_with"]} for row in rows]


def create_network_row(physical_mtu: int | None, connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert the row of a network. *physical_mtu*: the MTU of the physical network; ``None`` if
    there is no network engine (OVN)."""
    values["by_engine"] = physical_mtu is not None and values["type"] in OF_ENGINE
    _check_internal(values, values)
    _check_default(connection, values)
    check_admin_state(values, values["admin_state_up"])
    if physical_mtu is not None and values["by_engine"]:
        _check_physical(connection, values)
        _check_mtu(values, _largest_mtu(physical_mtu, values["type"]))
    else:
        _check_bridge(values)
        values["mtu"] = values["mtu"] or USUAL_MTU
    if values["by_engine"] and "qos_policy_id" not in values:
        values["qos_policy_id"] = qos.default_qos_policy(connection, values["project_id"])
    else:
        qos.check_qos_policy(connection, context, values, values)
    dns.check_domain(connection, values)
    insert_resource_row(connection, networks, values)
    sharing.share_new_row(connection, "network", values)


def _check_mtu(values: Document, most: int) -> None:
    if (values["mtu"] or 0) > most:
        raise InvalidField("mtu", f"must be at most {most}, which the hosts' networks leave for one of type "
                                  f"{values['type']} (setting physical_mtu)", values["mtu"])
    values["mtu"] = values["mtu"] or most


def _check_other_mtu(physical_mtu: int | None, connection: Connection, row: RowMapping, values: Document) -> None:
    """Raise an error unless the network *row*, which the caller has locked, can get the MTU in *values*. The MTU cannot
    change while servers have ports on the network: their NICs keep the old MTU, but DHCP and router advertisements
    would announce the new one. *physical_mtu*: the MTU of the physical network; ``None`` if there is no network engine
    (OVN)."""
    if physical_mtu is None or not row["by_engine"]:
        raise InvalidField("mtu", f"cannot change, but of a network of OVN: hosts may have this one of type "
                                  f"{row['type']} already. Create another network", values["mtu"])
    _check_mtu({**row, **values}, _largest_mtu(physical_mtu, row["type"]))
    if values["mtu"] < LEAST_MTU and connection.execute(select(subnets.c.id).where(
            subnets.c.network_id == row["id"], subnets.c.cidr.contains(":")).limit(1)).first():
        raise Conflict(f"mtu: must be at least {LEAST_MTU}, as the network has a subnet of IPv6: on links of less "
                       "guests do without it.", type="NetworkMTUSubnetConflict")
    trunks.check_mtu(connection, row["id"], values["mtu"])
    if trunks.at_servers(connection, row["id"]):
        raise Conflict(f"The MTU of network {row['id']} cannot change while servers have ports on it: their NICs have "
                       f"its MTU of {row['mtu']}. Take the servers off it first, or create another network.",
                       type="NetworkInUse")


def _largest_mtu(physical_mtu: int, type: str) -> int:
    """Return the largest possible MTU of a network of this *type*: *physical_mtu*, the MTU of the physical network,
    minus the header of tunnels for the type ovn."""
    return physical_mtu - (GENEVE if type == "ovn" else 0)


def _check_physical(connection: Connection, values: Document) -> None:
    """Check the provider attributes (type, physical network, VLAN tag) in *values*, the values of a new network that
    the engine (OVN) makes. Raises ``InvalidField``, and ``Conflict`` if another network has the same physical network
    and tag."""
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
    if physical is not None and (existing_id := connection.execute(same).scalar()):
        where = physical if segment is None else f"{physical}, VLAN {segment}"
        raise Conflict(f"Unable to create the network. Network {existing_id} is on {where} already.",
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
    """Raise an error if ``is_default`` is true in *values*, the complete values of a network, but the network cannot be
    the default external network. ``InvalidField``: the network is not external. ``Conflict``: another network is the
    default. The default external network is used for the routers of auto-allocated topologies."""
    if not values["is_default"]:
        return
    if not values["external"]:
        raise InvalidField("is_default", "must be false, but of an external network: to it lead the routers that are "
                                         "made with the first networks of projects", True)
    advisory_lock(connection, "default network", "external")
    existing_id = connection.execute(select(networks.c.id).where(
        networks.c.external, networks.c.is_default, networks.c.id != values["id"])).scalar()
    if existing_id is not None:
        raise Conflict(f"A default external network already exists: {existing_id}. Make it no default first.",
                       type="DefaultExternalNetworkExists")


def check_admin_state(network: Document | RowMapping, up: bool) -> None:
    """Raise ``InvalidField`` if *up* is false and the network engine (OVN) does not make *network*. Networks that
    hosts' agents make would still pass all packets, so they and their ports cannot be set down."""
    if not up and not network["by_engine"]:
        raise InvalidField("admin_state_up", "must be true, but on networks of OVN: hosts pass the packets of a "
                                             f"network of type {network['type']} whatever is said here", False)


def prepare_network_update(physical_mtu: int | None, connection: Connection, context: Context, row: RowMapping,
                           values: Document) -> None:
    """Check the new *values* of the network *row*. An external network that becomes internal also gets ``is_default``
    false. *physical_mtu*: the MTU of the physical network; ``None`` if there is no network engine (OVN). Raises
    ``InvalidField``, and ``Conflict`` if ports on the network do not allow the change."""
    if values.get("mtu", row["mtu"]) != row["mtu"]:
        _check_other_mtu(physical_mtu, connection, find_resource_row(connection, context, NETWORK, row["id"],
                                                                     lock=True), values)
    if "external" in values or "is_default" in values:  # locked, so that no caller uses the old value
        row = find_resource_row(connection, context, NETWORK, row["id"], lock=True)
    _check_internal(values, row)
    if row["external"] and values.get("external") is False:
        values.setdefault("is_default", False)  # only an external network is the default
    if any(values.get(name, row[name]) != row[name] for name in ("external", "is_default")):  # bootstrap's is internal
        _check_default(connection, {**row, **values})
    check_admin_state(row, values.get("admin_state_up", True))
    qos.check_qos_policy(connection, context, row, values, row["qos_policy_id"])
    if values.get("qos_policy_id", row["qos_policy_id"]) != row["qos_policy_id"]:
        # no server gets a port on this network until the change is done
        find_resource_row(connection, context, NETWORK, row["id"], lock=True)
        virtual_functions.check_no_host_devices(connection, row["id"])
        reservations.check_policy(connection, (ports.c.network_id == row["id"]) & ports.c.qos_policy_id.is_(None),
                                  row["qos_policy_id"], values["qos_policy_id"])
    dns.check_domain(connection, {**row, **values})
    if row["external"] and values.get("external") is False and connection.execute(select(ports.c.id).where(
            ports.c.network_id == row["id"], ports.c.device_owner.startswith(OWN)).limit(1)).first():
        raise Conflict(f"External network {row['id']} cannot be updated to be made non-external, since it has existing "
                       "gateway ports or floating IPs.", type="ExternalNetworkInUse")
    if values.get("external") and not row["external"] and connection.execute(select(ports.c.device_id).where(
            ports.c.network_id == row["id"], ports.c.device_owner == INTERFACE).limit(1)).first():
        # The router with the interface would be the gateway of this network. Routers that lead out here would send it
        # all packets for which they know no route.
        raise Conflict(f"Network {row['id']} cannot be made external while routers have interfaces in it. Remove these "
                       "first.", type="NetworkInUse")
    sharing.apply_sharing_change(connection, "network", row, values)


def prepare_network_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Prepare the deletion of the network *row*: delete its RBAC policies, and queue its removal from the hosts whose
    agents have created it. Raises ``Conflict`` while ports are on the network; the error names only ports that the
    caller may see. The database deletes the subnets with the network."""
    used = connection.execute(select(ports.c.id, rows_of_caller(ports)(context)).where(
        ports.c.network_id == row["id"]).limit(20)).all()
    if used:
        named = ", ".join(id for id, is_visible in used if is_visible)
        hidden_note = "" if all(is_visible for _id, is_visible in used) else "; some are other projects'"
        raise Conflict(f"Unable to complete operation on network {row['id']}. There are one or more ports still in "
                       f"use on the network{f', id for these ports is {named}' if named else ''}{hidden_note}.",
                       type="NetworkInUse")
    sharing.delete_sharing_policies(connection, row["id"])
    host_removals.mark_removals_due(connection, "network", host_name(row["id"]))


def changed_network_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the network *row* affects:
    ``network/ID``; ``port/ID`` of its ports, if ``admin_state_up``, QoS policy or domain change; ``router/ID`` of the
    routers that advertise its MTU, if the MTU changes. *changed*: the new values; ``None`` for a created or deleted
    network."""
    unit_keys = [f"network/{row['id']}"]
    if changed and changed.get("mtu", row["mtu"]) != row["mtu"]:
        unit_keys += [f"router/{id}" for id in connection.execute(select(ports.c.device_id).distinct().where(
            ports.c.network_id == row["id"], ports.c.device_owner == INTERFACE)).scalars()]
    if changed and any(changed.get(name, row[name]) != row[name]
                       for name in ("admin_state_up", "qos_policy_id", "dns_domain")):
        unit_keys += changes.port_unit_keys(connection.execute(select(ports.c.id).where(ports.c.network_id
                                                                                        == row["id"])).scalars())
    return unit_keys


def network_resource(physical_mtu: int | None = None) -> NetworkResource:
    """Return the definition of the resource type "network" (its table, checks, fields and filters). *physical_mtu*: the
    MTU of the physical network; ``None`` if there is no network engine (OVN)."""
    usual: dict[str, Any] = {"type": "nat", "mtu": USUAL_MTU} if physical_mtu is None else {"type": "ovn", "mtu": None}
    return NetworkResource(
        name="network", table=networks, visible=networks_visible_to,
        listed=sharing.own_or_shared_list(networks, sharing.SHARED, sharing.EXTERNAL), documents=network_documents,
        create=partial(create_network_row, physical_mtu),
        update=partial(prepare_network_update, physical_mtu), delete=prepare_network_delete,
        units=changed_network_units,
        defaults={"name": "", "description": "", "admin_state_up": True, "shared": False, "is_default": False,
                  "external": False, "port_security_enabled": True, "dns_domain": "", "bridge": None,
                  "segment": None, **usual},
        admin=frozenset({"shared", "is_default", "external", "type", "bridge", "segment"}),
        filters={"external": lambda values: networks.c.external.is_(
                    bool({value.lower() for value in values} & {"true", "1"})),
                 "status": choice_filter({"ACTIVE": true()})})


#: The resource for modules that only look up networks.
NETWORK = network_resource()
