# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a table take the same arguments
"""Rules of security groups: kept and shown."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context, Document
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from .attributes import REQUIRED, Attribute, ident, integer, nullable, one_of, prefix, table
from .nouns import Noun, add, common, own, remove
from .tables import security_group_rules, security_groups

#: Names of protocols that Neutron knows, besides numbers up to 255.
PROTOCOLS = frozenset({"ah", "dccp", "egp", "esp", "gre", "icmp", "icmpv6", "igmp", "ipip", "ipv6-encap", "ipv6-frag",
                       "ipv6-icmp", "ipv6-nonxt", "ipv6-opts", "ipv6-route", "ospf", "pgm", "rsvp", "sctp", "tcp",
                       "udp", "udplite", "vrrp"})
WITH_PORTS = frozenset({"tcp", "udp", "sctp", "dccp", "udplite", "6", "17", "33", "132", "136"})
ICMP = frozenset({"icmp", "icmpv6", "ipv6-icmp", "1", "58"})


def _protocol(value: Any) -> str | None:
    if value in (None, "any", "0", 0):
        return None
    word = str(value).lower()
    if word not in PROTOCOLS and not (word.isdigit() and int(word) <= 255):
        raise ValueError(f"'{value}' is neither the name of an IP protocol nor a number from 0 to 255")
    return word


def _direction(value: Any) -> Any:
    return one_of("ingress", "egress")(str(value).lower())


def _ethertype(value: Any) -> Any:
    return one_of("IPv4", "IPv6")({"ipv4": "IPv4", "ipv6": "IPv6"}.get(str(value).lower(), value))


def _note(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > 255 or "\0" in value):
        raise ValueError("it must be text of at most 255 characters")
    return value


ATTRIBUTES = {
    **table(Attribute(name="security_group_id", check=ident, default=REQUIRED, on="create"),
            Attribute(name="direction", check=_direction, default=REQUIRED, on="create"),
            Attribute(name="ethertype", check=_ethertype, default="IPv4", on="create"),
            Attribute(name="protocol", check=_protocol, default=None, on="create"),
            Attribute(name="port_range_min", check=nullable(integer(0, 65535)), default=None, on="create"),
            Attribute(name="port_range_max", check=nullable(integer(0, 65535)), default=None, on="create"),
            Attribute(name="remote_ip_prefix", check=nullable(prefix), default=None, on="create"),
            Attribute(name="remote_group_id", check=nullable(ident), default=None, on="create")),
    "description": Attribute(name="description", check=_note, default="", on="create")}
#: What makes two rules the same.
SAME = ("direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group_id")


def show(connection: Connection, context: Context, rows: Sequence[RowMapping]) -> list[Document]:
    """As the API reference has them."""
    return [{**common(row), "security_group_id": row["security_group_id"], **{name: row[name] for name in SAME}}
            for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it to a group of the project."""
    _check(values)
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


def _check(values: Document) -> None:
    least, most, protocol = values["port_range_min"], values["port_range_max"], values["protocol"]
    if values["remote_group_id"] and values["remote_ip_prefix"]:
        raise InvalidRequest("Only remote_ip_prefix or remote_group_id may be provided.",
                    type="SecurityGroupMultipleRemoteEntities")
    given = values["remote_ip_prefix"]
    if given and f"IPv{ip_network(given).version}" != values["ethertype"]:
        raise InvalidRequest(f"Conflicting value ethertype {values['ethertype']} for CIDR {given}",
                    type="SecurityGroupRuleParameterConflict")
    if least is None and most is None:
        return
    if protocol is None:
        raise InvalidRequest("Must also specify protocol if port range is given.",
                    type="SecurityGroupProtocolRequiredWithPorts")
    if protocol in ICMP:
        if least is None or least > 255 or (most or 0) > 255:
            raise InvalidRequest("For ICMP port_range_min is the type and port_range_max the code, each from 0 to "
                                 "255; a "
                        "code needs a type.", type="SecurityGroupInvalidIcmpValue")
    elif protocol not in WITH_PORTS or least is None or most is None or least > most:
        raise InvalidRequest("For TCP/UDP protocols, port_range_min must be <= port_range_max; other protocols have no "
                    "ports.", type="SecurityGroupInvalidPortRange")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Remove it."""
    remove(connection, security_group_rules, row["id"])


RULE = Noun(
    name="security_group_rule", plural="security_group_rules", path="security-group-rules", table=security_group_rules,
    attributes=ATTRIBUTES, show=show, create=create, update=None, delete=delete, visible=own(security_group_rules))
