# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded identity service: Keystone's v3 on the API database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sqlalchemy import select

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.engine.database import Database

from . import passwords, tables
from .bootstrap import first
from .resources import one
from .tokens import LOOK_AGAIN, Tokens

HOUR = 3600.0
#: How long a token is good, in seconds: least, most, usual.
SHORTEST, LONGEST, USUAL = HOUR, 24 * HOUR, 8 * HOUR
#: What an endpoint's URL may hold, in both of the ways in which Keystone writes it.
BLANKS = ("%(project_id)s", "$(project_id)s", "%(tenant_id)s", "$(tenant_id)s")


class EmbeddedIdentity:
    """Implements ``services.Identity``. *life*: of tokens, in seconds. *follow*: the catalogue's host is the one by
    which the client asked. *look_again*: seconds after which changes by other processes count. *clock*: seconds since
    the epoch."""

    def __init__(self, database: Database, life: float = USUAL, follow: bool = True, look_again: float = LOOK_AGAIN,
                 clock: Callable[[], float] = time.time) -> None:
        if not SHORTEST <= life <= LONGEST:
            raise ValueError(f"the life of tokens is {life:.0f} s; it must be {SHORTEST:.0f} to {LONGEST:.0f}")
        self.database, self.life, self.follow = database, life, follow
        self.tokens = Tokens(database, clock, look_again)

    def validate(self, token: str) -> Context | None:
        found = self.tokens.find(token)
        return found.context if found else None

    def project_exists(self, context: Context, project_id: str) -> bool:
        with self.database.read() as connection:
            return one(connection, tables.projects, id=project_id) is not None

    def projects_named(self, context: Context, name: str) -> Mapping[str, str]:
        """For administrators, as Keystone lists projects."""
        projects = tables.projects.c
        if not context.is_admin:
            return {}
        with self.database.read() as connection:
            rows = connection.execute(select(projects.id, projects.domain_id).where(projects.name == name)).all()
        return {row.id: row.domain_id for row in rows}

    def catalog(self, project_id: str | None, root: str) -> Documents:
        """The catalogue of a token for a project, as Keystone lists it: enabled services that have enabled endpoints,
        by name. Endpoints that need a project are left out when there is none. *root*: the host by which the client
        asked."""
        service, endpoint = tables.services.c, tables.endpoints.c
        query = select(service.id.label("service"), service.name.label("service_name"), service.type, tables.endpoints)
        query = query.join(tables.services, service.id == endpoint.service_id).where(
            service.enabled.is_(True), endpoint.enabled.is_(True)).order_by(
            service.name, service.id, endpoint.interface, endpoint.id)
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        found: dict[str, Document] = {}
        for row in rows:
            if project_id is None and any(blank in row.url for blank in BLANKS):
                continue
            url = row.url
            if root and self.follow and row.follows and url.startswith(row.follows):
                url = root + url[len(row.follows):]
            for blank in BLANKS:
                url = url.replace(blank, project_id or "")
            entry = found.setdefault(row.service, {
                "id": row.service, "type": row.type, "name": row.service_name or "", "endpoints": []})
            entry["endpoints"].append({"id": row.id, "interface": row.interface, "region": row.region_id,
                                       "region_id": row.region_id, "url": url})
        return list(found.values())

    def bootstrap(self, url: str, password: str | None = None, keep: Callable[[str], None] | None = None) -> str | None:
        """Make what a cloud has from its beginning, where it is missing. Gives the password of admin when it was made
        now, else ``None``. *url*: root of the services (``https://cloud:8774``); *password*: instead of one by chance.
        *keep* is called with the password before it counts, so that no crash loses it: to write ``clouds_yaml``. Two
        processes may do it at once; one of them keeps the password."""
        password = password or passwords.drawn()
        kept = passwords.hashed(password)
        with self.tokens.change() as connection:
            made = first(connection, url, kept)
            if made and keep:
                keep(password)
        return password if made else None
