# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded identity service: Keystone's v3 API on the API database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sqlalchemy import select

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database
from magnetar_core.document import Document, Documents

from . import passwords, tables
from .bootstrap import create_initial_rows
from .resources import fetch_identity_row
from .tokens import RECHECK_INTERVAL, Tokens

HOUR = 3600.0
#: Lifetime of tokens in seconds: shortest, longest, default.
SHORTEST, LONGEST, USUAL = HOUR, 24 * HOUR, 8 * HOUR
#: Placeholders in an endpoint's URL, in both of Keystone's notations.
BLANKS = ("%(project_id)s", "$(project_id)s", "%(tenant_id)s", "$(tenant_id)s")


class EmbeddedIdentity:
    """The identity service built into Magnetar, an implementation of ``services.Identity``.

    *life*: the lifetime of tokens in seconds. *follow*: whether URLs in the catalogue get the host name of the client's
    request. *recheck_interval*: seconds until changes by other processes take effect. *clock*: returns seconds since
    the epoch.
    """

    def __init__(self, database: Database, life: float = USUAL, follow: bool = True,
                 recheck_interval: float = RECHECK_INTERVAL,
                 clock: Callable[[], float] = time.time) -> None:
        if not SHORTEST <= life <= LONGEST:
            raise ValueError(f"the life of tokens is {life:.0f} s; it must be {SHORTEST:.0f} to {LONGEST:.0f}")
        self.database, self.life, self.follow = database, life, follow
        self.tokens = Tokens(database, clock, recheck_interval)

    def validate(self, token: str) -> Context | None:
        valid_token = self.tokens.find(token)
        return valid_token.context if valid_token else None

    def project_exists(self, context: Context, project_id: str) -> bool:
        with self.database.read() as connection:
            return fetch_identity_row(connection, tables.projects, id=project_id) is not None

    def projects_named(self, context: Context, name: str) -> Mapping[str, str]:
        """Return {id of the project: id of its domain} for the projects called *name*. Empty unless the caller is an
        administrator, because only administrators may list projects, as in Keystone."""
        projects = tables.projects.c
        if not context.is_admin:
            return {}
        with self.database.read() as connection:
            rows = connection.execute(select(projects.id, projects.domain_id).where(projects.name == name)).all()
        return {row.id: row.domain_id for row in rows}

    def catalog(self, project_id: str | None, root: str) -> Documents:
        """Return the service catalogue for a token, in Keystone's format: enabled services with their enabled
        endpoints, sorted by name. *project_id*: the project of the token; ``None``: leave out endpoints whose URL
        contains the project. *root*: the root URL of the client's request."""
        service, endpoint = tables.services.c, tables.endpoints.c
        query = select(service.id.label("service"), service.name.label("service_name"), service.type, tables.endpoints)
        query = query.join(tables.services, service.id == endpoint.service_id).where(
            service.enabled.is_(True), endpoint.enabled.is_(True)).order_by(
            service.name, service.id, endpoint.interface, endpoint.id)
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        services_by_id: dict[str, Document] = {}
        for row in rows:
            if project_id is None and any(blank in row.url for blank in BLANKS):
                continue
            url = row.url
            if root and self.follow and row.follows and url.startswith(row.follows):
                url = root + url[len(row.follows):]
            for blank in BLANKS:
                url = url.replace(blank, project_id or "")
            entry = services_by_id.setdefault(row.service, {
                "id": row.service, "type": row.type, "name": row.service_name or "", "endpoints": []})
            entry["endpoints"].append({"id": row.id, "interface": row.interface, "region": row.region_id,
                                       "region_id": row.region_id, "url": url})
        return list(services_by_id.values())

    def bootstrap(self, url: str, password: str | None = None, keep: Callable[[str], None] | None = None) -> str | None:
        """Create the initial rows of a cloud that are missing. Return the password of the user admin if this call
        created the user, otherwise ``None``.

        *url*: the root URL of the services (``https://cloud:8774``). *password*: of the user admin; random by default.
        *keep*: called with the password before the commit, for example to write ``clouds_yaml``, so that a crash cannot
        lose it. If two processes bootstrap at the same time, only one of them creates the user and calls *keep*.
        """
        password = password or passwords.draw_secret()
        password_hash = passwords.hash_password(password)
        with self.tokens.change() as connection:
            made = create_initial_rows(connection, url, password_hash)
            if made and keep:
                keep(password)
        return password if made else None
