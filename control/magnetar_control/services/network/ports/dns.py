# SPDX-License-Identifier: GPL-3.0-or-later
"""DNS names of ports (Neutron's extension dns-integration). ``dns_name`` of a port is a label in the ``dns_domain`` of
its network. Guests of the network can resolve it, whatever name server they use. A port without ``dns_name`` is shown
with a name made from its address, which does not resolve."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, select

from magnetar_control.services.network import sharing
from magnetar_control.services.network.tables import networks
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest

#: A label of a name (RFC 1123), in lower case.
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
#: Maximum length of a domain: a label and its dot must fit in front of it.
MOST = 253 - 64
#: Built once: building it takes longer than executing it.
_DOMAINS = select(networks.c.id, networks.c.dns_domain).where(
    networks.c.id.in_(bindparam("ids", expanding=True)), networks.c.dns_domain != "")


def normalize_domain(value: Any) -> str:
    """Return the domain *value* in lower case and with a dot at the end; an empty string for ``None`` or an empty
    value. Raises ``ValueError`` if it is not a valid domain."""
    text = str("" if value is None else value).lower().removesuffix(".")
    if text and (len(text) > MOST or not all(map(LABEL.fullmatch, text.split(".")))):
        raise ValueError
    return f"{text}." if text else ""


def normalize_label(value: Any) -> str:
    """Return *value*, the ``dns_name`` of a port, in lower case; an empty string for ``None``. Raises ``ValueError`` if
    it is not a valid DNS label."""
    text = str("" if value is None else value).lower()
    if text and not LABEL.fullmatch(text):
        raise ValueError
    return text


def server_dns_name(hostname: str) -> str:
    """Return the ``dns_name`` for the ports of a server: the first label of *hostname*, or an empty string if it is not
    a valid DNS label."""
    first_label = hostname.lower().partition(".")[0]
    return first_label if LABEL.fullmatch(first_label) else ""


def domains_of_networks(connection: Connection, rows: Sequence[RowMapping], usual: str) -> dict[str, str]:
    """Return the DNS domains of the networks that the ports *rows* are on: {network id: domain}. *usual*: the domain of
    networks without their own."""
    ids = {row["network_id"] for row in rows}
    domain_by_network = dict.fromkeys(ids, usual)
    for row in connection.execute(_DOMAINS, {"ids": list(ids)}) if ids else ():
        domain_by_network[row.id] = row.dns_domain
    return domain_by_network


def dns_assignment(name: str, fixed_ips: Sequence[Document], domain: str) -> list[Document]:
    """Return the field ``dns_assignment`` of a port: {hostname, ip_address, fqdn} for each address in *fixed_ips*.
    *name*: the port's ``dns_name``; if empty, the host names are derived from the addresses. *domain*: the DNS domain.
    """
    assignments = []
    for fixed_ip in fixed_ips:
        host = name or f"host-{fixed_ip['ip_address'].replace('.', '-').replace(':', '-')}"
        assignments.append({"hostname": host, "ip_address": fixed_ip["ip_address"], "fqdn": f"{host}.{domain}"})
    return assignments


def check_domain(connection: Connection, network: Mapping[Any, Any]) -> None:
    """Raise ``InvalidField`` if *network* has a ``dns_domain`` and is shared or not of type ovn. In a shared network,
    one project could answer for names that other projects look up. Note that DNS names weaken security groups: in a
    network with DNS names, OVN passes packets from UDP port 53 to every port (ovn-northd(8), 23.03: priority 34000 of
    ls_out_acl)."""
    dns_domain = network["dns_domain"]
    if dns_domain and (not network["by_engine"] or network["type"] != "ovn"):
        raise InvalidField("dns_domain", "must be empty, but of a network of type ovn", dns_domain)
    if dns_domain and (network["shared"] or sharing.is_shared(connection, network["id"])):
        raise InvalidField("dns_domain", "must be empty for a network that several projects use: one would answer for "
                                         "names that others look for", dns_domain)


def check_dns_name(network: Mapping[Any, Any], dns_name: str) -> None:
    """Raise ``InvalidField`` if *dns_name* is not empty, but the network engine (OVN) does not make *network*: ports of
    such a network have no ``dns_name``."""
    if dns_name and not network["by_engine"]:
        raise InvalidField("dns_name", "must be empty: names are for networks that OVN makes, and the network of this "
                                       f"port is of type {network['type']}, without it", dns_name)


def check_server(port_id: str, name: str, hostname: str) -> None:
    """Raise ``InvalidRequest``, as Nova does, if a server cannot use the port *port_id*: *name*, the port's
    ``dns_name``, is not the name that ``server_dns_name`` returns for *hostname*."""
    if name and name != server_dns_name(hostname):
        raise InvalidRequest(f"Port {port_id} not usable for instance. Value {name} assigned to dns_name attribute "
                             f"does not match instance's hostname {hostname}. Clear it, or make the server with this "
                             "host name.", type="PortNotUsableDNS")
