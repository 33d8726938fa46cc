# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of the embedded network service, in the API database."""

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
    type_coerce,
)

from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.tables import API, NAME, UUID, timestamp_columns


def owned_columns() -> tuple[Column[Any], ...]:
    """Return the common columns of all tables of resources that belong to a project: id, project_id, name, description,
    tags."""
    return (Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
            Column("name", NAME, nullable=False), Column("description", NAME, nullable=False, default=""),
            Column("tags", JsonColumn, nullable=False, default=list))


def define_page_indexes(table: str) -> tuple[Index, Index]:
    """Return the two database indexes for reading the table *table* page by page: one for the rows of a project, one
    for all rows."""
    return (Index(f"{table}_project", "project_id", "created_at", "id"),
            Index(f"{table}_created", "created_at", "id"))


qos_policies = Table(
    "qos_policies", API, *owned_columns(), Column("shared", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False), *timestamp_columns(),
    *define_page_indexes("qos_policies"))

#: ``kind``: see ``qos.KINDS``. A rule has the columns of its kind.
qos_rules = Table(
    "qos_rules", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("policy_id", UUID, ForeignKey("qos_policies.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(32), nullable=False), Column("direction", String(8), nullable=False),
    Column("max_kbps", BigInteger), Column("max_burst_kbps", BigInteger), Column("dscp_mark", Integer),
    Column("min_kbps", BigInteger), *timestamp_columns(),
    Index("qos_rules_policy", "policy_id", "kind", "direction", unique=True))

#: ``type``: nat or isolated, made by the agents on each host; flat, a bridge of the hosts. With ``by_engine``: ovn,
#: between hosts; flat and vlan, on the physical network ``bridge`` with the VLAN tag ``segment``.
networks = Table(
    "networks", API, *owned_columns(), Column("admin_state_up", Boolean, nullable=False, default=True),
    Column("shared", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False), Column("type", String(16), nullable=False),
    Column("bridge", NAME), Column("segment", Integer), Column("by_engine", Boolean, nullable=False, default=False),
    Column("external", Boolean, nullable=False, default=False),
    Column("mtu", Integer, nullable=False, default=1500), Column("dns_domain", NAME, nullable=False, default=""),
    Column("port_security_enabled", Boolean, nullable=False, default=True),
    Column("qos_policy_id", UUID, ForeignKey("qos_policies.id")), *timestamp_columns(),
    *define_page_indexes("networks"), Index("networks_qos", "qos_policy_id"))

address_scopes = Table(
    "address_scopes", API, *owned_columns(), Column("ip_version", Integer, nullable=False),
    Column("shared", Boolean, nullable=False, default=False), *timestamp_columns(),
    *define_page_indexes("address_scopes"))

#: ``default_quota``: how much of the pool a project may have, in IPv4 addresses or IPv6 networks of 64 bits.
subnet_pools = Table(
    "subnet_pools", API, *owned_columns(), Column("ip_version", Integer, nullable=False),
    Column("prefixes", JsonColumn, nullable=False), Column("min_prefixlen", Integer, nullable=False),
    Column("default_prefixlen", Integer, nullable=False), Column("max_prefixlen", Integer, nullable=False),
    Column("default_quota", BigInteger), Column("shared", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False),
    Column("address_scope_id", UUID, ForeignKey("address_scopes.id")), *timestamp_columns(),
    *define_page_indexes("subnet_pools"), Index("subnet_pools_scope", "address_scope_id"))

subnets = Table(
    "subnets", API, *owned_columns(), Column("network_id", UUID, ForeignKey("networks.id", ondelete="CASCADE"),
                                             nullable=False),
    Column("cidr", String(43), nullable=False), Column("gateway_ip", String(45)),
    Column("enable_dhcp", Boolean, nullable=False, default=True),
    *(Column(name, JsonColumn, nullable=False) for name in ("allocation_pools", "dns_nameservers", "host_routes")),
    # IPv6: how guests get their addresses, and what routers advertise (Neutron's words).
    Column("ipv6_address_mode", String(16)), Column("ipv6_ra_mode", String(16)),
    Column("subnetpool_id", UUID, ForeignKey("subnet_pools.id")), *timestamp_columns(),
    Index("subnets_network", "network_id"), *define_page_indexes("subnets"), Index("subnets_pool", "subnetpool_id"))

ports = Table(
    "ports", API, *owned_columns(), Column("network_id", UUID, ForeignKey("networks.id"), nullable=False),
    Column("mac_address", String(17), unique=True, nullable=False),
    Column("admin_state_up", Boolean, nullable=False, default=True), Column("status", String(16), nullable=False),
    Column("device_id", NAME, nullable=False, default=""), Column("device_owner", NAME, nullable=False, default=""),
    Column("host", NAME, nullable=False, default=""), Column("vnic_type", String(32), nullable=False, default="normal"),
    Column("profile", JsonColumn, nullable=False, default=dict),
    Column("security_groups", JsonColumn, nullable=False, default=list),
    Column("port_security_enabled", Boolean, nullable=False, default=True),
    # Of a server's NIC: whether the port is deleted with the server, its position among the NICs, and Nova's device
    # tag.
    Column("made_for_server", Boolean, nullable=False, default=False), Column("place", Integer),
    Column("tag", String(60)),
    # Of an engine's port: further addresses that it may send from, the host it is moving to, and whether its guest runs
    # meanwhile.
    Column("pairs", JsonColumn, nullable=False, default=list), Column("next_host", NAME, nullable=False, default=""),
    Column("arriving", Boolean, nullable=False, default=False),
    Column("qos_policy_id", UUID, ForeignKey("qos_policies.id")),
    Column("dns_name", String(63), nullable=False, default=""),
    # The port on its host: pci_slot and so on of a device.
    Column("device", JsonColumn, nullable=False, default=dict),
    # Whether the host must be told of the port's security groups.
    Column("groups_due", Boolean), *timestamp_columns(), Index("ports_groups_due", "groups_due", "host"),
    Index("ports_network", "network_id", "created_at", "id"),
    Index("ports_device", "device_id"), Index("ports_qos", "qos_policy_id"), *define_page_indexes("ports"))

#: The key allows each address once in a subnet. ``number``: see ``ipam.address_number``.
addresses = Table(
    "port_addresses", API, Column("subnet_id", UUID, ForeignKey("subnets.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("port_id", UUID, ForeignKey("ports.id", ondelete="CASCADE"), nullable=False),
    Column("ip_address", String(45), nullable=False), Index("port_addresses_port", "port_id"),
    Index("port_addresses_ip", "ip_address"))

security_groups = Table(
    "security_groups", API, *owned_columns(), Column("stateful", Boolean, nullable=False, default=True),
    # The revision that hosts are told. It starts above the revisions of a former group with this id: ``default`` may be
    # created again.
    Column("revision", BigInteger, nullable=False, default=lambda: time.time_ns() // 1_000_000), *timestamp_columns(),
    *define_page_indexes("security_groups"))

#: Hosts that have a security group, to filter packets themselves. ``due``: the group must be sent to the host.
security_group_hosts = Table(
    "security_group_hosts", API, Column("group_id", UUID, primary_key=True), Column("host", NAME, primary_key=True),
    Column("due", Boolean), Index("security_group_hosts_due", "due", "host"))

address_groups = Table(
    "address_groups", API, *owned_columns(), Column("addresses", JsonColumn, nullable=False, default=list),
    *timestamp_columns(),
    *define_page_indexes("address_groups"))

security_group_rules = Table(
    "security_group_rules", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("security_group_id", UUID, ForeignKey("security_groups.id", ondelete="CASCADE"), nullable=False),
    Column("direction", String(8), nullable=False), Column("ethertype", String(4), nullable=False),
    Column("protocol", String(40)), Column("port_range_min", Integer), Column("port_range_max", Integer),
    Column("remote_ip_prefix", String(43)), Column("remote_group_id", UUID), Column("description", Text),
    Column("remote_address_group_id", UUID, ForeignKey("address_groups.id")), *timestamp_columns(),
    Index("security_group_rules_group", "security_group_id"),
    *define_page_indexes("security_group_rules"))

#: Rules that new security groups begin with. ``remote_group_id``: a group shared with all projects, or ``PARENT``, the
#: new group itself.
default_security_group_rules = Table(
    "default_security_group_rules", API, Column("id", UUID, primary_key=True),
    *(Column(column.name, column.type, nullable=column.nullable) for column in security_group_rules.c
      if column.name in (
        "direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix",
        "remote_group_id")),
    Column("description", NAME, nullable=False, default=""),
    Column("remote_address_group_id", UUID, ForeignKey("address_groups.id")),
    Column("used_in_default_sg", Boolean, nullable=False, default=False),
    Column("used_in_non_default_sg", Boolean, nullable=False, default=True), *timestamp_columns())

#: Names of objects that a cloud got once, at its beginning, so that they stay away after administrators delete them.
beginnings = Table("network_beginnings", API, Column("name", NAME, primary_key=True), *timestamp_columns())

routers = Table(
    "routers", API, *owned_columns(), Column("admin_state_up", Boolean, nullable=False, default=True),
    Column("enable_snat", Boolean, nullable=False, default=True),
    Column("routes", JsonColumn, nullable=False, default=list), *timestamp_columns(),
    *define_page_indexes("routers"))

#: The first network of a project, if it was created automatically.
auto_topologies = Table(
    "auto_topologies", API, Column("project_id", NAME, primary_key=True),
    Column("network_id", UUID, ForeignKey("networks.id", ondelete="CASCADE"), nullable=False),
    Column("router_id", UUID, ForeignKey("routers.id", ondelete="SET NULL")), *timestamp_columns())

#: ``own_port_id``: the port that has the address. ``port_id``: the port behind it, at ``fixed_ip_address``.
floating_ips = Table(
    "floating_ips", API, *owned_columns(), Column("network_id", UUID, ForeignKey("networks.id"), nullable=False),
    Column("own_port_id", UUID, ForeignKey("ports.id"), nullable=False),
    Column("floating_ip_address", String(45), nullable=False),
    Column("port_id", UUID, ForeignKey("ports.id")), Column("fixed_ip_address", String(45)),
    Column("router_id", UUID, ForeignKey("routers.id")), *timestamp_columns(),
    *define_page_indexes("floating_ips"),
    Index("floating_ips_port", "port_id", "fixed_ip_address", unique=True), Index("floating_ips_router", "router_id"))

forwardings = Table(
    "port_forwardings", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("floatingip_id", UUID, ForeignKey("floating_ips.id", ondelete="CASCADE"), nullable=False),
    Column("internal_port_id", UUID, ForeignKey("ports.id"), nullable=False),
    Column("internal_ip_address", String(45), nullable=False), Column("protocol", String(8), nullable=False),
    Column("internal_port", Integer, nullable=False), Column("external_port", Integer, nullable=False),
    Column("description", NAME, nullable=False, default=""), *timestamp_columns(),
    Index("port_forwardings_outer", "floatingip_id", "protocol", "external_port", unique=True),
    Index("port_forwardings_inner", "internal_port_id"))

#: ``device_owner`` of Nova's ports, as Neutron shows it.
OWNER = "compute:nova"


def taken_by_server(of: FromClause = ports) -> ColumnElement[bool]:
    """Return the SQL condition for ports that a server has, or that are reserved for a server. *of*: the table of
    ports, or an alias. Users can set ``device_owner`` to any value. Therefore the condition also tests ``place`` (the
    port's position among the server's NICs), which only the service sets."""
    return (of.c.device_owner == OWNER) & of.c.place.is_not(None)


TAKEN = taken_by_server()


def has_group(group_id: str) -> ColumnElement[bool]:
    """Return the SQL condition for ports with the security group *group_id*. It searches the text of the JSON column
    ``security_groups``."""
    return type_coerce(ports.c.security_groups, Text).contains(f'"{group_id}"', autoescape=True)


#: The place of a port that is reserved for a server which will be built. No other server takes the port; it is no NIC
#: yet.
RESERVED = -1

#: ``port_id``: the parent port, which is the guest's NIC.
trunks = Table(
    "trunks", API, *owned_columns(), Column("port_id", UUID, ForeignKey("ports.id"), nullable=False),
    Column("admin_state_up", Boolean, nullable=False, default=True), *timestamp_columns(),
    Index("trunks_port", "port_id", unique=True), *define_page_indexes("trunks"))

#: ``device_owner`` of the subports of trunks, as Neutron shows it.
SUBPORT = "trunk:subport"
#: ``segmentation_id``: the VLAN tag of the subport's packets in the guest.
subports = Table(
    "trunk_subports", API, Column("port_id", UUID, ForeignKey("ports.id"), primary_key=True),
    Column("trunk_id", UUID, ForeignKey("trunks.id", ondelete="CASCADE"), nullable=False),
    Column("segmentation_id", Integer, nullable=False),
    Index("trunk_subports_tag", "trunk_id", "segmentation_id", unique=True))

#: Policies that share objects with other projects. ``target_project``: the id of the project, or ``*``.
rbac_policies = Table(
    "rbac_policies", API, Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("object_type", String(32), nullable=False), Column("object_id", UUID, nullable=False),
    Column("action", String(32), nullable=False), Column("target_project", NAME, nullable=False), *timestamp_columns(),
    Index("rbac_policies_object", "object_id", "action", "target_project", unique=True),
    Index("rbac_policies_target", "target_project", "action", "object_id"),
    *define_page_indexes("rbac_policies"))

#: Keys of units (``engine.py``) that have changed. A row is removed when the engine has the change.
changes = Table(
    "network_changes", API, Column("id", UUID, primary_key=True), Column("unit", String(64), nullable=False),
    Index("network_changes_unit", "unit"))

#: One row: the number of the engine's last change.
engine = Table("network_engine", API, Column("id", Integer, primary_key=True, autoincrement=False),
               Column("number", BigInteger, nullable=False, default=0))
