# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks that a request for a server names, checked as Nova does with Neutron (API reference, "Create server").

The errors are Nova's. 400: a network or port does not exist or cannot be used. 409: a port is in use, or there are
several networks to choose from. 403: an external network is not shared with the caller and the caller's policy does not
allow it, or the caller chooses an address on another project's network.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    and_,
    bindparam,
    exists,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.sql.expression import BindParameter

from magnetar_control.documents import PortRequest
from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import check_network_owner
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import SUBPORT, addresses, networks, ports, subnets
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest

from . import reservations, virtual_functions

#: The policy rule of NICs on external networks.
ATTACH_EXTERNAL = "network:attach_external_network"
#: Type of the error when a server asks for ``auto`` and there is no network.
NO_NETWORK = "UnableToAutoAllocateNetwork"
#: Statements that each new server needs, built once.
_SERVES = exists().where(subnets.c.network_id == networks.c.id).label("serves")
_PROJECT: BindParameter[str] = bindparam("project")
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_OUTSIDE = and_(networks.c.external, not_(sharing.shared_with(networks, _PROJECT))).label("outside")
_EACH: Select[Any] = select(*networks.c["id", "project_id", "by_engine", "qos_policy_id", "type", "bridge"], _SERVES,
                            _OUTSIDE)
#: Networks for requests that name none. Not those shared with this project only: their owners would get its NICs.
_ANY = _EACH.where(or_(networks.c.project_id == _PROJECT, sharing.shared_with(networks, sharing.ALL))).limit(2)
_SHARED = select(networks.c.id).where(sharing.shared_with(networks, _PROJECT)).limit(1)
_UP = _ANY.where(networks.c.admin_state_up)
_NAMED = _EACH.where(networks.c.id.in_(_IDS))
_PORTS = select(ports.c.id.label("port_id"),
                *ports.c["network_id", "device_id", "device_owner", "dns_name", "vnic_type", "profile"],
                addresses.c.ip_address, reservations.POLICY.label("policy"),
                *networks.c["id", "by_engine", "type", "bridge"], _OUTSIDE).join(
    networks, networks.c.id == ports.c.network_id).outerjoin(
    addresses, addresses.c.port_id == ports.c.id).where(ports.c.id.in_(_IDS))
_OWN_PORTS = _PORTS.where(ports.c.project_id == _PROJECT)
_SUBNETS = select(subnets).where(subnets.c.network_id.in_(_IDS)).order_by(subnets.c.created_at, subnets.c.id)


#: Networks that a caller may use.
visible = sharing.own_or_shared(networks)


def _seen_by(project: Any) -> ColumnElement[bool]:
    return sharing.own_or_shared_with(networks, project) | sharing.shared_with(networks, project, sharing.EXTERNAL)


def networks_visible_to(context: Context) -> ColumnElement[bool]:
    """Return the SQL condition for the networks that *context* may see: networks that the caller's servers may use, and
    external networks, which the caller's routers may use."""
    return true() if context.is_admin else _seen_by(context.project_id or "")


_NAMED_SEEN = _NAMED.where(_seen_by(_PROJECT))


def parse_requested_networks(connection: Connection, context: Context, requested: Any,
                             external: bool) -> list[PortRequest]:
    """Check the attribute ``networks`` of a request for a server, and return one ``PortRequest`` for each NIC.
    *requested*: "none", "auto", empty (the project's default network), or [{uuid, port, fixed_ip, tag}]. *external*:
    allow external networks that are not shared."""
    if requested == "none":
        return []
    if requested == "auto" or not requested:
        networks_by_id, plain = _default(connection, context, requested == "auto")
    else:
        plain = [_plain(request) for request in requested]
        networks_by_id = _check_ports(connection, context, [nic for nic in plain if nic["port_id"]])
        networks_by_id |= _check_networks(connection, context, [nic for nic in plain if not nic["port_id"]])
    if not external and (outside := next((network for network in networks_by_id.values() if network.outside), None)):
        raise Forbidden(f"It is not allowed to create an interface on external network {outside.id}: Policy doesn't "
                        f"allow {ATTACH_EXTERNAL} to be performed. Use a network behind a router, and a floating IP.",
                        type="ExternalNetworkAttachForbidden")
    return [_marked(nic, networks_by_id[nic["network_id"]]) for nic in plain]


