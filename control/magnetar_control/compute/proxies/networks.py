# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks and floating IPs that Nova forwards to the network service (until 2.35; floating IPs of servers until 2.43),
and fixed IPs of servers. Only a network service with an engine (``services.network.engine``) has floating IPs."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_control.documents import PortRequest
from magnetar_control.services import NetworkResources, Page
from magnetar_control.services.network.ports.requested_networks import ATTACH_EXTERNAL
from magnetar_control.services.network.quotas import OVER
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.servers import addresses_of_nics
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, NotFound

RULE, TENANT_RULE = "os_compute_api:os-networks:", "os_compute_api:os-tenant-networks:"
FLOATING_RULE = "os_compute_api:os-floating-ips:"


def _with_subnets(caller: Caller, networks: Documents) -> Documents:
    """Return *networks* with an added key ``subnet``: the first IPv4 subnet of the network, or ``None``."""
    subnets: dict[str, Document] = {}
    if networks:
        for subnet in caller.cloud.services.network.resources["subnets"].list(
                caller.context, Page(filters={"network_id": [network["id"] for network in networks],
                                            "ip_version": ["4"]})):
            subnets.setdefault(subnet["network_id"], subnet)
    return [{**network, "subnet": subnets.get(network["id"])} for network in networks]


@use_case(f"{RULE}list")
def list_networks(caller: Caller) -> Documents:
    """Return all networks that the caller may see. Each has the key ``subnet``: its first IPv4 subnet, or ``None``."""
    return _with_subnets(caller, caller.cloud.services.network.resources["networks"].list(caller.context))


@use_case(f"{RULE}show")
def show_network(caller: Caller, id: str) -> Document:
    """Return the network *id* with the key ``subnet``: its first IPv4 subnet, or ``None``. Raises ``NotFound``."""
    network = caller.cloud.services.network.resources["networks"].show(caller.context, id)
    return _with_subnets(caller, [network])[0]


#: The same as ``list_networks`` and ``show_network``, with policy rules of their own.
list_tenant_networks = use_case(f"{TENANT_RULE}list")(list_networks.function)
show_tenant_network = use_case(f"{TENANT_RULE}show")(show_network.function)


def resolve_requested_networks(caller: Caller, requested: Any) -> list[PortRequest]:
    """Let the network service check the *requested* networks of a new server, and return one request for each NIC.
    *requested*: ``none``, ``auto``, or a list of {uuid, port, fixed_ip, tag} as in Nova's API; empty: the default
    network. A policy rule decides whether the caller may use external networks."""
    return caller.cloud.services.network.check_requested(
        caller.context, requested, external=caller.allows(ATTACH_EXTERNAL))


# Floating IPs -----------------------------------------------------------------------------------------------------
def _floating_ip_store(caller: Caller) -> NetworkResources | None:
    """Return the network service's resource collection ``floatingips``; ``None`` if the service has no floating IPs."""
    return caller.cloud.services.network.resources.get("floatingips")


def _external_networks(caller: Caller) -> dict[str, str]:
    """Return the names of the external networks by uuid."""
    if _floating_ip_store(caller) is None:
        return {}
    return {network["id"]: network["name"] for network in caller.cloud.services.network.resources["networks"].list(
        caller.context, Page(filters={"external": ["true"]}))}


def _floating_ip_documents(caller: Caller, floating_ips: Documents) -> Documents:
    """Return floating IPs in Nova's form: {id, ip, fixed_ip, instance_id, pool}."""
    pools = _external_networks(caller) if floating_ips else {}
    ports = [floating_ip["port_id"] for floating_ip in floating_ips if floating_ip["port_id"]]
    owners = {port["id"]: port["device_id"] for port in caller.cloud.services.network.resources["ports"].list(
        caller.context, Page(filters={"id": ports}))} if ports else {}
    return [{"id": floating_ip["id"], "ip": floating_ip["floating_ip_address"],
             "fixed_ip": floating_ip["fixed_ip_address"], "instance_id": owners.get(floating_ip["port_id"]) or None,
             "pool": pools.get(floating_ip["network_id"], floating_ip["network_id"])} for floating_ip in floating_ips]


@use_case("os_compute_api:os-floating-ip-pools")
def list_floating_ip_pools(caller: Caller) -> Documents:
    """Return the external networks, which are the floating IP pools of Nova's API."""
    return [{"name": name or id} for id, name in _external_networks(caller).items()]


def _project_floating_ips(caller: Caller, **filters: str) -> Documents:
    store = _floating_ip_store(caller)
    return [] if store is None else store.list(caller.context, Page(filters={
        "project_id": [caller.project], **{name: [value] for name, value in filters.items()}}))


@use_case(f"{FLOATING_RULE}list")
def list_floating_ips(caller: Caller) -> Documents:
    """Return the floating IPs of the caller's project."""
    return _floating_ip_documents(caller, _project_floating_ips(caller))


