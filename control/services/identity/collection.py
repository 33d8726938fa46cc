# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that all nouns have: list, make, show, change, remove. For administrators, but that everybody may see
themselves, their projects and their domain."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context
from magnetar_control.store.database import now
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound

from . import grants
from .bearers import Bearers
from .changes import BEFORE, removing
from .nouns import DOMAINS, PROJECTS, REGIONS, USERS, Noun, Row, new_row, with_password


class Collection:
    """The routes of one noun."""

    def __init__(self, noun: Noun, bearers: Bearers) -> None:
        self.noun, self.bearers = noun, bearers

    def routes(self) -> list[Guarded]:
        """The routes of the collection and of its members."""
        every, one = f"/v3/{self.noun.plural}", f"/v3/{self.noun.plural}/{{id}}"
        see = "token" if self.noun.name in SEEN else "admin"
        return [
            Guarded(method="GET", path=every, handler=self.list, who="token" if self.noun is REGIONS else "admin"),
            Guarded(method="POST", path=every, handler=self.create, who="admin"),
            Guarded(method="GET", path=one, handler=self.show, who=see),
            Guarded(method="PATCH", path=one, handler=self.update, who="admin"),
            Guarded(method="DELETE", path=one, handler=self.delete, who="admin"),
        ]

    def list(self, request: Request) -> Answer:
        """All, or those under the filters of the query."""
        with self.bearers.database.read() as connection:
            rows = self.noun.rows(connection, self.noun.where(request.query))
        base = f"{request.base}/v3"
        link = f"{base}/{self.noun.plural}" + (f"?{request.query_string}" if request.query_string else "")
        return Answer({self.noun.plural: [self.noun.document(row, base) for row in rows],
                       "links": {"next": None, "previous": None, "self": link}})

    def show(self, request: Request) -> Answer:
        """One; 404 when the user may not know of it."""
        with self.bearers.database.read() as connection:
            row = self.noun.row(connection, request.params["id"])
            if not request.context.is_admin:
                targets = [id for kind in ("project", "domain")
                           for id in grants.targets_of(connection, request.context.user_id, kind)]
                if not SEEN[self.noun.name](request.context, row, targets):
                    raise NotFound(f"Could not find {self.noun.name}: {row['id']}.")
        return self._answer(row, request)

    def create(self, request: Request) -> Answer:
        """A new one."""
        body = request.json()
        values = self.noun.values(body, making=True)
        if self.noun is USERS:
            with_password(values, body)
        row = new_row(values, self._id(body))
        if "enabled" in values and "epoch" in self.noun.table.c:
            row["epoch"] = 0
        try:
            with self.bearers.change() as connection:
                BEFORE[self.noun.name](connection, row, None)
                connection.execute(insert(self.noun.table).values(row))
                made = self.noun.row(connection, row["id"])
        except IntegrityError as error:
            raise self._duplicate(values) from error
        return self._answer(made, request, 201)

    def update(self, request: Request) -> Answer:
        """Change what is given."""
        body = request.json()
        values = self.noun.values(body, making=False)
        if self.noun is USERS:
            with_password(values, body)
        try:
            with self.bearers.change() as connection:
                row = self.noun.row(connection, request.params["id"])
                BEFORE[self.noun.name](connection, values, row)
                values["extra"] = merged(row["extra"], values["extra"])
                connection.execute(update(self.noun.table).where(self.noun.table.c.id == row["id"]).values(
                    **values, updated_at=now()))
                made = self.noun.row(connection, row["id"])
        except IntegrityError as error:
            raise self._duplicate(values) from error
        return self._answer(made, request)

    def delete(self, request: Request) -> Answer:
        """Remove it, with what belongs to it."""
        with self.bearers.change() as connection:
            row = self.noun.row(connection, request.params["id"])
            removing(connection, self.noun.name, row)
            connection.execute(delete(self.noun.table).where(self.noun.table.c.id == row["id"]))
        return Answer(status=204)

    def _answer(self, row: Row, request: Request, status: int = 200) -> Answer:
        return Answer({self.noun.name: self.noun.document(row, f"{request.base}/v3")}, status)

    def _id(self, body: dict[str, dict[str, object]]) -> str | None:
        """Clients name regions; ids of the others are drawn."""
        id = body[self.noun.name].get("id") if self.noun is REGIONS else None
        if id is None:
            return None
        if not isinstance(id, str) or not 0 < len(id) <= 64 or set(id) & set("/\0"):
            raise InvalidRequest("id must be text of 1 to 64 characters without slash.")
        with self.bearers.database.read() as connection:
            if connection.execute(select(REGIONS.table.c.id).where(REGIONS.table.c.id == id)).first():
                raise Conflict(f"There is a region {id} already.")
        return id

    def _duplicate(self, values: dict[str, object]) -> MagnetarError:
        return Conflict(f"Conflict occurred attempting to store {self.noun.name} - there is one named "
                        f"{values.get('name')} already.")


def merged(known: str, given: str) -> str:
    """The extra keys after a change; a key given as null is gone."""
    found = orjson.loads(known) | orjson.loads(given)
    return orjson.dumps({key: value for key, value in found.items() if value is not None}).decode()


#: Who may see one without being an administrator, given the ids of what they have roles on.
SEEN: dict[str, Callable[[Context, Row, list[str]], bool]] = {
    REGIONS.name: lambda _context, _row, _targets: True,
    USERS.name: lambda context, row, _targets: row["id"] == context.user_id,
    PROJECTS.name: lambda _context, row, targets: row["id"] in targets,
    DOMAINS.name: lambda context, row, targets: row["id"] in (context.user_domain_id, context.project_domain_id,
                                                              *targets),
}
