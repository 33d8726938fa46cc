# SPDX-License-Identifier: GPL-3.0-or-later
"""The number of addresses that networks have for ports, and how many of them are used (Neutron's extension
network-ip-availability)."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from sqlalchemy import RowMapping, func, select, true

from magnetar_control.services import Page
from magnetar_control.services.network.resources import ip_version_filter
from magnetar_control.services.network.tables import addresses, networks, subnets
from magnetar_control.store.engine.database import Database
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidRequest

from . import ipam

#: Filters of networks: name in a query to column.
FILTERS = {"network_id": networks.c.id, "network_name": networks.c.name, "project_id": networks.c.project_id,
           "tenant_id": networks.c.project_id}
_OF_VERSION = ip_version_filter(subnets.c.cidr.contains(":"))


def network_ip_availability(database: Database, page: Page) -> Documents:
    """Return Neutron's network_ip_availability: a document for each network on the requested *page* of the list, sorted
    by uuid. ``total_ips``: the number of addresses in the allocation pools of the network's subnets. ``used_ips``: the
    number of addresses that ports have, even outside the pools (such as a router's). With the filter ``ip_version``,
    only subnets of this version count, and only networks with such a subnet are returned. Raises ``InvalidRequest`` for
    an unknown filter or marker."""
    filters = dict(page.filters)
    counted = _OF_VERSION(filters.pop("ip_version")) if "ip_version" in filters else true()
    if unknown := [name for name in filters if name not in FILTERS]:
        raise InvalidRequest(f"['{unknown[0]}'] is invalid attribute for filtering")
    query = select(*networks.c["id", "name", "project_id"]).where(
        *(FILTERS[name].in_(values) for name, values in filters.items())).order_by(networks.c.id)
    if "ip_version" in page.filters:
        query = query.where(networks.c.id.in_(select(subnets.c.network_id).where(counted)))
    with database.read() as connection:
        if page.marker is not None:
            if connection.execute(select(networks.c.id).where(networks.c.id == page.marker)).first() is None:
                raise InvalidRequest(f"marker: there is no network {page.marker}.", type="BadRequest")
            query = query.where(networks.c.id > page.marker)
        if page.limit:
            query = query.limit(page.limit)
        network_rows = connection.execute(query).mappings().all()
        given_out = select(func.count()).where(addresses.c.subnet_id == subnets.c.id).scalar_subquery()
        chosen = query.subquery()
        parts = connection.execute(select(
            *subnets.c["id", "name", "network_id", "cidr", "allocation_pools"], given_out.label("used")).join(
            chosen, chosen.c.id == subnets.c.network_id).where(counted).order_by(
            subnets.c.created_at, subnets.c.id)).mappings().all()
    of_network: dict[str, Documents] = {}
    for row in parts:
        of_network.setdefault(row["network_id"], []).append(_subnet(row))
    return [_network(row, of_network.get(row["id"], [])) for row in network_rows]


def _network(row: RowMapping, parts: Documents) -> Document:
    return {"network_id": row["id"], "network_name": row["name"], "project_id": row["project_id"],
            "tenant_id": row["project_id"], "subnet_ip_availability": parts,
            **{name: sum(part[name] for part in parts) for name in ("total_ips", "used_ips")}}


def _subnet(row: RowMapping) -> Document:
    return {"subnet_id": row["id"], "subnet_name": row["name"], "cidr": row["cidr"],
            "ip_version": 6 if ipam.is_six(row["cidr"]) else 4, "used_ips": row["used"], "total_ips": sum(_sizes(row))}


def _sizes(row: RowMapping) -> Iterator[int]:
    for pool in row["allocation_pools"]:
        yield int(ip_address(pool["end"])) - int(ip_address(pool["start"])) + 1
