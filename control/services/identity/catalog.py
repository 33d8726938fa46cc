# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of a token: services with their endpoints, as Keystone lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from . import tables
from .resources import Row

Document = dict[str, Any]
#: What an endpoint's URL may hold, in both of the ways in which Keystone writes it.
BLANKS = tuple(form.format(name) for name in ("project_id", "tenant_id") for form in ("%({})s", "$({})s"))


def read(connection: Connection, project_id: str | None, root: str | None) -> list[Document]:
    """Enabled services that have enabled endpoints, by name. Endpoints that need a project are left out when there is
    none; those that follow get *root* for their host."""
    service, endpoint = tables.services.c, tables.endpoints.c
    found = connection.execute(
        select(service.id.label("service"), service.name, service.type, tables.endpoints)
        .join(tables.services, service.id == endpoint.service_id)
        .where(service.enabled.is_(True), endpoint.enabled.is_(True))
        .order_by(service.name, service.id, endpoint.interface, endpoint.id)).mappings()
    return catalogue(map(dict, found), project_id, root)


def catalogue(rows: Iterable[Row], project_id: str | None, root: str | None) -> list[Document]:
    """The rows of ``read`` as the catalogue."""
    found: dict[str, Document] = {}
    for row in rows:
        url = filled(followed(row, root), project_id)
        if url is None:
            continue
        entry = found.setdefault(row["service"], {
            "id": row["service"], "type": row["type"], "name": row["name"] or "", "endpoints": []})
        entry["endpoints"].append({"id": row["id"], "interface": row["interface"], "region": row["region_id"],
                                   "region_id": row["region_id"], "url": url})
    return list(found.values())


def followed(row: Mapping[str, Any], root: str | None) -> str:
    """The URL of an endpoint, with *root* in place of the host that it was made for."""
    url: str = row["url"]
    if root and row["follows"] and url.startswith(row["follows"]):
        return root + url[len(row["follows"]):]
    return url


def filled(url: str, project_id: str | None) -> str | None:
    """The URL with the project in its blanks; ``None`` when it has one and there is no project."""
    for blank in BLANKS:
        if blank in url:
            if project_id is None:
                return None
            url = url.replace(blank, project_id)
    return url
