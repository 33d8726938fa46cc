# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a table take the same arguments
"""Ports. Those that are made with a server (``nics``) are the same as those that users make beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select
from sqlalchemy import delete as deleting

from magnetar_control.services import Context, Document
from magnetar_control.store.database import now
from magnetar_control.store.tables import server_mappings
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound

from . import ipam
from .attributes import (
    ABSENT,
    REQUIRED,
    Attribute,
    address,
    boolean,
    forbidden,
    ident,
    invalid,
    list_of,
    mac,
    mapping,
    one_of,
    record,
    table,
    text,
)
from .groups import default_group
from .networks import NETWORK
from .nics import TAKEN, addresses_of
from .nouns import Noun, change, common, found, kept, missing, own, remove
from .tables import addresses, ports, security_groups, subnets

COLUMNS = {"binding:host_id": "host", "binding:vnic_type": "vnic_type", "binding:profile": "profile"}
FIXED = list_of(record(subnet_id=ident, ip_address=address))


def _fixed(value: Any) -> list[Any] | None:
    """Null is what is left out: an address is chosen."""
    found = FIXED(value)
    if any(not wish for wish in found):
        raise ValueError("each item needs subnet_id, ip_address or both")
    return None if value is None else found


ATTRIBUTES = table(
    Attribute(name="name", check=text, default=""),
    Attribute(name="network_id", check=ident, default=REQUIRED, on="create"),
    Attribute(name="admin_state_up", check=boolean, default=True),
    Attribute(name="mac_address", check=mac, default=ABSENT),
    Attribute(name="fixed_ips", check=_fixed, default=ABSENT),
    Attribute(name="device_id", check=text, default=""),
    Attribute(name="device_owner", check=text, default=""),
    Attribute(name="security_groups", check=list_of(ident), default=ABSENT),
    Attribute(name="port_security_enabled", check=boolean, default=ABSENT),
    Attribute(name="binding:host_id", check=text, default="", admin=True),
    Attribute(name="binding:profile", check=mapping, default=dict, admin=True),
    Attribute(name="binding:vnic_type", check=one_of("normal"), default="normal"))


def show(connection: Connection, context: Context, rows: Sequence[RowMapping]) -> list[Document]:
    """As the API reference has them; the binding for admins."""
    given = addresses_of(connection, [row["id"] for row in rows])
    return [{**_one(row), "fixed_ips": given.get(row["id"], []), **(_binding(row) if context.is_admin else {})}
            for row in rows]


def _one(row: RowMapping) -> Document:
    plain = ("name", "network_id", "mac_address", "admin_state_up", "status", "device_id", "device_owner",
             "port_security_enabled")
    return {**common(row), **{name: row[name] for name in plain}, "allowed_address_pairs": [], "extra_dhcp_opts": [],
            "security_groups": orjson.loads(row["security_groups"]), "binding:vnic_type": row["vnic_type"]}


def _binding(row: RowMapping) -> Document:
    return {"binding:host_id": row["host"], "binding:profile": orjson.loads(row["profile"]), "binding:vif_details": {},
            "binding:vif_type": "bridge" if row["host"] else "unbound"}


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it with its addresses and groups."""
    network = found(connection, context, NETWORK, values["network_id"])
    _may_choose(context, network, values)
    _may_mark(connection, context, "create", values)
    values.setdefault("port_security_enabled", network["port_security_enabled"])
    values["security_groups"] = _groups(connection, values)
    for name, column in COLUMNS.items():
        values[column] = values.pop(name)
    if not ipam.add_port(connection, **kept(ports, values), status="DOWN", created_at=now()):
        raise _mac_in_use(values)
    choices = _choices(connection, network["id"])
    if values.get("fixed_ips") is None and choices:
        ipam.give_any(connection, values["id"], network["id"], choices)
    for wish in values.get("fixed_ips") or ():
        _give(connection, values["id"], network["id"], choices, wish)


