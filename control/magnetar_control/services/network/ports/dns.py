# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of ports in DNS (Neutron's extension dns-integration): ``dns_name`` of a port is a label in the ``dns_domain``
of its network, where guests find it by any name server that they ask. A port without one is called by its address,
which is shown and not found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.tables import networks
from magnetar_core.errors import InvalidField, InvalidRequest

#: A label of a name (RFC 1123), in small letters.
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
#: Characters that a domain has at most, so that a label and its dot have room in a name.
MOST = 253 - 64


def domain(value: Any) -> str:
    """A domain in its normal form, which ends with a dot; empty for none. Raises ``ValueError``."""
    text = str("" if value is None else value).lower().removesuffix(".")
    if text and (len(text) > MOST or not all(map(LABEL.fullmatch, text.split(".")))):
        raise ValueError
    return f"{text}." if text else ""


def label(value: Any) -> str:
    """The name of a port in its normal form; empty for none. Raises ``ValueError``."""
    text = str("" if value is None else value).lower()
    if text and not LABEL.fullmatch(text):
        raise ValueError
    return text


def of_server(hostname: str) -> str:
    """The name of a server's port: the first label of its host name; empty where that is none."""
    found = hostname.lower().partition(".")[0]
    return found if LABEL.fullmatch(found) else ""


def domains(connection: Connection, rows: Sequence[RowMapping], usual: str) -> dict[str, str]:
    """Network to the domain of its ports, for those of *rows*; *usual*: of networks without one."""
    ids = {row["network_id"] for row in rows}
    found = dict.fromkeys(ids, usual)
    for row in connection.execute(select(networks.c.id, networks.c.dns_domain).where(
            networks.c.id.in_(ids), networks.c.dns_domain != "")) if ids else ():
        found[row.id] = row.dns_domain
    return found


def assignment(name: str, fixed_ips: Sequence[Document], domain: str) -> list[Document]:
    """``dns_assignment`` of a port: how each of its addresses is called."""
    found = []
    for one in fixed_ips:
        host = name or f"host-{one['ip_address'].replace('.', '-').replace(':', '-')}"
        found.append({"hostname": host, "ip_address": one["ip_address"], "fqdn": f"{host}.{domain}"})
    return found


def check_domain(connection: Connection, network: Mapping[Any, Any]) -> None:
    """Whether a network may have its ``dns_domain``. OVN lets datagrams from port 53 pass to every port of a switch
    with names, whatever the rules (ovn-northd(8), 23.03: priority 34000 of ls_out_acl), so only networks of one
    project, which no physical one joins, have some."""
    given = network["dns_domain"]
    if given and (not network["by_engine"] or network["type"] != "ovn"):
        raise InvalidField("dns_domain", "must be empty, but of a network of type ovn", given)
    if given and (network["shared"] or sharing.is_shared(connection, network["id"])):
        raise InvalidField("dns_domain", "must be empty for a network that several projects use: one would answer for "
                                         "names that others look for", given)


def check_name(network: Mapping[Any, Any], given: str) -> None:
    """Whether a port of *network* may have the name."""
    if given and not network["by_engine"]:
        raise InvalidField("dns_name", "must be empty: names are for networks that OVN makes, and the network of this "
                                       f"port is of type {network['type']}, without it", given)


def check_server(port_id: str, name: str, hostname: str) -> None:
    """Whether a server called *hostname* may take the port *port_id* with this name, as Nova has it."""
    if name and name != of_server(hostname):
        raise InvalidRequest(f"Port {port_id} not usable for instance. Value {name} assigned to dns_name attribute "
                             f"does not match instance's hostname {hostname}. Clear it, or make the server with this "
                             "host name.", type="PortNotUsableDNS")
