# SPDX-License-Identifier: GPL-3.0-or-later
"""The action table as users read it through os-instance-actions, including the actions of deleted servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, func, select

from magnetar_control.store.engine.tables import action_events, actions

from .action_row import ActionEvent, ActionRow, ShownAction

_SHOWN, _WHOLE, _EVENTS = (row.selection(table) for row, table in (
    (ShownAction, actions), (ActionRow, actions), (ActionEvent, action_events)))


def fetch_action_rows(connection: Connection, server_id: str, shown: Sequence[str], limit: int | None = None,
                      marker: str | None = None, changed_since: str | None = None,
                      changed_before: str | None = None) -> list[ShownAction] | None:
    """Return the actions of a server, newest first, at most *limit*. *shown*: the keys (such as resize) of the actions
    to return.

    *marker*: a request id; only actions older than the action of this request are returned, or ``None`` if there is no
    such action. *changed_since*, *changed_before*: return only actions whose last change was between these times.
    """
    where = [actions.c.server_id == server_id, actions.c.action.in_(shown)]
    if marker is not None:
        at = connection.execute(select(actions.c.id).where(
            *where, actions.c.request_id == marker).order_by(actions.c.id)).scalars().first()
        if at is None:
            return None
        where.append(actions.c.id < at)
    if changed_since is not None:
        where.append(actions.c.updated_at >= changed_since)
    if changed_before is not None:
        where.append(actions.c.updated_at <= changed_before)
    return ShownAction.several(connection.execute(
        _SHOWN.where(*where).order_by(actions.c.id.desc()).limit(limit)))


def fetch_action_row(connection: Connection, server_id: str, shown: Sequence[str], request_id: str) -> ActionRow | None:
    """Return the newest action of a server with this *request_id*; ``None`` when there is none. *shown*: the keys (such
    as resize) of the actions to search."""
    return ActionRow.optional(connection.execute(_WHOLE.where(
        actions.c.server_id == server_id, actions.c.request_id == request_id,
        actions.c.action.in_(shown)).order_by(actions.c.id.desc()).limit(1)).one_or_none())


def fetch_action_states(connection: Connection, requests: Mapping[str, str | None]) -> dict[str, str]:
    """Return the state of one action of each server: {server: state}. *requests*: {server: request id of the action}.
    Servers without such an action are omitted."""
    if not requests:
        return {}
    rows = connection.execute(select(actions.c.server_id, actions.c.request_id, actions.c.state).where(
        actions.c.server_id.in_(list(requests)), actions.c.request_id.in_(list(requests.values()))))
    return {row.server_id: row.state for row in rows if requests[row.server_id] == row.request_id}


def fetch_event_rows(connection: Connection, action: int) -> list[ActionEvent]:
    """Return the events (steps) of the action with the id *action*, newest first."""
    return ActionEvent.several(connection.execute(_EVENTS.where(action_events.c.action_id == action).order_by(
        action_events.c.id.desc())))


def fetch_action_keys(connection: Connection, server_id: str, request_id: str) -> list[str]:
    """Return the keys (such as resize) of all actions that the request *request_id* has started on a server, oldest
    first."""
    return list(connection.execute(select(actions.c.action).where(
        actions.c.server_id == server_id, actions.c.request_id == request_id).order_by(actions.c.id)).scalars())


def count_event_starts(connection: Connection, number: int, event: str, host: str | None) -> int:
    """Return how often the event (step) *event* of the action *number* has started on *host*."""
    return int(connection.execute(select(func.count()).select_from(action_events).where(
        action_events.c.action_id == number, action_events.c.event == event,
        action_events.c.host == host)).scalar_one())
