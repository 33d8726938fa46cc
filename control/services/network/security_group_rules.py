# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Rules of security groups: kept and shown."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context, Document
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from .resources import Resource, add, own, remove
from .tables import security_group_rules, security_groups

#: Names and numbers of the protocols that have ports, and of those whose ports are an ICMP type and code.
WITH_PORTS = frozenset({"tcp", "udp", "sctp", "dccp", "udplite", "6", "17", "33", "132", "136"})
ICMP = frozenset({"icmp", "icmpv6", "ipv6-icmp", "1", "58"})
#: What makes two rules the same.
SAME = ("direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group_id")


def documents(_connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows."""
    return [{**row} for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it to a group of the project."""
    _check_remote(values)
    _check_ports(values)
    group = _group(connection, context, values["security_group_id"])
    values["project_id"] = group["project_id"]
    if values["remote_group_id"]:
        _group(connection, context, values["remote_group_id"])
    table_ = security_group_rules
    same = select(table_.c.id).where(table_.c.security_group_id == group["id"],
                                     *(table_.c[name].is_not_distinct_from(values[name]) for name in SAME))
    there = connection.execute(same).scalar()
    if there:
        raise Conflict(f"Security group rule already exists. Rule id is {there}.", type="SecurityGroupRuleExists")
    add(connection, table_, values)


def _group(connection: Connection, context: Context, id: str) -> RowMapping:
    row = connection.execute(select(security_groups).where(
        security_groups.c.id == id, own(security_groups)(context))).mappings().first()
    if row is None:
        raise NotFound(f"Security group {id} does not exist", type="SecurityGroupNotFound")
    return row


def _check_remote(values: Document) -> None:
    given = values["remote_ip_prefix"]
    if values["remote_group_id"] and given:
        raise InvalidRequest("Only remote_ip_prefix or remote_group_id may be provided.",
                             type="SecurityGroupMultipleRemoteEntities")
    if given and f"IPv{ip_network(given).version}" != values["ethertype"]:
        raise InvalidRequest(f"Conflicting value ethertype {values['ethertype']} for CIDR {given}",
                             type="SecurityGroupRuleParameterConflict")


def _check_ports(values: Document) -> None:
    least, most, protocol = values["port_range_min"], values["port_range_max"], values["protocol"]
    if least is None and most is None:
        return
    if protocol is None:
        raise InvalidRequest("Must also specify protocol if port range is given.",
                             type="SecurityGroupProtocolRequiredWithPorts")
    if protocol in ICMP:
        if least is None or least > 255 or (most or 0) > 255:
            raise InvalidRequest("For ICMP port_range_min is the type and port_range_max the code, each from 0 to "
                                 "255; a code needs a type.", type="SecurityGroupInvalidIcmpValue")
    elif protocol not in WITH_PORTS or least is None or most is None or least > most:
        raise InvalidRequest("For TCP/UDP protocols, port_range_min must be <= port_range_max; other protocols have no "
                             "ports.", type="SecurityGroupInvalidPortRange")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Remove it."""
    remove(connection, security_group_rules, row["id"])


SECURITY_GROUP_RULE = Resource(
    name="security_group_rule", table=security_group_rules, visible=own(security_group_rules), documents=documents,
    create=create, update=None, delete=delete, defaults={"description": "", "ethertype": "IPv4", **dict.fromkeys(
        ("protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group_id"))})