def _plain(request: Mapping[str, Any]) -> Document:
    port, address = request.get("port"), request.get("fixed_ip")
    if not port and not request.get("uuid"):
        raise InvalidRequest("networks: each NIC needs a uuid (of a network) or a port.")
    if address is not None:
        if port:
            raise InvalidRequest(f"Specified Fixed IP '{address}' cannot be used with port '{port}': the two cannot be "
                                 "specified together.")
        try:
            address = str(ip_address(address))
        except ValueError:
            raise InvalidRequest(f"networks: fixed_ip {address!r} is not an IP address.") from None
    return {"network_id": None if port else request.get("uuid"), "port_id": port, "fixed_ip": address,
            "tag": request.get("tag"), "make": None if port else str(uuid.uuid4())}


def _default(connection: Connection, context: Context, automatic: bool) -> tuple[dict[str, Row[Any]], list[Document]]:
    """Choose the network of a server when the request names none: the only network that the project owns or that is
    shared with all projects. Return ({uuid: network}, [request for a NIC on this network]).

    If there is no such network, return ({}, []), so that the server gets no NIC, as in Nova. With *automatic* ("auto"
    was requested), raise ``InvalidRequest`` instead. Raise ``Conflict`` if there are several such networks. Without
    *automatic*, also raise ``Conflict`` if there is none, but other projects share networks with the project: then the
    request must name a network.
    """
    network_rows = connection.execute(_UP if automatic else _ANY, {"project": context.project_id or ""}).all()
    if len(network_rows) > 1:
        raise Conflict("Multiple possible networks found, use a Network ID to be more specific.")
    if not network_rows:
        if automatic:
            raise InvalidRequest(f"Unable to automatically allocate a network for project {context.project_id}: "
                                 "it has none, and none is shared with all projects. Create one with a subnet, name "
                                 "one that another project shares with it, or ask for networks: none.",
                                 type=NO_NETWORK)
        if connection.execute(_SHARED, {"project": context.project_id or ""}).first():
            raise Conflict(f"Project {context.project_id} has no network, and other projects share networks with it. "
                           "Use a Network ID to be more specific: give the ID of one of them as uuid in networks "
                           "('openstack network list' shows them), create a network with a subnet, or, since "
                           "microversion 2.37, ask for networks: none.")
        return {}, []
    _check_made(connection, network_rows)
    return {network_rows[0].id: network_rows[0]}, [_plain({"uuid": network_rows[0].id})]


def _marked(nic: Document, network: Row[Any]) -> PortRequest:
    """Return *nic*, a checked request for a NIC on *network*, as a ``PortRequest``. Additional keys, if they apply:
    ``by_engine`` (OVN plugs the NIC in on the host, which not every host supports), and ``network_affinity`` (see
    ``reservations.network_affinity``)."""
    near = reservations.network_affinity(network._mapping)  # noqa: SLF001 - SQLAlchemy's name
    plugged = network.by_engine and virtual_functions.is_plugged_in(nic)
    return cast("PortRequest", {**nic, **({"by_engine": True} if plugged else {}),
                                **({"network_affinity": near} if near else {})})


