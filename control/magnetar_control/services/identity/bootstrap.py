# SPDX-License-Identifier: GPL-3.0-or-later
"""The initial rows of a cloud, and the ``clouds.yaml`` for its first administrator."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Connection, Table, insert, select, update

from magnetar_control.store.engine.database import insert_if_absent, utc_now

from . import assignments, tables, tokens
from .resources import DEFAULT, fetch_identity_row, new_row

REGION = "RegionOne"
#: Roles, each of which implies the next one.
ROLES = ("admin", "manager", "member", "reader")
#: The role of other services, by Nova's policy; it implies no other role.
SERVICE = "service"
#: Name, type and path of the services.
SERVICES = (
    ("nova", "compute", "/v2.1"), ("keystone", "identity", "/identity/v3"), ("glance", "image", "/image"),
    ("neutron", "network", "/network"), ("cinder", "block-storage", "/volume/v3/%(project_id)s"),
    ("cinderv3", "volumev3", "/volume/v3/%(project_id)s"), ("placement", "placement", "/placement"))
INTERFACES = ("public", "internal", "admin")


def create_initial_rows(connection: Connection, url: str, password_hash: str) -> bool:
    """Create the initial rows of the identity tables that are missing. Return whether the user admin was created.
    *url*: the root URL of the cloud's services. *password_hash*: the hashed password for a new user admin."""
    if fetch_identity_row(connection, tables.keys) is None:
        tokens.insert_signing_key(connection)
    insert_if_absent(connection, tables.domains, **new_row({"name": "Default", "description": "The default domain"},
                                                           DEFAULT))
    common = {"domain_id": DEFAULT, "parent_id": DEFAULT}
    project = ensure_named_row(connection, tables.projects, "admin", description="Projects of the administrators",
                               **common)
    ensure_named_row(connection, tables.projects, "service", description="Users of services", **common)
    roles = [ensure_named_row(connection, tables.roles, name) for name in ROLES]
    ensure_named_row(connection, tables.roles, SERVICE)
    for prior, implied in itertools.pairwise(roles):
        insert_if_absent(connection, tables.implications, prior_id=prior, implied_id=implied)
    admin = fetch_identity_row(connection, tables.users, name="admin", domain_id=DEFAULT)
    if admin is None:
        user = ensure_named_row(connection, tables.users, "admin", domain_id=DEFAULT, password=password_hash,
                                default_project_id=project)
        for target, target_id in (("project", project), ("domain", DEFAULT), ("system", assignments.ALL)):
            insert_if_absent(connection, tables.assignments, target=target, target_id=target_id, actor="user",
                             actor_id=user, role_id=roles[0])
    _catalogue(connection, url.rstrip("/"))
    return admin is None


def _catalogue(connection: Connection, url: str) -> None:
    """Create the catalogue's endpoints below *url*, or update their URLs. Endpoints that an administrator has changed
    (whose column ``follows`` is null) are left unchanged."""
    insert_if_absent(connection, tables.regions, **new_row({"description": ""}, REGION))
    for name, type_, path in SERVICES:
        service = ensure_named_row(connection, tables.services, name, type=type_, description="")
        endpoints_by_interface = {row.interface: row for row in connection.execute(
            select(tables.endpoints).where(tables.endpoints.c.service_id == service))}
        for interface in INTERFACES:
            values = {"url": url + path, "follows": url}
            if interface not in endpoints_by_interface:
                connection.execute(insert(tables.endpoints).values(new_row({
                    "service_id": service, "interface": interface, "region_id": REGION, **values})))
            elif endpoints_by_interface[interface].follows not in (None, url):
                connection.execute(update(tables.endpoints).where(
                    tables.endpoints.c.id == endpoints_by_interface[interface].id).values(**values,
                                                                                          updated_at=utc_now()))


def ensure_named_row(connection: Connection, table: Table, name: str, **values: Any) -> str:
    """Return the id of the row of *table* with this name (in the default domain, if the table has domains). If there is
    no such row, create it with *values*."""
    where = {"domain_id": values["domain_id"]} if "domain_id" in values else {}
    row = fetch_identity_row(connection, table, name=name, **where)
    if row is None:
        row = new_row({"name": name, **values})
        connection.execute(insert(table).values(row))
    return str(row["id"])


def clouds_yaml(path: Path, url: str, password: str, ca: Path | None = None, name: str = "magnetar") -> None:
    """Add or replace the cloud *name* in the ``clouds.yaml`` at *path*, and make the file readable only for its owner.
    *url*: the root URL of the cloud's services. *password*: of the user admin. *ca*: the file with the cloud's CA
    certificate. Raises ``ValueError`` if the existing file is not a clouds.yaml."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {} if path.exists() else {}
    except yaml.YAMLError:
        document = None  # its text may contain passwords, so the error does not repeat it
    if not isinstance(document, dict) or not isinstance(document.setdefault("clouds", {}), dict):
        raise ValueError(  # noqa: TRY004 - it is about what the file says
            f"{path} is there, and is no clouds.yaml (a mapping with the key clouds). Move it away, or "
            "name another file.")
    cloud: dict[str, Any] = {
        "auth": {"auth_url": f"{url.rstrip('/')}/identity/v3", "username": "admin", "password": password,
                 "project_name": "admin", "user_domain_id": DEFAULT, "project_domain_id": DEFAULT},
        "region_name": REGION, "interface": "public", "identity_api_version": 3}
    document["clouds"][name] = cloud | ({"cacert": str(ca)} if ca else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
