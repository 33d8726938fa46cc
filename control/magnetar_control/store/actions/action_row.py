# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of actions and their events: one class for each selection of columns."""

from __future__ import annotations

from typing import Any, NamedTuple

from magnetar_control.store.engine.rows import DocumentColumn, SelectedRow


class ShownAction(SelectedRow):
    """The columns of an action (an operation on a server, such as a resize) that users see."""

    id: int
    request_id: str
    server_id: str
    action: str
    project_id: str
    user_id: str
    start_time: str
    updated_at: str | None
    message: str | None


class ActionRow(ShownAction):
    """A row of the table ``actions``, the queue of operations on servers. *waits_for*: another host that the action
    needs. *holder*: the conductor that has leased the action."""

    state: str
    host: str | None
    waits_for: str | None
    kind: str
    holder: str | None
    lease_until: str | None
    not_before: str | None
    attempts: int
    cancel: bool

    #: The arguments of the action's flow, which may add entries: each use decodes a new copy.
    args = DocumentColumn[dict[str, Any]](cached=False)


class StoppedAction(SelectedRow):
    """An action (an operation on a server) that was removed from the queue without being completed. ``message``: the
    reason."""

    id: int
    attempts: int
    action: str
    request_id: str
    user_id: str
    project_id: str
    host: str | None
    message: str

    args = DocumentColumn[dict[str, Any]](cached=False)


class ActionEvent(SelectedRow):
    """A row of the table ``action_events``: a step of an action, as Nova shows it in os-instance-actions."""

    id: int
    action_id: int
    event: str
    start_time: str
    finish_time: str | None
    result: str | None
    host: str | None
    traceback: str | None
    details: str | None


class QueuedAction(NamedTuple):
    """The columns of a queued action (an operation on a server) that decide when a conductor leases it."""

    id: int
    host: str | None
    kind: str
    project_id: str
    waits_for: str | None


class RunningActions(NamedTuple):
    """The number of running actions of one kind (such as build) on one host for one project."""

    host: str | None
    kind: str
    project_id: str
    running: int