def _check_ports(connection: Connection, context: Context, plain: Sequence[Document]) -> dict[str, Row[Any]]:
    """Check the requests *plain* for NICs with existing ports. Add to each request the port's network and the resources
    that the port needs on the host. Return {uuid of the network: network} for all ports. Raises ``InvalidRequest``, and
    ``Conflict`` for a port in use."""
    if not plain:
        return {}
    ids = [nic["port_id"] for nic in plain]
    if twice := next((id for id in ids if ids.count(id) > 1), None):
        raise InvalidRequest(f"networks: port {twice} is given twice; a port is one NIC.")
    rows: dict[str, Any] = {row.port_id: row for row in connection.execute(
        _PORTS if context.is_admin else _OWN_PORTS, {"project": context.project_id or "", "ids": ids})}
    bandwidth_by_port = reservations.bandwidth_of_ports(connection, [
        {"id": id, "policy": row.policy, "type": row.type, "bridge": row.bridge} for id, row in rows.items()])
    for nic in plain:
        row = rows.get(nic["port_id"])
        if row is None:
            raise InvalidRequest(f"Port id {nic['port_id']} could not be found.", type="PortNotFound")
        if row.device_id:
            raise Conflict(f"Port {row.port_id} is still in use.", type="PortInUse")
        if row.device_owner == SUBPORT:
            raise Conflict(f"Port {row.port_id} is still in use: it is a subport of a trunk, for the server "
                           "that has the trunk's parent port.", type="PortInUse")
        if row.ip_address is None:
            raise InvalidRequest(f"Port {row.port_id} requires a FixedIP in order to be used.")
        nic["network_id"] = row.network_id
        devices = virtual_functions.devices_of_port(row._mapping)  # noqa: SLF001 - SQLAlchemy's name
        port_facts = {"resources": bandwidth_by_port.get(row.port_id), "devices": devices, "dns_name": row.dns_name,
                      "vnic_type": "" if row.vnic_type == virtual_functions.NORMAL else row.vnic_type}
        nic.update({name: value for name, value in port_facts.items() if value})
    return {row.id: row for row in rows.values()}


def _check_networks(connection: Connection, context: Context, plain: Sequence[Document]) -> dict[str, Row[Any]]:
    """Check the networks and fixed addresses in the requests *plain* for NICs with new ports. Return {uuid of the
    network: network}. Raises ``InvalidRequest``, ``Forbidden``."""
    ids = {nic["network_id"] for nic in plain}
    if not ids:
        return {}
    network_rows = connection.execute(_NAMED if context.is_admin else _NAMED_SEEN, {
        "project": context.project_id or "", "ids": list(ids)}).all()
    if missing := ids - {network.id for network in network_rows}:
        raise InvalidRequest(f"Network {next(iter(missing))} could not be found.", type="NetworkNotFound")
    _check_made(connection, network_rows)
    fixed, by_id = [nic for nic in plain if nic["fixed_ip"]], {network.id: network for network in network_rows}
    for nic in fixed:
        check_network_owner(context, by_id[nic["network_id"]].project_id, "create_port:fixed_ips:ip_address",
                            "addresses")
    choices = subnets_of(connection, {nic["network_id"] for nic in fixed}) if fixed else {}
    for nic in fixed:
        network_id, ip = nic["network_id"], nic["fixed_ip"]
        subnet = ipam.fitting_subnet(ip, choices[network_id])
        if subnet is None:
            raise InvalidRequest(f"Fixed IP {ip} is not a valid ip address for network {network_id}.")
        if ipam.is_given(connection, subnet["id"], ip):
            raise InvalidRequest(f"Fixed IP address {ip} is already in use on network {network_id}.")
    return by_id


def subnets_of(connection: Connection, ids: Collection[str]) -> dict[str, list[RowMapping]]:
    """Return the subnets of the networks *ids*: {network id: its subnets, oldest first}."""
    choices: dict[str, list[RowMapping]] = {id: [] for id in ids}
    for row in connection.execute(_SUBNETS, {"ids": list(ids)}).mappings():
        choices[row["network_id"]].append(row)
    return choices


def _check_made(connection: Connection, network_rows: Sequence[Row[Any]]) -> None:
    """Raise ``InvalidRequest`` if a server cannot get a new port on one of *network_rows*: the network has no subnet,
    or its QoS policy has a minimum bandwidth (then users must create the port first)."""
    promising = reservations.minima_of_policies(connection, {row.qos_policy_id for row in network_rows
                                                             if row.qos_policy_id})
    for network in network_rows:
        if network.qos_policy_id in promising:
            raise InvalidRequest(f"Using networks with QoS policy is not supported for servers where it promises a "
                                 f"minimum bandwidth. (Network ID is {network.id}.) Make a port there first, and ask "
                                 "for that.", type="NetworksWithQoSPolicyNotSupported")
        if not network.serves:
            raise InvalidRequest(f"Network {network.id} requires a subnet in order to boot instances on.")