def _mac_in_use(values: Document) -> MagnetarError:
    return Conflict(f"Unable to complete operation for network {values['network_id']}. The mac address "
                 f"{values.get('mac_address')} is in use.", type="MacAddressInUse")


def _may_choose(context: Context, network: RowMapping, values: Document) -> None:
    if "mac_address" in values and network["project_id"] != context.project_id and not context.is_admin:
        raise forbidden("create_port:mac_address", "the network's own project and admins may choose it")


def _may_mark(connection: Connection, context: Context, verb: str, values: Document) -> None:
    """Whose server a port says that it is at, users do not choose: only their own."""
    if context.is_admin or not values["device_id"]:
        return
    project = connection.execute(select(server_mappings.c.project_id).where(
        server_mappings.c.server_id == values["device_id"])).scalar()
    if project is None and not values["device_owner"].startswith("compute:"):
        return  # no server, and nothing that says so
    if project != context.project_id:
        raise forbidden(f"{verb}_port:device_id", "device_id is no server of the project")


def _locked(connection: Connection, id: str) -> RowMapping:
    """The port, which no server takes until the transaction ends."""
    row = connection.execute(select(ports).where(ports.c.id == id).with_for_update()).mappings().first()
    if row is None:
        raise missing(PORT, id)
    return row


def _let_go(connection: Connection, row: RowMapping) -> None:
    """Raise ``Conflict`` while a server has the port: its address would be another's, and the guest would use it."""
    server = connection.execute(select(server_mappings.c.server_id).join(
        ports, ports.c.device_id == server_mappings.c.server_id).where(
        ports.c.id == row["id"], TAKEN, ~server_mappings.c.deleted)).scalar()
    if server is not None:
        raise Conflict(f"Port {row['id']} is in use by server {server}. Detach it there first: openstack server "
                    f"remove port {server} {row['id']}.", type="PortInUse")


def _choices(connection: Connection, network_id: str) -> Sequence[RowMapping]:
    return connection.execute(select(subnets).where(subnets.c.network_id == network_id)
                              .order_by(subnets.c.created_at, subnets.c.id)).mappings().all()


def _give(connection: Connection, port_id: str, network_id: str, choices: Sequence[RowMapping], wish: Document) -> None:
    subnet_id, ip = wish.get("subnet_id"), wish.get("ip_address")
    fitting = [one for one in choices if subnet_id in (None, one["id"])]
    if subnet_id and not fitting:
        raise InvalidRequest(f"Invalid input for operation: Failed to create port on network {network_id}, because "
                    f"fixed_ips included invalid subnet {subnet_id}.", type="InvalidInput")
    if ip is None:
        ipam.give_any(connection, port_id, network_id, fitting)
        return
    usable = next((one for one in fitting if ipam.usable(ip, one)), None)
    if usable is None:
        raise InvalidRequest(f"IP address {ip} is not a valid IP for " + ("the specified subnet." if subnet_id else
                    "any of the subnets on the specified network."), type="InvalidIpForNetwork")
    ipam.give(connection, port_id, usable, ip)


def _groups(connection: Connection, values: Document) -> list[str]:
    given, project = values.get("security_groups"), values["project_id"]
    if given is None:
        return [default_group(connection, project)] if values["port_security_enabled"] else []
    there = set(connection.execute(select(security_groups.c.id).where(
        security_groups.c.id.in_(given), security_groups.c.project_id == project)).scalars())
    for id in given:
        if id not in there:
            raise NotFound(f"Security group {id} does not exist", type="SecurityGroupNotFound")
    if given and not values["port_security_enabled"]:
        raise Conflict("Port Security must be enabled in order to have allowed address pairs and security groups on "
                    "a port.", type="PortSecurityAndIPRequiredForSecurityGroups")
    return list(dict.fromkeys(given))


