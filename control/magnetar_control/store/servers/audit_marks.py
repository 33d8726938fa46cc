# SPDX-License-Identifier: GPL-3.0-or-later
"""The stored progress of the audit of a cell, from which any conductor can continue."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from magnetar_control.store.engine.database import INSERT
from magnetar_control.store.engine.tables import actions, audit_marks

_ROW = "audit"
_FETCH = select(audit_marks.c.position, audit_marks.c.action_id).where(audit_marks.c.name == _ROW)
_SAVE = {kind: (query := insert(audit_marks)).on_conflict_do_update(index_elements=["name"], set_={
    "position": query.excluded.position, "action_id": query.excluded.action_id}) for kind, insert in INSERT.items()}
_NEWEST = select(func.max(actions.c.id))
_ACTED = select(actions.c.id, actions.c.server_id).where(actions.c.id > bindparam("after")).order_by(
    actions.c.id).limit(bindparam("most"))


class AuditMark(NamedTuple):
    """The progress of the periodic audit, which searches a cell's rows for inconsistencies. *position*: the position,
    from ``audit_pages``, at which the audit's slow pass over all rows continues; empty at the beginning. *action_id*:
    the last action (a requested operation on a server, such as a resize) whose server was audited."""

    position: str
    action_id: int


def fetch_audit_mark(connection: Connection) -> AuditMark | None:
    """Return the progress of the cell's periodic audit, which searches its rows for inconsistencies; ``None`` before
    the first audit."""
    row = connection.execute(_FETCH).one_or_none()
    return None if row is None else AuditMark(*row)


def first_audit_mark(connection: Connection) -> AuditMark:
    """Return the progress with which the first audit starts: at the beginning of its pass over all rows, and after the
    newest action. Earlier actions need no check, because the pass covers their servers."""
    return AuditMark("", connection.execute(_NEWEST).scalar() or 0)


def save_audit_mark(connection: Connection, mark: AuditMark) -> None:
    """Store the progress of the cell's periodic audit, which searches its rows for inconsistencies."""
    connection.execute(_SAVE[connection.dialect.name], {"name": _ROW, **mark._asdict()})


def fetch_acted_servers(connection: Connection, after: int, limit: int) -> list[tuple[int, str]]:
    """Return (action id, server uuid) of the next actions after the action id *after*, at most *limit*, so that the
    audit (a periodic search for inconsistent rows) checks these servers soon."""
    return [(row.id, row.server_id) for row in connection.execute(_ACTED, {"after": after, "most": limit})]
