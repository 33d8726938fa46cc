# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for domains, projects, users, groups and roles by id or name, as OpenStack's clients do it: an id takes
precedence over a name."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, or_, select

from magnetar_core.errors import Ambiguous

from . import tables
from .resources import IdentityResource, Row, fetch_identity_row

#: Number of resources whose names a statement looks up by id; of more, it reads all names.
FEW = 500


def find_in_domain(connection: Connection, resource: IdentityResource, key: str, domain_id: str | None) -> Row | None:
    """Return the row of *resource* with the id or name *key*; ``None`` if there is none. *domain_id*: the only domain
    to search; ``None`` for domains and roles, whose names are unique in the whole cloud."""
    return _fetch_in_domain(connection, resource, domain_id, id=key) or find_by_name(
        connection, resource, key, domain_id)


def find_by_id(connection: Connection, resource: IdentityResource, id: str) -> Row | None:
    """Return the row of *resource* with the id *id*; ``None`` if there is none."""
    return fetch_identity_row(connection, resource.table, id=id)


def find_by_name(connection: Connection, resource: IdentityResource, name: str, domain_id: str | None) -> Row | None:
    """Return the row of *resource* with the name *name*; ``None`` if there is none. *domain_id*: as in
    ``find_in_domain``."""
    return _fetch_in_domain(connection, resource, domain_id, name=name)


def _fetch_in_domain(connection: Connection, resource: IdentityResource, domain_id: str | None,
                     **columns: str) -> Row | None:
    domain = {} if domain_id is None else {"domain_id": domain_id}
    return fetch_identity_row(connection, resource.table, **columns, **domain)


def find_referred(connection: Connection, resource: IdentityResource, key: str, nearest_domain: str) -> Row | None:
    """Return the row of *resource* with the id or name *key*; ``None`` if there is none. Used for references in other
    resources, if the reference has no domain: a name is first searched in *nearest_domain*, then in all domains. Raises
    ``Ambiguous`` if several domains have a resource with this name."""
    columns = resource.table.c
    row = find_by_id(connection, resource, key)
    if row is None and resource.references:
        row = fetch_identity_row(connection, resource.table, name=key, domain_id=nearest_domain)
    if row is not None:
        return row
    in_domains = [] if resource.name in ("domain", "role") else [columns.domain_id.in_(select(tables.domains.c.id))]
    rows = connection.execute(select(resource.table).where(columns.name == key, *in_domains)).mappings().all()
    if len(rows) > 1:
        raise Ambiguous(f"{len(rows)} {resource.plural} have the name {key!r}; use an id, or name the domain.",
                        uuids=sorted(str(row["id"]) for row in rows))
    return dict(rows[0]) if rows else None


def find_users(connection: Connection, keys: Collection[str], domain_id: str) -> dict[str, Row]:
    """Return the users whose id is one of *keys*, and the users of the domain *domain_id* whose name is one of *keys*,
    as {key: row}."""
    users = tables.users.c
    query = select(tables.users).where(or_(users.id.in_(keys), (users.domain_id == domain_id) & users.name.in_(keys)))
    rows = [dict(row) for row in connection.execute(query).mappings()]
    by_name = {row["name"]: row for row in rows if row["domain_id"] == domain_id}
    by_key = {**by_name, **{row["id"]: row for row in rows}}
    return {key: by_key[key] for key in keys if key in by_key}


def fetch_names(connection: Connection, resource: IdentityResource, ids: Collection[str]) -> dict[str, str]:
    """Return the names of the resources *ids* by id; ids that do not exist are left out."""
    if not ids:
        return {}
    table = resource.table.c
    query = select(table.id, table.name)
    rows = connection.execute(query.where(table.id.in_(ids)) if len(ids) <= FEW else query)
    return {row.id: row.name for row in rows}


def domain_names(connection: Connection) -> dict[str, str]:
    """Return the names of all domains by id."""
    domains = tables.domains.c
    return {row.id: row.name for row in connection.execute(select(domains.id, domains.name))}
