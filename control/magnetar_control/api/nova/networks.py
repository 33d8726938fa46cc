# SPDX-License-Identifier: GPL-3.0-or-later
"""os-networks, os-tenant-networks and floating IPs, until 2.35: the API of the network service as Nova proxies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any

from magnetar_control.compute.proxies import networks
from magnetar_core.values import Nullable, Text

from .fields import ApiField, Fields, View
from .operation import ApiOperation, Call, operation_factory, shown_as
from .values import PROXIES, body_object

Shown = Callable[[View, Mapping[str, Any]], Any]


def _of_subnet(show: Callable[[Mapping[str, Any]], Any]) -> Shown:
    """Return a function for ``ApiField.show`` that applies *show* to a network's subnet; for a network without a subnet
    it returns ``None``."""
    return lambda _view, network: show(network["subnet"]) if network["subnet"] else None


def _column(name: str) -> Shown:
    return lambda _view, network: network[name]


def _name_server(place: int) -> Shown:
    return _of_subnet(lambda subnet: next(iter(subnet["dns_nameservers"][place:place + 1]), None))


#: Fields of the former nova-network, which administrators still see, and their values.
ADMINS: Mapping[str, Shown | None] = {
    **dict.fromkeys((
        "bridge_interface", "deleted", "deleted_at", "dhcp_server", "dhcp_start", "host", "injected", "multi_host",
        "priority", "rxtx_base", "share_address", "vlan", "vpn_private_address", "vpn_public_address",
        "vpn_public_port")),
    **{name: _column(name) for name in ("bridge", "created_at", "mtu", "project_id", "updated_at")},
    "enable_dhcp": _of_subnet(lambda subnet: subnet["enable_dhcp"])}


def _nothing(_view: View, _network: Mapping[str, Any]) -> None:
    return None


#: brief: for os-tenant-networks. show: for all callers; admin: for administrators.
FIELDS = Fields(
    ApiField("id", shows="brief show admin"),
    ApiField("label", name="name", shows="brief show admin"),
    ApiField("cidr", shows="brief", show=lambda _view, network: str((network["subnet"] or {}).get("cidr"))),
    ApiField("cidr", shows="show admin", show=_of_subnet(lambda subnet: subnet["cidr"])),
    ApiField("netmask", shows="show admin", show=_of_subnet(lambda subnet: str(ip_network(subnet["cidr"]).netmask))),
    ApiField("broadcast", shows="show admin", show=_of_subnet(
        lambda subnet: str(ip_network(subnet["cidr"]).broadcast_address))),
    ApiField("gateway", shows="show admin", show=_of_subnet(lambda subnet: subnet["gateway_ip"])),
    ApiField("dns1", shows="show admin", show=_name_server(0)),
    ApiField("dns2", shows="show admin", show=_name_server(1)),
    *(ApiField(name, shows="show admin", show=_nothing) for name in ("cidr_v6", "gateway_v6", "netmask_v6")),
    *(ApiField(name, shows="admin", show=show or _nothing) for name, show in ADMINS.items()),
    mapping=True)


def _document(call: Call) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return View(call, FIELDS, "admin" if call.is_admin else "show").document


_row = operation_factory("os-networks", "/os-networks", until=PROXIES)
_tenant = operation_factory("os-tenant-networks", "/os-tenant-networks", until=PROXIES)
_floating = operation_factory("os-floating-ips", "/os-floating-ips", until=PROXIES)
OPERATIONS = (
    _row("GET", "", "list", networks.list_networks, shown=lambda call,
         network_documents: {"networks": [*map(_document(call), network_documents)]}),
    _row("GET", "/{id}", "show", networks.show_network, shown=lambda call,
         network: {"network": _document(call)(network)}),
    _tenant("GET", "", "list", networks.list_tenant_networks, shown=FIELDS.many("networks", "brief")),
    _tenant("GET", "/{id}", "show", networks.show_tenant_network, shown=FIELDS.one("network", "brief")),
    ApiOperation(method="GET", path="/os-floating-ip-pools", name="os-floating-ip-pools.list", until=PROXIES,
                 use=networks.list_floating_ip_pools, shown=shown_as("floating_ip_pools")),
    _floating("GET", "", "list", networks.list_floating_ips, shown=shown_as("floating_ips")),
    _floating("POST", "", "create", networks.allocate_floating_ip, given=lambda call: call.body or {},
              shown=shown_as("floating_ip"),
              body=Nullable(body_object({"pool": Nullable(Text(0, 255))}))),
    _floating("GET", "/{id}", "show", networks.show_floating_ip, shown=shown_as("floating_ip")),
    _floating("DELETE", "/{id}", "delete", networks.release_floating_ip, status=202),
)