def update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Change it; ``fixed_ips`` replaces the addresses: those that stay are kept."""
    row = _locked(connection, row["id"])
    if any(values.get(name, row[name]) != row[name] for name in ("device_id", "device_owner")):
        _let_go(connection, row)
        _may_mark(connection, context, "update", {**row, **values})
        values.update(made_for_server=False, place=None, tag=None)
    if "mac_address" in values:
        _change_mac(connection, context, row, values)
    if "security_groups" in values or values.get("port_security_enabled") is False:
        groups = values.get("security_groups") or []
        values["security_groups"] = _groups(connection, {**row, **values, "security_groups": groups})
    fixed = values.pop("fixed_ips", None)
    if fixed is not None:
        _readdress(connection, row, fixed)
    change(connection, ports, row["id"], {COLUMNS.get(name, name): value for name, value in values.items()})


def _change_mac(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    network = found(connection, context, NETWORK, row["network_id"])
    _may_choose(context, network, values)
    if row["host"]:
        raise Conflict(f"Unable to complete operation on port {row['id']}, port is already bound on host "
                    f"{row['host']}", type="PortBound")
    if connection.execute(select(ports.c.id).where(ports.c.mac_address == values["mac_address"],
                                                   ports.c.id != row["id"])).first():
        raise _mac_in_use({**row, **values})


def _readdress(connection: Connection, row: RowMapping, fixed: Sequence[Document]) -> None:
    have = addresses_of(connection, [row["id"]]).get(row["id"], [])
    wanted, stay = list(fixed), []
    for one in have:
        match = next((wish for wish in wanted if all(one[key] == value for key, value in wish.items())), None)
        if match is not None:
            wanted.remove(match)
            stay.append(one["ip_address"])
    if wanted or len(stay) < len(have):
        _let_go(connection, row)
    connection.execute(deleting(addresses).where(addresses.c.port_id == row["id"], addresses.c.ip_address.not_in(stay)))
    choices = _choices(connection, row["network_id"])
    for wish in wanted:
        _give(connection, row["id"], row["network_id"], choices, wish)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Remove it, unless a server has it: Neutron would have Nova detach it, which takes more than a transaction."""
    _let_go(connection, _locked(connection, row["id"]))
    remove(connection, ports, row["id"])


def _with_address(_context: Context, values: Sequence[str]) -> ColumnElement[bool]:
    """``fixed_ips=ip_address=…``, ``ip_address_substr=…`` and ``subnet_id=…``, of which all must hold."""
    columns = {"ip_address": addresses.c.ip_address, "subnet_id": addresses.c.subnet_id}
    query = select(addresses.c.port_id)
    wanted: dict[str, list[str]] = {}
    for value in values:
        name, _equals, given = value.partition("=")
        wanted.setdefault(name, []).append(given)
    for name, choices in wanted.items():
        if name == "ip_address_substr":
            query = query.where(or_(*(addresses.c.ip_address.contains(one, autoescape=True) for one in choices)))
        elif name in columns:
            query = query.where(columns[name].in_(choices))
        else:
            raise invalid("fixed_ips", f"'{name}' is not ip_address, ip_address_substr or subnet_id")
    return ports.c.id.in_(query)


def _with_group(_context: Context, values: Sequence[str]) -> ColumnElement[bool]:
    return or_(*(ports.c.security_groups.contains(f'"{value}"', autoescape=True) for value in values))


def visible(context: Context) -> ColumnElement[bool]:
    """The project's own."""
    return own(ports)(context)


PORT = Noun(
    name="port", plural="ports", path="ports", table=ports, attributes=ATTRIBUTES, show=show, create=create,
    update=update, delete=delete, visible=visible, columns=COLUMNS,
    filters={"fixed_ips": _with_address, "security_groups": _with_group, "security_group_ids": _with_group,
             "ip_address": lambda context, values: _with_address(context, [f"ip_address={one}" for one in values]),
             "subnet_id": lambda context, values: _with_address(context, [f"subnet_id={one}" for one in values])})
