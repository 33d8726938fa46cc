# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the embedded network service, in the API database."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from magnetar_control.store.engine.tables import API, DOCUMENT, NAME, UUID, stamped


def owned() -> tuple[Column[Any], ...]:
    """What each thing of a project has."""
    return (Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
            Column("name", NAME, nullable=False), Column("description", NAME, nullable=False, default=""),
            Column("tags", DOCUMENT, nullable=False, default="[]"))


qos_policies = Table(
    "qos_policies", API, *owned(), Column("shared", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False), *stamped(),
    Index("qos_policies_project", "project_id"))

#: ``kind``: see ``qos.KINDS``; a rule has the columns of its kind.
qos_rules = Table(
    "qos_rules", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("policy_id", UUID, ForeignKey("qos_policies.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(32), nullable=False), Column("direction", String(8), nullable=False),
    Column("max_kbps", BigInteger), Column("max_burst_kbps", BigInteger), Column("dscp_mark", Integer),
    Column("min_kbps", BigInteger), *stamped(),
    Index("qos_rules_policy", "policy_id", "kind", "direction", unique=True))

#: ``type``: nat or isolated, which the agents make on each host; flat, a bridge that the hosts have. Those
#: ``by_engine``: ovn, between hosts; flat and vlan, the physical network ``bridge``, with the VLAN tag ``segment``.
networks = Table(
    "networks", API, *owned(), Column("admin_state_up", Boolean, nullable=False, default=True),
    Column("shared", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False), Column("type", String(16), nullable=False),
    Column("bridge", NAME), Column("segment", Integer), Column("by_engine", Boolean, nullable=False, default=False),
    Column("external", Boolean, nullable=False, default=False),
    Column("mtu", Integer, nullable=False, default=1500), Column("dns_domain", NAME, nullable=False, default=""),
    Column("port_security_enabled", Boolean, nullable=False, default=True),
    Column("qos_policy_id", UUID, ForeignKey("qos_policies.id")), *stamped(),
    Index("networks_project", "project_id"), Index("networks_qos", "qos_policy_id"))

address_scopes = Table(
    "address_scopes", API, *owned(), Column("ip_version", Integer, nullable=False),
    Column("shared", Boolean, nullable=False, default=False), *stamped(),
    Index("address_scopes_project", "project_id"))

#: ``default_quota``: how much of it a project may have, in addresses, of IPv6 in networks of 64 bits.
subnet_pools = Table(
    "subnet_pools", API, *owned(), Column("ip_version", Integer, nullable=False),
    Column("prefixes", DOCUMENT, nullable=False), Column("min_prefixlen", Integer, nullable=False),
    Column("default_prefixlen", Integer, nullable=False), Column("max_prefixlen", Integer, nullable=False),
    Column("default_quota", BigInteger), Column("shared", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False),
    Column("address_scope_id", UUID, ForeignKey("address_scopes.id")), *stamped(),
    Index("subnet_pools_project", "project_id"), Index("subnet_pools_scope", "address_scope_id"))

subnets = Table(
    "subnets", API, *owned(), Column("network_id", UUID, ForeignKey("networks.id", ondelete="CASCADE"), nullable=False),
    Column("cidr", String(43), nullable=False), Column("gateway_ip", String(45)),
    Column("enable_dhcp", Boolean, nullable=False, default=True), Column("allocation_pools", DOCUMENT, nullable=False),
    Column("dns_nameservers", DOCUMENT, nullable=False), Column("host_routes", DOCUMENT, nullable=False),
    # Of IPv6: how guests get their addresses, and what routers say of it (Neutron's words).
    Column("ipv6_address_mode", String(16)), Column("ipv6_ra_mode", String(16)),
    Column("subnetpool_id", UUID, ForeignKey("subnet_pools.id")), *stamped(),
    Index("subnets_network", "network_id"), Index("subnets_pool", "subnetpool_id"))

ports = Table(
    "ports", API, *owned(), Column("network_id", UUID, ForeignKey("networks.id"), nullable=False),
    Column("mac_address", String(17), unique=True, nullable=False),
    Column("admin_state_up", Boolean, nullable=False, default=True), Column("status", String(16), nullable=False),
    Column("device_id", NAME, nullable=False, default=""), Column("device_owner", NAME, nullable=False, default=""),
    Column("host", NAME, nullable=False, default=""), Column("vnic_type", String(32), nullable=False, default="normal"),
    Column("profile", DOCUMENT, nullable=False, default="{}"),
    Column("security_groups", DOCUMENT, nullable=False, default="[]"),
    Column("port_security_enabled", Boolean, nullable=False, default=True),
    # Of a server's NIC: whether it goes with the server, which one of the server's it is, and Nova's device tag.
    Column("made_for_server", Boolean, nullable=False, default=False), Column("place", Integer),
    Column("tag", String(60)),
    # Of an engine's: what it may send from besides its own, where it is going, and whether its guest runs meanwhile.
    Column("pairs", DOCUMENT, nullable=False, default="[]"), Column("next_host", NAME, nullable=False, default=""),
    Column("arriving", Boolean, nullable=False, default=False),
    Column("qos_policy_id", UUID, ForeignKey("qos_policies.id")),
    Column("dns_name", String(63), nullable=False, default=""),
    # What it is on its host: pci_slot and so on of a device.
    Column("device", DOCUMENT, nullable=False, default="{}"),
    # Whether its host is to be told of its security groups.
    Column("groups_due", Boolean), *stamped(), Index("ports_groups_due", "groups_due", "host"),
    Index("ports_network", "network_id"),
    Index("ports_device", "device_id"), Index("ports_project", "project_id"), Index("ports_qos", "qos_policy_id"))

#: Each address once in a subnet: the key says so. ``number``: see ``ipam.number``.
addresses = Table(
    "port_addresses", API, Column("subnet_id", UUID, ForeignKey("subnets.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("port_id", UUID, ForeignKey("ports.id", ondelete="CASCADE"), nullable=False),
    Column("ip_address", String(45), nullable=False), Index("port_addresses_port", "port_id"))

security_groups = Table(
    "security_groups", API, *owned(), Column("stateful", Boolean, nullable=False, default=True),
    # Which of its states hosts are told of. It begins later than that of a former one: ``default`` may be made anew.
    Column("revision", BigInteger, nullable=False, default=lambda: time.time_ns() // 1_000_000), *stamped(),
    Index("security_groups_project", "project_id"))

#: Which hosts have a group, to filter by it themselves; ``due``: they are to be told of it.
security_group_hosts = Table(
    "security_group_hosts", API, Column("group_id", UUID, primary_key=True), Column("host", NAME, primary_key=True),
    Column("due", Boolean), Index("security_group_hosts_due", "due", "host"))

address_groups = Table(
    "address_groups", API, *owned(), Column("addresses", DOCUMENT, nullable=False, default="[]"), *stamped(),
    Index("address_groups_project", "project_id"))

security_group_rules = Table(
    "security_group_rules", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("security_group_id", UUID, ForeignKey("security_groups.id", ondelete="CASCADE"), nullable=False),
    Column("direction", String(8), nullable=False), Column("ethertype", String(4), nullable=False),
    Column("protocol", String(40)), Column("port_range_min", Integer), Column("port_range_max", Integer),
    Column("remote_ip_prefix", String(43)), Column("remote_group_id", UUID), Column("description", Text),
    Column("remote_address_group_id", UUID, ForeignKey("address_groups.id")), *stamped(),
    Index("security_group_rules_group", "security_group_id"))

#: What new security groups begin with. ``remote_group_id``: a group that all have, or ``PARENT``, the new one itself.
default_security_group_rules = Table(
    "default_security_group_rules", API, Column("id", UUID, primary_key=True),
    *(Column(one.name, one.type, nullable=one.nullable) for one in security_group_rules.c if one.name in (
        "direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix",
        "remote_group_id")),
    Column("description", NAME, nullable=False, default=""),
    Column("remote_address_group_id", UUID, ForeignKey("address_groups.id")),
    Column("used_in_default_sg", Boolean, nullable=False, default=False),
    Column("used_in_non_default_sg", Boolean, nullable=False, default=True), *stamped())

#: What a cloud was given once, at its beginning, so that what administrators take away stays away.
beginnings = Table("network_beginnings", API, Column("name", NAME, primary_key=True), *stamped())

routers = Table(
    "routers", API, *owned(), Column("admin_state_up", Boolean, nullable=False, default=True),
    Column("enable_snat", Boolean, nullable=False, default=True),
    Column("routes", DOCUMENT, nullable=False, default="[]"), *stamped(), Index("routers_project", "project_id"))

#: The first network of a project, where it was made by itself.
auto_topologies = Table(
    "auto_topologies", API, Column("project_id", NAME, primary_key=True),
    Column("network_id", UUID, ForeignKey("networks.id", ondelete="CASCADE"), nullable=False),
    Column("router_id", UUID, ForeignKey("routers.id", ondelete="SET NULL")), *stamped())

#: ``own_port_id``: the port that has the address; ``port_id``: the one that is reached by it, at ``fixed_ip_address``.
floating_ips = Table(
    "floating_ips", API, *owned(), Column("network_id", UUID, ForeignKey("networks.id"), nullable=False),
    Column("own_port_id", UUID, ForeignKey("ports.id"), nullable=False),
    Column("floating_ip_address", String(45), nullable=False),
    Column("port_id", UUID, ForeignKey("ports.id")), Column("fixed_ip_address", String(45)),
    Column("router_id", UUID, ForeignKey("routers.id")), *stamped(), Index("floating_ips_project", "project_id"),
    Index("floating_ips_port", "port_id", "fixed_ip_address", unique=True), Index("floating_ips_router", "router_id"))

forwardings = Table(
    "port_forwardings", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("floatingip_id", UUID, ForeignKey("floating_ips.id", ondelete="CASCADE"), nullable=False),
    Column("internal_port_id", UUID, ForeignKey("ports.id"), nullable=False),
    Column("internal_ip_address", String(45), nullable=False), Column("protocol", String(8), nullable=False),
    Column("internal_port", Integer, nullable=False), Column("external_port", Integer, nullable=False),
    Column("description", NAME, nullable=False, default=""), *stamped(),
    Index("port_forwardings_outer", "floatingip_id", "protocol", "external_port", unique=True),
    Index("port_forwardings_inner", "internal_port_id"))

#: Whose ports Nova's are, as Neutron shows it.
OWNER = "compute:nova"


def taken(of: FromClause = ports) -> ColumnElement[bool]:
    """Whether a server took a port, of the table. Only taking one gives it a place: what users write into ports makes
    none a server's."""
    return (of.c.device_owner == OWNER) & of.c.place.is_not(None)


TAKEN = taken()
#: The place of a port that is reserved for a server which will be built. Nobody else takes the port; it is no NIC yet.
RESERVED = -1

#: ``port_id``: the parent port, which has the guest's NIC.
trunks = Table(
    "trunks", API, *owned(), Column("port_id", UUID, ForeignKey("ports.id"), nullable=False),
    Column("admin_state_up", Boolean, nullable=False, default=True), *stamped(),
    Index("trunks_port", "port_id", unique=True), Index("trunks_project", "project_id"))

#: Whose ports the subports of trunks are, as Neutron shows it.
SUBPORT = "trunk:subport"
#: ``segmentation_id``: the VLAN tag with which the guest sends and receives what is the subport's.
subports = Table(
    "trunk_subports", API, Column("port_id", UUID, ForeignKey("ports.id"), primary_key=True),
    Column("trunk_id", UUID, ForeignKey("trunks.id", ondelete="CASCADE"), nullable=False),
    Column("segmentation_id", Integer, nullable=False),
    Index("trunk_subports_tag", "trunk_id", "segmentation_id", unique=True))

#: Who may use what is another project's: ``target_project`` is its id, or ``*``.
rbac_policies = Table(
    "rbac_policies", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("object_type", String(32), nullable=False), Column("object_id", UUID, nullable=False),
    Column("action", String(32), nullable=False), Column("target_project", NAME, nullable=False), *stamped(),
    Index("rbac_policies_object", "object_id", "action", "target_project", unique=True),
    Index("rbac_policies_project", "project_id"))

#: Units (``engine.py``) that have changed, for the engine: a row goes when the engine has it.
changes = Table(
    "network_changes", API, Column("id", UUID, primary_key=True), Column("unit", String(64), nullable=False),
    Index("network_changes_unit", "unit"))

#: One row, which says how far the engine is: the number of its last change.
engine = Table("network_engine", API, Column("id", Integer, primary_key=True, autoincrement=False),
               Column("number", BigInteger, nullable=False, default=0))
