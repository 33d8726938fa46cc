# SPDX-License-Identifier: GPL-3.0-or-later
"""Projects above and below a project (Identity API v3, "Show project details": parents and subtree)."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Connection, select

from magnetar_control.services import Context, Document, Documents

from . import assignments
from .resources import PROJECTS
from .tables import projects
from .tokens import Tokens


def below(connection: Connection, project_id: str) -> dict[str, list[str]]:
    """The project and each one below it, to the ids of those right below them."""
    children = defaultdict(list)
    for id, parent_id in connection.execute(select(projects.c.id, projects.c.parent_id).order_by(projects.c.id)):
        children[parent_id].append(id)
    found, todo = {}, [project_id]
    while todo:
        id = todo.pop()
        found[id] = children[id]
        todo += children[id]
    return found


def above(connection: Connection, project_id: str) -> list[str]:
    """Ids of the projects above it, the nearest first, and of the domain at the end."""
    found = [project_id]
    while above := connection.execute(select(projects.c.parent_id).where(projects.c.id == found[-1])).scalar():
        found.append(above)
    return found[1:]


class Hierarchy:
    """For callers. Each method is one transaction."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def parents(self, context: Context, id: str) -> Documents:
        """The projects above that the caller may see."""
        with self.tokens.database.read() as connection:
            return self._seen(connection, context, above(connection, id))

    def subtree(self, context: Context, id: str) -> Documents:
        """The projects below that the caller may see."""
        with self.tokens.database.read() as connection:
            return self._seen(connection, context, [one for one in below(connection, id) if one != id])

    def parent_ids(self, id: str) -> Document | None:
        """{nearest: {next: {domain: null}}}."""
        with self.tokens.database.read() as connection:
            found: Document | None = None
            for one in reversed(above(connection, id)):
                found = {one: found}
            return found

    def subtree_ids(self, id: str) -> Document | None:
        """{child: {grandchild: null}}; ``None`` where nothing is below."""
        with self.tokens.database.read() as connection:
            children = below(connection, id)
        found: dict[str, Document | None] = {}
        for one in reversed(children):  # whoever is below comes later
            found[one] = {child: found[child] for child in children[one]} or None
        return found[id]

    def _seen(self, connection: Connection, context: Context, ids: list[str]) -> Documents:
        if not context.is_admin:
            theirs = {*assignments.targets_of(connection, context.user_id, "project")}
            ids = [id for id in ids if id in theirs]
        return PROJECTS.documents(connection, projects.c.id.in_(ids))
