# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports, created by users or together with a server (``nics``). Both are rows of the same table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select
from sqlalchemy import delete as deleting

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.networks import NETWORK, check_admin_state
from magnetar_control.services.network.resources import (
    NetworkResource,
    any_of,
    check_network_owner,
    check_once,
    column_values,
    find_resource_row,
    forbidden_by_policy,
    rows_of_caller,
)
from magnetar_control.services.network.routers.floating_ips import release_floating_ips
from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.security.security_groups import check_number, default_group
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import (
    SUBPORT,
    TAKEN,
    addresses,
    floating_ips,
    forwardings,
    has_group,
    networks,
    ports,
    security_groups,
)
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import server_mappings
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError, NotFound

from . import dns, qos, reservations, trunks, virtual_functions
from .nics import addresses_of
from .requested_networks import subnets_of
from .requested_networks import visible as usable_networks


def port_documents(usual: str, connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert port *rows* to documents for callers, with addresses, DNS names, trunk details and resource requests.
    *usual*: the DNS domain of networks without their own."""
    addresses_by_port = addresses_of(connection, [row["id"] for row in rows])
    domains, details = dns.domains_of_networks(connection, rows, usual), trunks.trunk_facts_of_ports(connection, rows)
    asking = reservations.port_resource_requests(connection, rows)
    return [_with_request({**row, **details[row["id"]], "fixed_ips": addresses_by_port.get(
        row["id"], []), "dns_assignment": dns.dns_assignment(
             row["dns_name"], addresses_by_port.get(row["id"], []), domains[row["network_id"]]),
             "profile": row["profile"] | row["device"]},
             asking.get(row["id"])) for row in rows]


def _with_request(port: Document, asking: Document | None) -> Document:
    """Return *port* with ``resource_request`` and, in its ``profile``, the resource provider of the port's bandwidth.
    *asking*: the port's value from ``reservations.port_resource_requests``; ``None`` if the port needs no bandwidth."""
    if asking is None:
        return {**port, "resource_request": None}
    allocation = {"allocation": asking["allocation"]} if asking["allocation"] else {}
    return {**port, "resource_request": asking["request"], "profile": {**port["profile"], **allocation}}


def create_port_row(connection: Connection, context: Context, values: Document,
                    engine_knows_smartnics: bool = True) -> None:
    """Check *values* and insert a port with its addresses and groups. *engine_knows_smartnics*: whether the network
    engine (OVN) supports SmartNICs."""
    network = find_resource_row(connection, context, NETWORK, values["network_id"])
    if network["external"] and connection.execute(select(networks.c.id).where(
            networks.c.id == network["id"], usable_networks(context))).first() is None:
        raise forbidden_by_policy("create_port",
                                  "the network is another project's; as an external one, routers and floating IPs "
                                       "have addresses of it")
    virtual_functions.set_default_port_security(values)
    virtual_functions.check_trust(values)
    _may_choose(context, network, values)
    if any("ip_address" in fixed_ip for fixed_ip in values.get("fixed_ips") or ()):
        _may_address(context, network, "create")
    _may_mark(connection, context, "create", values)
    _may_secure(context, network, "create", values, network["port_security_enabled"])
    values.setdefault("port_security_enabled", network["port_security_enabled"])
    values["security_groups"] = _groups(connection, values)
    _may_pair(context, network, "create", values)
    _check_pairs(network, values)
    check_admin_state(network, values["admin_state_up"])
    dns.check_dns_name(network, values["dns_name"])
    qos.check_qos_policy(connection, context, network, values)
    virtual_functions.check_host_device_port(connection, network, values, engine_knows_smartnics)
    mac = ipam.add_port(connection, **column_values(ports, values), status="DOWN", created_at=utc_now())
    if mac is None:
        raise _mac_in_use(values)
    choices = subnets_of(connection, [network["id"]])[network["id"]]
    if values.get("fixed_ips") is None:
        ipam.give_all(connection, values["id"], mac, choices, network["id"])
        return
    for wish in values["fixed_ips"]:
        _give_fixed_ip(connection, values["id"], network["id"], choices, wish)
    ipam.give_automatic(connection, values["id"], mac, choices)


def _check_free(row: RowMapping, operation: str, names: Collection[str]) -> None:
    """Raise ``Conflict`` if the port *row* belongs to the cloud itself, such as a router's interface, because users may
    not change or delete such a port. *names*: the fields that the request changes; if empty, no error is raised.
    *operation*: the operation in words, for the error."""
    if names and row["device_owner"].startswith(OWN):
        raise Conflict(f"Port {row['id']} cannot {operation} directly via the port API: has device owner "
                       f"{row['device_owner']}.", type="ServicePortInUse")


def changed_port_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the port *row* affects: ``port/ID``;
    ``group/ID`` of its old and new security groups, if they change; ``router/ID`` of the routers of its floating IPs,
    if the port may lose floating IPs. *changed*: the new values; ``None`` for a created or deleted port."""
    unit_keys = [f"port/{row['id']}"]
    if changed and "security_groups" in changed:  # addresses of ports on bridges are told with groups
        unit_keys += [f"group/{id}" for id in {*row["security_groups"], *(changed["security_groups"] or ())}]
    if changed is None or "fixed_ips" in changed:
        unit_keys += [f"router/{id}" for id in connection.execute(select(floating_ips.c.router_id).where(
            _leads_to(row))).scalars()]
    return unit_keys


def _leads_to(row: RowMapping) -> ColumnElement[bool]:
    """Return the SQL condition for the floating IPs that are associated with the port *row*, or have a port forwarding
    to it."""
    return or_(floating_ips.c.port_id == row["id"], floating_ips.c.id.in_(select(forwardings.c.floatingip_id).where(
        forwardings.c.internal_port_id == row["id"])))


def _check_pairs(network: RowMapping, values: Document) -> None:
    """Check the allowed address pairs in *values*, the values of a port on *network*. A pair without a MAC is treated
    as a pair with the port's MAC. Raises ``InvalidField`` for a duplicate, or if the network engine (OVN) does not make
    *network*. Raises ``Conflict`` if port security is off."""
    if not values.get("pairs"):
        return
    check_once("allowed_address_pairs", _pairs(values, values["pairs"]))
    if not network["by_engine"]:
        raise InvalidField("allowed_address_pairs", "must be empty: they act on networks that OVN makes, and the "
                                                    f"network of this port is of type {network['type']}, without it")
    if not values["port_security_enabled"]:
        raise Conflict("Port Security must be enabled in order to have allowed address pairs and security groups on a "
                       "port.", type="AddressPairAndPortSecurityRequired")


def _pairs(port: Document, pairs: Sequence[Document]) -> list[Document]:
    """Return the address pairs *pairs*; a pair without a MAC gets the MAC of *port*."""
    return [{"mac_address": port.get("mac_address"), **pair} for pair in pairs]


def _mac_in_use(values: Document) -> MagnetarError:
    return Conflict(f"Unable to complete operation for network {values['network_id']}. The mac address "
                 f"{values.get('mac_address')} is in use.", type="MacAddressInUse")


def _may_choose(context: Context, network: RowMapping, values: Document) -> None:
    if "mac_address" in values:
        check_network_owner(context, network["project_id"], "create_port:mac_address", "the MAC address")


def _may_address(context: Context, network: RowMapping, verb: str) -> None:
    """Raise ``Forbidden`` unless the caller may choose the addresses of a port on *network*. Only admins and the
    network's owner may: another project's server may just have released the chosen address. *verb*: create or update,
    for the error."""
    check_network_owner(context, network["project_id"], f"{verb}_port:fixed_ips:ip_address", "addresses")


def _may_secure(context: Context, network: RowMapping, verb: str, values: Document, usual: bool) -> None:
    """Raise ``Forbidden`` if *values* set port security to another value than *usual*, and the caller is neither an
    admin nor the owner of *network*: without port security, a port can use any other address of the network. *verb*:
    create or update, for the error."""
    port_security = values.get("port_security_enabled", usual)
    if port_security != usual:
        check_network_owner(context, network["project_id"], f"{verb}_port:port_security_enabled", "port security")


def _may_pair(context: Context, network: RowMapping, verb: str, port: Document, have: Sequence[Document] = ()) -> None:
    """Raise ``Forbidden`` if *port* gets new address pairs, and the caller is neither an admin nor the owner of
    *network*: with pairs, a port can use other addresses of the network. *have*: the port's present pairs, which may
    remain. *verb*: create or update, for the error."""
    requested_pairs, current_pairs = _pairs(port, port["pairs"]), _pairs(port, have)
    if any(pair not in current_pairs for pair in requested_pairs):
        check_network_owner(context, network["project_id"], f"{verb}_port:allowed_address_pairs", "address pairs")


def _may_mark(connection: Connection, context: Context, verb: str, values: Document) -> None:
    """Check ``device_id`` and ``device_owner`` in *values*, the values of a port. Raises ``InvalidField`` if only the
    cloud itself may set this ``device_owner``. Raises ``Forbidden`` if a caller without admin rights names a server of
    another project, or an unknown server with a ``device_owner`` compute:…. *verb*: create or update, for the error."""
    if values["device_owner"].startswith((OWN, SUBPORT)):
        raise InvalidField("device_owner", f"must not begin with {OWN} or {SUBPORT}, as the cloud's own ports do and "
                                           "subports of trunks", values["device_owner"])
    if context.is_admin or not values["device_id"]:
        return
    project = connection.execute(select(server_mappings.c.project_id).where(
        server_mappings.c.server_id == values["device_id"])).scalar()
    if project is None and not values["device_owner"].startswith("compute:"):
        return  # no server, and it does not claim to be one
    if project != context.project_id:
        raise forbidden_by_policy(f"{verb}_port:device_id", "device_id is no server of the project")


def _check_unused(connection: Connection, row: RowMapping) -> None:
    """Raise ``Conflict`` while a server has the port *row*. If such a port were changed or deleted, its address could
    be given to another port, although the guest still uses it."""
    server = connection.execute(select(server_mappings.c.server_id).join(
        ports, ports.c.device_id == server_mappings.c.server_id).where(
        ports.c.id == row["id"], TAKEN, ~server_mappings.c.deleted)).scalar()
    if server is not None:
        raise Conflict(f"Port {row['id']} is in use by server {server}. Detach it there first: openstack server "
                    f"remove port {server} {row['id']}.", type="PortInUse", server=server)


def _give_fixed_ip(connection: Connection, port_id: str, network_id: str, choices: Sequence[RowMapping],
                   wish: Document) -> None:
    subnet_id = wish.get("subnet_id")
    fitting = [subnet for subnet in choices if subnet_id in (None, subnet["id"])]
    if subnet_id and not fitting:
        raise InvalidRequest(f"Invalid input for operation: Failed to create port on network {network_id}, because "
                    f"fixed_ips included invalid subnet {subnet_id}.", type="InvalidInput")
    ipam.give_address(connection, port_id, network_id, fitting, wish.get("ip_address"),
                      "the specified subnet" if subnet_id else "any of the subnets on the specified network")


def _groups(connection: Connection, values: Document) -> list[str]:
    """Return the ids of the security groups that a port with *values* gets: the requested ones, or the project's
    default group. Locks the groups, always in the same order, to avoid deadlocks. Raises ``NotFound``,
    ``InvalidField``, ``Conflict``."""
    group_ids, project = values.get("security_groups"), values["project_id"]
    if group_ids is None:
        return [default_group(connection, project)] if values["port_security_enabled"] else []
    check_number(group_ids)
    existing_ids = set(connection.execute(select(security_groups.c.id).where(
        security_groups.c.id.in_(group_ids), (security_groups.c.project_id == project) | sharing.shared_with(
            security_groups, project)).order_by(security_groups.c.id).with_for_update(key_share=True)).scalars())
    for id in group_ids:
        if id not in existing_ids:
            raise NotFound(f"Security group {id} does not exist", type="SecurityGroupNotFound")
    if group_ids and not values["port_security_enabled"]:
        raise Conflict("Port Security must be enabled in order to have allowed address pairs and security groups on "
                    "a port.", type="PortSecurityAndIPRequiredForSecurityGroups")
    return list(dict.fromkeys(group_ids))


def prepare_port_update(connection: Connection, context: Context, row: RowMapping, values: Document,
                        engine_knows_smartnics: bool = True) -> None:
    """Check the new *values* of the port *row*, and add derived values. This function writes new addresses
    (``fixed_ips``) to the database; the caller writes the other values. *engine_knows_smartnics*: whether the network
    engine (OVN) supports SmartNICs."""
    # no server gets the port until the transaction ends
    row = find_resource_row(connection, context, PORT, row["id"], lock=True)
    _check_free(row, "be changed", values.keys() - {"name", "description"})
    if any(values.get(name, row[name]) != row[name] for name in ("device_id", "device_owner")):
        _check_unused(connection, row)
        trunks.check_no_subport(connection, row["id"])
        _may_mark(connection, context, "update", {**row, **values})
        values.update(made_for_server=False, place=None, tag=None)
    if values.get("port_security_enabled", row["port_security_enabled"]) != row["port_security_enabled"]:
        network = find_resource_row(connection, context, NETWORK, row["network_id"])
        _may_secure(context, network, "update", values, row["port_security_enabled"])
        if not network["by_engine"]:
            _check_unused(connection, row)
    if "mac_address" in values:
        _change_mac(connection, context, row, values)
    if "security_groups" in values or values.get("port_security_enabled") is False:
        groups = values.get("security_groups") or []
        values["security_groups"] = _groups(connection, {**row, **values, "security_groups": groups})
    _check_with_network(connection, context, row, values)
    if virtual_functions.is_host_device({**row, **values}) or "vnic_type" in values or "profile" in values:
        _check_function(connection, context, row, values, engine_knows_smartnics)
    if (fixed := values.pop("fixed_ips", None)) is not None:
        _readdress(connection, context, row, fixed)


def _check_with_network(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the port *row* that depend on its network: admin state, address pairs, DNS name and QoS
    policy."""
    pairs, name = values.get("pairs") or values.get("port_security_enabled") is False, values.get("dns_name")
    down = values.get("admin_state_up") is False
    if not (pairs or name or down or "qos_policy_id" in values):
        return
    network = find_resource_row(connection, context, NETWORK, row["network_id"])
    check_admin_state(network, not down)
    if pairs:
        _may_pair(context, network, "update", {**row, **values}, row["pairs"])
        _check_pairs(network, {**row, **values})
    if name:
        dns.check_dns_name(network, name)
    if "qos_policy_id" in values:
        qos.check_qos_policy(connection, context, network, values, row["qos_policy_id"])
        reservations.check_policy(connection, ports.c.id == row["id"], row["qos_policy_id"] or network["qos_policy_id"],
                                  values["qos_policy_id"] or network["qos_policy_id"])


def _check_function(connection: Connection, context: Context, row: RowMapping, values: Document,
                    engine_knows_smartnics: bool) -> None:
    """Check changes of a port that matter for devices of its host (virtual functions): ``vnic_type``, trust and QoS
    policy. Raises ``Conflict`` while a server has the port, because the server has claimed the device. A change of
    ``vnic_type`` also raises ``Conflict`` while the port has a floating IP or is in a trunk. *engine_knows_smartnics*:
    whether the network engine (OVN) supports SmartNICs."""
    virtual_functions.check_trust({**row, **values})
    other = values.get("qos_policy_id",
                       row["qos_policy_id"]) != row["qos_policy_id"] and virtual_functions.is_host_device(row)
    if other or virtual_functions.is_trusted({**row, **values}) != virtual_functions.is_trusted(row):
        _check_unused(connection, row)
    if values.get("vnic_type", row["vnic_type"]) != row["vnic_type"]:
        _check_unused(connection, row)
        trunks.check_in_none(connection, row["id"])
        floating = connection.execute(select(floating_ips.c.floating_ip_address).where(
            _leads_to(row)).limit(1)).scalar()
        if floating is not None:
            raise Conflict(f"Port {row['id']} has floating IP {floating}, or a port forwarding of it, which OVN gives "
                           "and a device of a host cannot have. Take it from the port first.", type="PortInUse")
    virtual_functions.check_host_device_port(connection, find_resource_row(connection, context, NETWORK,
                                                                           row["network_id"]), {**row, **values},
                                             engine_knows_smartnics)


def _change_mac(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    network = find_resource_row(connection, context, NETWORK, row["network_id"])
    _may_choose(context, network, values)
    if row["host"] or trunks.trunk_facts_of_ports(connection, [row])[row["id"]].get("host"):
        raise Conflict(f"Unable to complete operation on port {row['id']}, port is already bound"
                    f"{' on host ' + row['host'] if context.knows_hosts else ''}", type="PortBound")
    if connection.execute(select(ports.c.id).where(ports.c.mac_address == values["mac_address"],
                                                   ports.c.id != row["id"])).first():
        raise _mac_in_use({**row, **values})
    choices = [subnet for subnet in subnets_of(connection, [network["id"]])[network["id"]] if ipam.by_itself(subnet)]
    connection.execute(deleting(addresses).where(addresses.c.port_id == row["id"], addresses.c.subnet_id.in_(
        [subnet["id"] for subnet in choices])))
    ipam.give_automatic(connection, row["id"], values["mac_address"], choices)


def _readdress(connection: Connection, context: Context, row: RowMapping, fixed: Sequence[Document]) -> None:
    choices = subnets_of(connection, [row["network_id"]])[row["network_id"]]
    # the port always has an address in these subnets
    automatic = {subnet["id"] for subnet in choices if ipam.by_itself(subnet)}
    have = [fixed_ip for fixed_ip in addresses_of(connection, [row["id"]]).get(row["id"], [])
            if fixed_ip["subnet_id"] not in automatic]
    new_ips, stay = [fixed_ip for fixed_ip in fixed if fixed_ip.get("subnet_id") not in automatic
                     or "ip_address" in fixed_ip], []
    for current_ip in have:
        match = next((wish for wish in new_ips if all(current_ip[key] == value for key, value in wish.items())), None)
        if match is not None:
            new_ips.remove(match)
            stay.append(current_ip["ip_address"])
    if any("ip_address" in fixed_ip for fixed_ip in new_ips):
        _may_address(context, find_resource_row(connection, context, NETWORK, row["network_id"]), "update")
    if new_ips or len(stay) < len(have):
        _check_unused(connection, row)
    release_floating_ips(connection, [row["id"]], stay)
    connection.execute(deleting(addresses).where(addresses.c.port_id == row["id"], addresses.c.ip_address.not_in(stay),
                                                 addresses.c.subnet_id.not_in(automatic)))
    for wish in new_ips:
        _give_fixed_ip(connection, row["id"], row["network_id"], choices, wish)
    ipam.give_automatic(connection, row["id"], row["mac_address"], choices)


def prepare_port_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Check that the port *row* may be deleted, and release its floating IPs. Raises ``Conflict`` while a server has
    the port: the caller must detach the port first (``interfaces.delete_port``)."""
    row = find_resource_row(connection, context, PORT, row["id"], lock=True)
    _check_free(row, "be deleted", {"id"})
    trunks.check_in_none(connection, row["id"])
    _check_unused(connection, row)
    release_floating_ips(connection, [row["id"]])


def _with_address(values: Sequence[str]) -> ColumnElement[bool]:
    """Return the SQL condition for the list filter ``fixed_ips`` of ports. *values*: texts of the form ip_address=…,
    ip_address_substr=… or subnet_id=…. A port matches if one of its addresses matches every name that occurs in
    *values*. If a name occurs several times, the address must match only one of its values."""
    columns = {"ip_address": addresses.c.ip_address, "subnet_id": addresses.c.subnet_id}
    query = select(addresses.c.port_id)
    values_by_name: dict[str, list[str]] = {}
    for value in values:
        name, _equals, filter_value = value.partition("=")
        values_by_name.setdefault(name, []).append(filter_value)
    for name, choices in values_by_name.items():
        if name == "ip_address_substr":
            query = query.where(any_of("fixed_ips", choices, lambda substring: addresses.c.ip_address.contains(
                substring, autoescape=True)))
        elif name in columns:
            query = query.where(columns[name].in_(choices))
        else:
            raise InvalidField("fixed_ips", "must be ip_address=…, ip_address_substr=… or subnet_id=…", name)
    return ports.c.id.in_(query)


def _are_few(filters: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether the *filters* of a list request match only few ports, even among the ports of all projects (for
    example, ``mac_address``). Then the database should use the index of such a filter, instead of reading all ports of
    the caller's project."""
    return not _OF_FEW.isdisjoint(filters) or any(
        value.startswith("ip_address=") for value in filters.get("fixed_ips", ()))


def _with_group(values: Sequence[str]) -> ColumnElement[bool]:
    return any_of("security_groups", values, has_group)


#: Filters that match only few ports of all projects.
_OF_FEW = frozenset({"id", "mac_address", "device_id", "ip_address"})
PORT = NetworkResource(
    name="port", table=ports, visible=rows_of_caller(ports), few=_are_few, documents=partial(port_documents, ""),
    create=create_port_row,
    update=prepare_port_update, delete=prepare_port_delete,
    defaults={"name": "", "description": "", "admin_state_up": True, "device_id": "", "device_owner": "", "host": "",
              "profile": {}, "vnic_type": "normal", "pairs": [], "dns_name": ""},
    units=changed_port_units, admin=frozenset({"host", "profile"}), private=frozenset({"host"}),
    filters={"fixed_ips": _with_address, "security_groups": _with_group, "security_group_ids": _with_group,
             "ip_address": lambda values: _with_address([f"ip_address={address}" for address in values]),
             "subnet_id": lambda values: _with_address([f"subnet_id={subnet_id}" for subnet_id in values]),
             **{name: trunks.binding_filter(name) for name in ("status", "host")}})


def port_resource(usual_domain: str, *, engine_knows_smartnics: bool) -> NetworkResource:
    """Return the definition of the resource type "port" (its table, checks, fields and filters). *usual_domain*: the
    DNS domain of networks without their own. *engine_knows_smartnics*: whether the network engine (OVN) supports
    SmartNICs."""
    return replace(PORT, documents=partial(port_documents, usual_domain),
                   create=partial(create_port_row, engine_knows_smartnics=engine_knows_smartnics),
                   update=partial(prepare_port_update, engine_knows_smartnics=engine_knows_smartnics))
