# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be done with all resources of identity v3: list, show, create, change and remove them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.database import now
from magnetar_core.errors import Conflict, MagnetarError, NotFound

from . import assignments, passwords
from .changes import BEFORE, removing
from .resources import DOMAINS, PASSWORD, PROJECTS, REGION_ID, REGIONS, USERS, IdentityResource, Row, new_row
from .tokens import Tokens


class IdentityStore:
    """The resources of one kind. What only administrators may do, the face sees to."""

    def __init__(self, resource: IdentityResource, tokens: Tokens) -> None:
        self.resource, self.tokens = resource, tokens

    def list(self, filters: Mapping[str, Any]) -> Documents:
        """Those under the filters."""
        with self.tokens.database.read() as connection:
            rows = self.resource.rows(connection, self.resource.where(filters))
        return [self.resource.document(row) for row in rows]

    def show(self, context: Context, id: str) -> Document:
        """One. Raises ``NotFound``, also where the caller may not know of it."""
        name = self.resource.name
        with self.tokens.database.read() as connection:
            row = self.resource.row(connection, id)
            if not context.is_admin:
                targets = [id for kind in ("project", "domain")
                           for id in assignments.targets_of(connection, context.user_id, kind)]
                if not SEEN[name](context, row, targets):
                    raise NotFound(f"Could not find {name}: {row['id']}.")
        return self.resource.document(row)

    def create(self, wanted: Mapping[str, Any]) -> Document:
        """A new one. Raises ``InvalidField``, ``Conflict``."""
        values = self._values(wanted, making=True)
        row = new_row(values, self._id(wanted))
        if "enabled" in values and "epoch" in self.resource.table.c:
            row["epoch"] = 0
        try:
            with self.tokens.change() as connection:
                BEFORE[self.resource.name](connection, row, None)
                connection.execute(insert(self.resource.table).values(row))
                return self.resource.document(self.resource.row(connection, row["id"]))
        except IntegrityError as error:
            raise self._duplicate(values) from error

    def update(self, id: str, wanted: Mapping[str, Any]) -> Document:
        """Change what is given. Raises ``InvalidField``, ``NotFound``, ``Conflict``."""
        values = self._values(wanted, making=False)
        try:
            with self.tokens.change() as connection:
                row = self.resource.row(connection, id)
                BEFORE[self.resource.name](connection, values, row)
                values["extra"] = merged(row["extra"], values["extra"])
                connection.execute(update(self.resource.table).where(self.resource.table.c.id == row["id"]).values(
                    **values, updated_at=now()))
                return self.resource.document(self.resource.row(connection, row["id"]))
        except IntegrityError as error:
            raise self._duplicate(values) from error

    def delete(self, id: str) -> None:
        """Remove it, with what belongs to it."""
        with self.tokens.change() as connection:
            row = self.resource.row(connection, id)
            removing(connection, self.resource.name, row)
            connection.execute(delete(self.resource.table).where(self.resource.table.c.id == row["id"]))

    def _values(self, wanted: Mapping[str, Any], making: bool) -> Document:
        """The columns; a user's with the hash of the password, outside of any transaction, because it takes long."""
        values = self.resource.values(wanted, making)
        if self.resource is USERS and wanted.get("password") is not None:
            values["password"] = passwords.hashed(PASSWORD.check(wanted["password"], "password"))
        return values

    def _id(self, wanted: Mapping[str, Any]) -> str | None:
        """Clients name regions; ids of the others are drawn."""
        if self.resource is not REGIONS or wanted.get("id") is None:
            return None
        id: str = REGION_ID.check(wanted["id"], "id")
        with self.tokens.database.read() as connection:
            if connection.execute(select(REGIONS.table.c.id).where(REGIONS.table.c.id == id)).first():
                raise Conflict(f"There is a region {id} already.")
        return id

    def _duplicate(self, values: Document) -> MagnetarError:
        return Conflict(f"Conflict occurred attempting to store {self.resource.name} - there is one named "
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
                                                              *targets)}
