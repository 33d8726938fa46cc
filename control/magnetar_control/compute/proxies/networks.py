# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks and floating IPs as Nova passes them on (until 2.35; those of servers until 2.43). There are floating
IPs where the network service has an engine; the addresses of a server's ports stay as they are."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.target import Target, of_server
from magnetar_control.services import Document, Documents, NetworkResources, Page
from magnetar_control.services.network.ports.requested_networks import ATTACH_EXTERNAL
from magnetar_control.services.network.quotas import OVER
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_addresses import addresses_of_nics
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, NotFound

RULE, TENANT_RULE = "os_compute_api:os-networks:", "os_compute_api:os-tenant-networks:"
FLOATING_RULE = "os_compute_api:os-floating-ips:"


def _with_subnets(caller: Caller, found: Documents) -> Documents:
    """Networks, each with the document of its first ``subnet`` of IPv4, or ``None``."""
    subnets: dict[str, Document] = {}
    if found:
        for one in caller.cloud.services.network.resources["subnets"].list(
                caller.context, Page(filters={"network_id": [network["id"] for network in found],
                                            "ip_version": ["4"]})):
            subnets.setdefault(one["network_id"], one)
    return [{**network, "subnet": subnets.get(network["id"])} for network in found]


@use_case(f"{RULE}list")
def every(caller: Caller) -> Documents:
    """All that the caller may see, each with its ``subnet``."""
    return _with_subnets(caller, caller.cloud.services.network.resources["networks"].list(caller.context))


@use_case(f"{RULE}show")
def show(caller: Caller, id: str) -> Document:
    """One with its ``subnet``. Raises ``NotFound``."""
    found = caller.cloud.services.network.resources["networks"].show(caller.context, id)
    return _with_subnets(caller, [found])[0]


#: As the above, by rules of their own.
every_of_tenant = use_case(f"{TENANT_RULE}list")(every.function)
show_of_tenant = use_case(f"{TENANT_RULE}show")(show.function)


def check_requested(caller: Caller, requested: Any) -> Documents:
    """As ``Networks.check_requested``; what the caller may have on external networks, the policy says."""
    return caller.cloud.services.network.check_requested(
        caller.context, requested, external=caller.allows(ATTACH_EXTERNAL))


# Floating IPs -----------------------------------------------------------------------------------------------------
def _store(caller: Caller) -> NetworkResources | None:
    """Where the network service has them; ``None`` where it has none."""
    return caller.cloud.services.network.resources.get("floatingips")


def _pools(caller: Caller) -> dict[str, str]:
    """The external networks: uuid to name."""
    if _store(caller) is None:
        return {}
    return {one["id"]: one["name"] for one in caller.cloud.services.network.resources["networks"].list(
        caller.context, Page(filters={"external": ["true"]}))}


def _shown(caller: Caller, found: Documents) -> Documents:
    """In Nova's form: {id, ip, fixed_ip, instance_id, pool}."""
    pools = _pools(caller) if found else {}
    ports = [one["port_id"] for one in found if one["port_id"]]
    owners = {one["id"]: one["device_id"] for one in caller.cloud.services.network.resources["ports"].list(
        caller.context, Page(filters={"id": ports}))} if ports else {}
    return [{"id": one["id"], "ip": one["floating_ip_address"], "fixed_ip": one["fixed_ip_address"],
             "instance_id": owners.get(one["port_id"]) or None,
             "pool": pools.get(one["network_id"], one["network_id"])} for one in found]


@use_case("os_compute_api:os-floating-ip-pools")
def pools(caller: Caller) -> Documents:
    """The external networks."""
    return [{"name": name or id} for id, name in _pools(caller).items()]


def _mine(caller: Caller, **filters: str) -> Documents:
    store = _store(caller)
    return [] if store is None else store.list(caller.context, Page(filters={
        "project_id": [caller.project], **{name: [value] for name, value in filters.items()}}))


@use_case(f"{FLOATING_RULE}list")
def floating_ips(caller: Caller) -> Documents:
    """Those of the project."""
    return _shown(caller, _mine(caller))


@use_case(f"{FLOATING_RULE}create")
def allocate(caller: Caller, pool: str | None = None) -> Document:
    """One of the external network *pool*, by name or uuid; of the only one where that is left out. Raises
    ``NotFound``, ``Forbidden`` where the quota is used up."""
    store, there = _store(caller), _pools(caller)
    fitting = [id for id, name in there.items() if pool in (None, id, name)]
    if store is None or len(fitting) != 1:
        why = "the network service has no floating IPs" if store is None else f"pools are {', '.join(there.values())}"
        raise NotFound(f"Floating IP pool {'' if pool is None else pool[:80] + ' '}not found: {why}.")
    try:
        return _shown(caller, store.create(caller.context, {"network_id": fitting[0]}))[0]
    except Conflict as error:
        if error.details.get("type") != OVER:
            raise
        raise Forbidden(f"Maximum number of floating IPs exceeded. {error.message}") from None


