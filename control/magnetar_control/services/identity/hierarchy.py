# SPDX-License-Identifier: GPL-3.0-or-later
"""Projects above and below a project (Identity API v3, "Show project details": parents and subtree)."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Connection, select

from magnetar_control.services import Context
from magnetar_core.document import Document, Documents

from . import assignments
from .resources import PROJECTS
from .tables import projects
from .tokens import Tokens


def projects_below(connection: Connection, project_id: str) -> dict[str, list[str]]:
    """Return {id of a project: ids of its children} for the project *project_id* and all projects below it."""
    children = defaultdict(list)
    for id, parent_id in connection.execute(select(projects.c.id, projects.c.parent_id).order_by(projects.c.id)):
        children[parent_id].append(id)
    children_by_project, todo = {}, [project_id]
    while todo:
        id = todo.pop()
        children_by_project[id] = children[id]
        todo += children[id]
    return children_by_project


def project_ids_above(connection: Connection, project_id: str) -> list[str]:
    """Return the ids of the projects above a project, the nearest first; the last id is the domain's."""
    path = [project_id]
    while above := connection.execute(select(projects.c.parent_id).where(projects.c.id == path[-1])).scalar():
        path.append(above)
    return path[1:]


class Hierarchy:
    """Queries of the project hierarchy. Each method runs in a transaction of its own."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def parents(self, context: Context, id: str) -> Documents:
        """Return the projects above the project *id*, as far as the caller may see them."""
        with self.tokens.database.read() as connection:
            return self._seen(connection, context, project_ids_above(connection, id))

    def subtree(self, context: Context, id: str) -> Documents:
        """Return the projects below the project *id*, as far as the caller may see them."""
        with self.tokens.database.read() as connection:
            return self._seen(connection, context, [child_id for child_id in projects_below(connection, id)
                                                    if child_id != id])

    def parent_ids(self, id: str) -> Document | None:
        """Return the ids of the projects above the project *id* as nested objects: {parent: {grandparent: {domain:
        null}}}; ``None`` if there are none."""
        with self.tokens.database.read() as connection:
            nested: Document | None = None
            for parent_id in reversed(project_ids_above(connection, id)):
                nested = {parent_id: nested}
            return nested

    def subtree_ids(self, id: str) -> Document | None:
        """Return the ids of the projects below the project *id* as nested objects: {child: {grandchild: null}};
        ``None`` if there are none."""
        with self.tokens.database.read() as connection:
            children = projects_below(connection, id)
        nested: dict[str, Document | None] = {}
        for project_id in reversed(children):  # projects further down come later
            nested[project_id] = {child: nested[child] for child in children[project_id]} or None
        return nested[id]

    def _seen(self, connection: Connection, context: Context, ids: list[str]) -> Documents:
        if not context.is_admin:
            theirs = {*assignments.role_target_ids(connection, context.user_id, "project")}
            ids = [id for id in ids if id in theirs]
        return PROJECTS.documents(connection, projects.c.id.in_(ids))
