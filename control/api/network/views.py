# SPDX-License-Identifier: GPL-3.0-or-later
"""The network service's resources as Neutron shows them (API reference, Networking v2.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.times import to_second
from magnetar_control.services import Document

Row = Mapping[Any, Any]
PORT = ("name", "network_id", "mac_address", "admin_state_up", "status", "device_id", "device_owner",
        "port_security_enabled", "fixed_ips", "security_groups")
RULE = ("security_group_id", "direction", "ethertype", "protocol", "port_range_min", "port_range_max",
        "remote_ip_prefix", "remote_group_id")


def _common(row: Row) -> Document:
    return {"id": row["id"], "project_id": row["project_id"], "tenant_id": row["project_id"],
            "description": row["description"], "created_at": to_second(row["created_at"]), "tags": [],
            "updated_at": to_second(row["updated_at"] or row["created_at"])}


def network(row: Row, admin: bool) -> Document:
    """A network; the provider part for admins."""
    provider = {"provider:network_type": row["type"], "provider:physical_network": row["bridge"],
                "provider:segmentation_id": None}
    return {**_common(row), "name": row["name"], "admin_state_up": row["admin_state_up"], "status": "ACTIVE",
            "shared": row["shared"], "is_default": row["is_default"], "router:external": False, "mtu": row["mtu"],
            "port_security_enabled": row["port_security_enabled"], "availability_zones": ["nova"],
            "availability_zone_hints": [], "ipv4_address_scope": None, "ipv6_address_scope": None,
            "subnets": row["subnets"], **(provider if admin else {})}


def subnet(row: Row, admin: bool) -> Document:  # noqa: ARG001 - all views take it
    """A subnet."""
    plain = ("name", "network_id", "cidr", "gateway_ip", "enable_dhcp", "allocation_pools", "dns_nameservers",
             "host_routes")
    return {**_common(row), **{name: row[name] for name in plain}, "ip_version": 4, "subnetpool_id": None,
            "ipv6_ra_mode": None, "ipv6_address_mode": None}


def port(row: Row, admin: bool) -> Document:
    """A port; the binding for admins."""
    binding = {"binding:host_id": row["host"], "binding:profile": row["profile"], "binding:vif_details": {},
               "binding:vif_type": "bridge" if row["host"] else "unbound"}
    return {**_common(row), **{name: row[name] for name in PORT}, "allowed_address_pairs": [], "extra_dhcp_opts": [],
            "binding:vnic_type": row["vnic_type"], **(binding if admin else {})}


def security_group(row: Row, admin: bool) -> Document:
    """A security group, with its rules."""
    return {**_common(row), "name": row["name"], "stateful": row["stateful"], "shared": False,
            "security_group_rules": [security_group_rule(rule, admin) for rule in row["rules"]]}


def security_group_rule(row: Row, admin: bool) -> Document:  # noqa: ARG001 - all views take it
    """A rule of a security group."""
    return {**_common(row), **{name: row[name] for name in RULE}}
