# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks that a server is created with, checked as Nova does with Neutron (API reference, "Create server").

The answers are Nova's: 400 for what is not there or cannot be used, 409 for a port in use and for a choice of several
networks.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, bindparam, exists, or_, select

from magnetar_control.services import Context, Document
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError

from . import ipam
from .tables import addresses, networks, ports, subnets

#: Statements that each new server needs, made once.
_SERVES = exists().where(subnets.c.network_id == networks.c.id).label("serves")
_EACH = select(networks.c.id, _SERVES)
_ANY = _EACH.where(or_(networks.c.project_id == bindparam("project"), networks.c.shared)).limit(2)
_UP = _ANY.where(networks.c.admin_state_up)
_SUBNETS = select(subnets).where(subnets.c.network_id.in_(bindparam("ids", expanding=True))).order_by(
    subnets.c.created_at, subnets.c.id)


def visible(context: Context) -> ColumnElement[bool]:
    """Networks that *context* may see."""
    own = or_(networks.c.project_id == (context.project_id or ""), networks.c.shared)
    return or_(own, networks.c.id.is_not(None)) if context.is_admin else own


def in_use(port_id: str) -> MagnetarError:
    """Somebody has the port."""
    return Conflict(f"Port {port_id} is still in use.", type="PortInUse")


def checked(connection: Connection, context: Context, requested: Any) -> list[Document]:
    """Normal form of *requested*: "none", "auto", nothing (the default network), or [{uuid, port, fixed_ip, tag}]."""
    if requested == "none":
        return []
    if requested == "auto" or not requested:
        return _default(connection, context, requested == "auto")
    plain = [_plain(one) for one in requested]
    _check_ports(connection, context, [one for one in plain if one["port_id"]])
    _check_networks(connection, context, [one for one in plain if not one["port_id"]])
    return plain


def _nic(network_id: str | None = None, port_id: str | None = None, fixed_ip: str | None = None,
          tag: str | None = None) -> Document:
    return {"network_id": network_id, "port_id": port_id, "fixed_ip": fixed_ip, "tag": tag,
            "make": None if port_id else str(uuid.uuid4())}


def _plain(one: Mapping[str, Any]) -> Document:
    port, address = one.get("port"), one.get("fixed_ip")
    if not port and not one.get("uuid"):
        raise InvalidRequest("networks: each NIC needs a uuid (of a network) or a port.")
    if address is not None:
        if port:
            raise InvalidRequest(f"Specified Fixed IP '{address}' cannot be used with port '{port}': the two cannot be "
                        "specified together.")
        try:
            address = str(IPv4Address(address))
        except AddressValueError:
            raise InvalidRequest(f"networks: fixed_ip {address!r} is not an IPv4 address, and embedded networking "
                                 "has no other.") from None
    return _nic(None if port else one.get("uuid"), port, address, one.get("tag"))


def _default(connection: Connection, context: Context, automatic: bool) -> list[Document]:
    """The only network that there is for the project. None: no NIC, as in Nova, but for "auto", which promises one."""
    found = connection.execute(_UP if automatic else _ANY, {"project": context.project_id or ""}).all()
    if len(found) > 1:
        raise Conflict("Multiple possible networks found, use a Network ID to be more specific.")
    if not found:
        if automatic:
            raise InvalidRequest(f"Unable to automatically allocate a network for project {context.project_id}: "
                                 "there is none that it may use. Create one with a subnet, or ask for networks: none.")
        return []
    _check_subnets(found)
    return [_nic(found[0].id)]


def _check_ports(connection: Connection, context: Context, plain: Sequence[Document]) -> None:
    ids = [one["port_id"] for one in plain]
    twice = next((id for id in ids if ids.count(id) > 1), None)
    if twice:
        raise InvalidRequest(f"networks: port {twice} is given twice; a port is one NIC.")
    query = select(*ports.c["id", "network_id", "device_id"], addresses.c.ip_address).outerjoin(
        addresses, addresses.c.port_id == ports.c.id).where(ports.c.id.in_(ids))
    if not context.is_admin:
        query = query.where(ports.c.project_id == (context.project_id or ""))
    rows = {row.id: row for row in connection.execute(query)} if ids else {}
    for one in plain:
        row = rows.get(one["port_id"])
        if row is None:
            raise InvalidRequest(f"Port id {one['port_id']} could not be found.", type="PortNotFound")
        if row.device_id:
            raise in_use(row.id)
        if row.ip_address is None:
            raise InvalidRequest(f"Port {row.id} requires a FixedIP in order to be used.")
        one["network_id"] = row.network_id


def _check_networks(connection: Connection, context: Context, plain: Sequence[Document]) -> None:
    ids = {one["network_id"] for one in plain}
    if not ids:
        return
    found = connection.execute(_EACH.where(networks.c.id.in_(ids), visible(context))).all()
    missing = ids - {network.id for network in found}
    if missing:
        raise InvalidRequest(f"Network {next(iter(missing))} could not be found.", type="NetworkNotFound")
    _check_subnets(found)
    _check_addresses(connection, [one for one in plain if one["fixed_ip"]])


def subnets_of(connection: Connection, ids: Collection[str]) -> dict[str, list[RowMapping]]:
    """The subnets of each of these networks, oldest first."""
    choices: dict[str, list[RowMapping]] = {id: [] for id in ids}
    for row in connection.execute(_SUBNETS, {"ids": list(ids)}).mappings():
        choices[row["network_id"]].append(row)
    return choices


def _check_subnets(found: Sequence[Row[Any]]) -> None:
    for network in found:
        if not network.serves:
            raise InvalidRequest(f"Network {network.id} requires a subnet in order to boot instances on.")


def _check_addresses(connection: Connection, fixed: Sequence[Document]) -> None:
    choices = subnets_of(connection, {one["network_id"] for one in fixed}) if fixed else {}
    for one in fixed:
        subnet = next((row for row in choices[one["network_id"]] if ipam.usable(one["fixed_ip"], row)), None)
        if subnet is None:
            raise InvalidRequest(f"Fixed IP {one['fixed_ip']} is not a valid ip address for network "
                                 f"{one['network_id']}.")
        taken = select(addresses.c.port_id).where(addresses.c.subnet_id == subnet["id"],
                                                  addresses.c.number == int(IPv4Address(one["fixed_ip"])))
        if connection.execute(taken).first():
            raise InvalidRequest(f"Fixed IP address {one['fixed_ip']} is already in use on network "
                                 f"{one['network_id']}.")
