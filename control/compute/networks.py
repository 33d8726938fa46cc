# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks and floating IPs as Nova passes them on (until 2.35; the addresses of servers until 2.43). The network
service has no floating IPs, and the addresses of a server's ports stay as they are."""

from __future__ import annotations

from magnetar_control.services import Document, Documents, Page
from magnetar_core.errors import InvalidRequest, NotFound

from .caller import Caller, use_case
from .target import Target, of_server

RULE, TENANT_RULE = "os_compute_api:os-networks:", "os_compute_api:os-tenant-networks:"
FLOATING_RULE = "os_compute_api:os-floating-ips:"


def _with_subnets(caller: Caller, found: Documents) -> Documents:
    """Networks, each with the document of its first ``subnet``, or ``None``."""
    subnets: dict[str, Document] = {}
    if found:
        for one in caller.cloud.services.network.resources["subnets"].list(
                caller.context, Page(filters={"network_id": [network["id"] for network in found]})):
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


# Floating IPs -----------------------------------------------------------------------------------------------------
@use_case("os_compute_api:os-floating-ip-pools")
def pools(_caller: Caller) -> Documents:
    """There is none."""
    return []


@use_case(f"{FLOATING_RULE}list")
def floating_ips(_caller: Caller) -> Documents:
    """There are none."""
    return []


@use_case(f"{FLOATING_RULE}create")
def allocate(_caller: Caller, pool: str | None = None) -> None:
    """Raises ``NotFound``."""
    raise NotFound(f"Floating IP pool {'' if pool is None else pool[:80] + ' '}not found: the network service has no "
                   "floating IPs.")


def _no_floating_ip(_caller: Caller, id: str) -> None:
    """Raises ``NotFound``."""
    raise NotFound(f"Floating IP not found for ID {id[:80]}")


show_floating_ip = use_case(f"{FLOATING_RULE}show")(_no_floating_ip)
release = use_case(f"{FLOATING_RULE}delete")(_no_floating_ip)


def _no_such_address(_caller: Caller, _target: Target, address: str) -> None:
    """Raises ``NotFound``."""
    raise NotFound(f"floating IP {address} not found: the network service has no floating IPs.")


associate = of_server(rule=f"{FLOATING_RULE}add")(_no_such_address)
disassociate = of_server(rule=f"{FLOATING_RULE}remove")(_no_such_address)


# The addresses of servers -----------------------------------------------------------------------------------------
_STAY = "The addresses of a NIC stay as they are while a server has it. {advice}"


@of_server("addFixedIp")
def add_address(_caller: Caller, _target: Target) -> None:
    """Raises ``InvalidRequest``."""
    raise InvalidRequest(_STAY.format(advice="Attach another NIC for another address: openstack server add network."))


@of_server("removeFixedIp")
def remove_address(caller: Caller, target: Target, address: str) -> None:
    """Raises ``NotFound`` for an address that the server does not have, else ``InvalidRequest``."""
    ports = caller.cloud.services.network.ports(target.row.id)
    if not any(one["ip_address"] == address for port in ports for one in port["fixed_ips"]):
        raise NotFound(f"Unable to find IP address {address} on the server.")
    raise InvalidRequest(_STAY.format(advice="Detach the NIC that has it: openstack server remove port."))