def _found(caller: Caller, id: str) -> Document:
    found = _mine(caller, id=id)
    if not found:
        raise NotFound(f"Floating IP not found for ID {id[:80]}")
    return found[0]


@use_case(f"{FLOATING_RULE}show")
def show_floating_ip(caller: Caller, id: str) -> Document:
    """One. Raises ``NotFound``."""
    return _shown(caller, [_found(caller, id)])[0]


@use_case(f"{FLOATING_RULE}delete")
def release(caller: Caller, id: str) -> None:
    """Give it back. Raises ``NotFound``."""
    found, store = _found(caller, id), _store(caller)
    if store is not None:
        store.delete(caller.context, found["id"])


def _by_address(caller: Caller, address: str) -> tuple[NetworkResources, Document]:
    store, found = _store(caller), _mine(caller, floating_ip_address=address)
    if store is None or not found:
        raise NotFound(f"floating IP {address} not found" + (
            ": the network service has no floating IPs." if store is None else "."))
    return store, found[0]


@of_server(rule=f"{FLOATING_RULE}add")
def associate(caller: Caller, target: Target, address: str, fixed_address: str | None = None) -> None:
    """It reaches the server at *fixed_address*; at its first IPv4 address where that is left out. Raises ``NotFound``
    for another floating IP than the project's, ``InvalidRequest`` for all that the network service refuses."""
    store, found = _by_address(caller, address)
    fixed = [(port["port_id"], one["ip_address"]) for port in caller.cloud.services.network.ports(target.row.id)
             for one in port["fixed_ips"] if ":" not in one["ip_address"]]
    fitting = [one for one in fixed if fixed_address in (None, one[1])]
    if not fitting:
        raise InvalidRequest(f"Unable to associate floating IP {address}: the server has no fixed address "
                             f"{fixed_address or 'of IPv4'}.")
    port, ip = fitting[0]
    try:
        store.update(caller.context, found["id"], {"port_id": port, "fixed_ip_address": ip})
    except (Conflict, NotFound) as error:
        raise InvalidRequest(f"Unable to associate floating IP {address} to fixed IP {ip} for instance "
                             f"{target.row.id}. Error: {error.message}") from None


@of_server(rule=f"{FLOATING_RULE}remove")
def disassociate(caller: Caller, target: Target, address: str) -> None:
    """It does not reach the server any more. Raises ``NotFound``, 409 where it does not anyway."""
    store, found = _by_address(caller, address)
    if found["port_id"] not in {port["port_id"] for port in caller.cloud.services.network.ports(target.row.id)}:
        raise Conflict(f"Floating IP {address} is not associated with instance {target.row.id}.")
    store.update(caller.context, found["id"], {"port_id": None})


# The addresses of servers -----------------------------------------------------------------------------------------
@of_server("addFixedIp")
def add_address(caller: Caller, target: Target, network_id: str) -> None:
    """Give the server's port on a network one more address. Raises ``NotFound``, ``InvalidRequest``."""
    try:
        caller.cloud.services.network.change_address(target.row.id, network_id=network_id)
    except Conflict as error:  # no address is left
        raise InvalidRequest(error.message) from None
    _note_addresses(caller, target)


@of_server("removeFixedIp")
def remove_address(caller: Caller, target: Target, address: str) -> None:
    """Take an address away from the server. Raises ``InvalidRequest``, also for one that it does not have."""
    try:
        caller.cloud.services.network.change_address(target.row.id, address=address)
    except NotFound as error:
        raise InvalidRequest(error.message) from None
    _note_addresses(caller, target)


def _note_addresses(caller: Caller, target: Target) -> None:
    """Write down which addresses the server's ports have now."""
    has = {port["port_id"]: port for port in caller.cloud.services.network.ports(target.row.id)}
    with target.database.write() as connection:
        kept = servers.revise(connection, target.row.id, "interfaces", lambda nics: [
            {**nic, **{name: has[nic["port_id"]][name] for name in ("fixed_ips", "told")
                       if name in has.get(nic["port_id"], ())}} for nic in nics])
        servers.change(connection, target.row.id, addresses=servers.text(addresses_of_nics(kept, {})))