@use_case(f"{FLOATING_RULE}create")
def allocate_floating_ip(caller: Caller, pool: str | None = None) -> Document:
    """Allocate and return a floating IP of the external network *pool* (name or uuid), or of the only external network.
    Raises ``NotFound``, ``Forbidden`` when the quota is used up."""
    store, pools = _floating_ip_store(caller), _external_networks(caller)
    fitting = [id for id, name in pools.items() if pool in (None, id, name)]
    if store is None or len(fitting) != 1:
        why = "the network service has no floating IPs" if store is None else f"pools are {', '.join(pools.values())}"
        raise NotFound(f"Floating IP pool {'' if pool is None else pool[:80] + ' '}not found: {why}.")
    try:
        return _floating_ip_documents(caller, store.create(caller.context, {"network_id": fitting[0]}))[0]
    except Conflict as error:
        if error.details.get("type") != OVER:
            raise
        raise Forbidden(f"Maximum number of floating IPs exceeded. {error.message}") from None


def _find_floating_ip(caller: Caller, id: str) -> Document:
    matches = _project_floating_ips(caller, id=id)
    if not matches:
        raise NotFound(f"Floating IP not found for ID {id[:80]}")
    return matches[0]


@use_case(f"{FLOATING_RULE}show")
def show_floating_ip(caller: Caller, id: str) -> Document:
    """Return the floating IP *id*. Raises ``NotFound``."""
    return _floating_ip_documents(caller, [_find_floating_ip(caller, id)])[0]


@use_case(f"{FLOATING_RULE}delete")
def release_floating_ip(caller: Caller, id: str) -> None:
    """Release the floating IP *id* of the project. Raises ``NotFound``."""
    floating_ip, store = _find_floating_ip(caller, id), _floating_ip_store(caller)
    if store is not None:
        store.delete(caller.context, floating_ip["id"])


def _by_address(caller: Caller, address: str) -> tuple[NetworkResources, Document]:
    store, matches = _floating_ip_store(caller), _project_floating_ips(caller, floating_ip_address=address)
    if store is None or not matches:
        raise NotFound(f"floating IP {address} not found" + (
            ": the network service has no floating IPs." if store is None else "."))
    return store, matches[0]


@server_use_case(rule=f"{FLOATING_RULE}add")
def associate_floating_ip(caller: Caller, target: ServerTarget, address: str, fixed_address: str | None = None) -> None:
    """Associate the floating IP *address* with the server's *fixed_address*, or with its first IPv4 address if
    *fixed_address* is ``None``. Raises ``NotFound`` for a floating IP of another project, ``InvalidRequest`` for every
    request that the network service refuses."""
    store, floating_ip = _by_address(caller, address)
    fixed = [(port["port_id"], fixed_ip["ip_address"]) for port in caller.cloud.services.network.ports(target.row.id)
             for fixed_ip in port["fixed_ips"] if ":" not in fixed_ip["ip_address"]]
    fitting = [port_address for port_address in fixed if fixed_address in (None, port_address[1])]
    if not fitting:
        raise InvalidRequest(f"Unable to associate floating IP {address}: the server has no fixed address "
                             f"{fixed_address or 'of IPv4'}.")
    port, ip = fitting[0]
    try:
        store.update(caller.context, floating_ip["id"], {"port_id": port, "fixed_ip_address": ip})
    except (Conflict, NotFound) as error:
        raise InvalidRequest(f"Unable to associate floating IP {address} to fixed IP {ip} for instance "
                             f"{target.row.id}. Error: {error.message}") from None


@server_use_case(rule=f"{FLOATING_RULE}remove")
def disassociate_floating_ip(caller: Caller, target: ServerTarget, address: str) -> None:
    """Disassociate the floating IP *address* from the server. Raises ``NotFound``, or ``Conflict`` when the floating IP
    is not associated with this server."""
    store, floating_ip = _by_address(caller, address)
    if floating_ip["port_id"] not in {port["port_id"] for port in caller.cloud.services.network.ports(target.row.id)}:
        raise Conflict(f"Floating IP {address} is not associated with instance {target.row.id}.")
    store.update(caller.context, floating_ip["id"], {"port_id": None})


# Addresses of servers ---------------------------------------------------------------------------------------------
@server_use_case("addFixedIp")
def add_fixed_ip(caller: Caller, target: ServerTarget, network_id: str) -> None:
    """Add another fixed IP to the server's port on the network *network_id*. Raises ``NotFound``, ``InvalidRequest``.
    """
    try:
        caller.cloud.services.network.change_address(target.row.id, network_id=network_id)
    except Conflict as error:  # no address is left
        raise InvalidRequest(error.message) from None
    _note_addresses(caller, target)


@server_use_case("removeFixedIp")
def remove_fixed_ip(caller: Caller, target: ServerTarget, address: str) -> None:
    """Remove the fixed IP *address* from the server. Raises ``InvalidRequest``, also when the server does not have this
    address."""
    try:
        caller.cloud.services.network.change_address(target.row.id, address=address)
    except NotFound as error:
        raise InvalidRequest(error.message) from None
    _note_addresses(caller, target)


def _note_addresses(caller: Caller, target: ServerTarget) -> None:
    """Store the current addresses of the server's ports in the server's row."""
    has = {port["port_id"]: port for port in caller.cloud.services.network.ports(target.row.id)}
    with target.database.write() as connection:
        revised_nics = servers.update_list_column(connection, target.row.id, "interfaces", lambda nics: [
            {**nic, **{name: has[nic["port_id"]][name] for name in ("fixed_ips", "told")
                       if name in has.get(nic["port_id"], ())}} for nic in nics])
        servers.update_server_row(connection, target.row.id, addresses=servers.json_text(addresses_of_nics(revised_nics,
                                                                                                           {})))
