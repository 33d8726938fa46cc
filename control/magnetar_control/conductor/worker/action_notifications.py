# SPDX-License-Identifier: GPL-3.0-or-later
"""The notifications of a running action, each written with the next transaction of the action.

An action's own notification (``ACTIONS``) starts with its first event and ends with the action. The events in
``STEPS`` have their own notifications, which end with the event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import user_message
from magnetar_control.notifications import (
    END,
    ERROR,
    EXISTS,
    INSTANCE,
    START,
    TASK,
    ActionFault,
    Initiator,
    Notifications,
    ServerEvent,
    action_key,
    failure_events,
    selection_events,
)
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.actions.action_row import ActionRow
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import ACTIONS, STEPS
from magnetar_core.errors import MagnetarError
from magnetar_core.power import CRASHED, OFF

#: Nova's names, after ``compute_task.``, of actions that could not begin since no host was found.
TASKS = {"create": "build_instances", **dict.fromkeys(("resize", "migrate", "os-migrateLive"), "migrate_server"),
         **dict.fromkeys(("rebuild", "evacuate"), "rebuild_server")}
#: Notifications that Nova precedes with ``exists``, for the audit period so far.
EXISTS_BEFORE = {"rebuild", "resize_prep"}


class ActionNotifications:
    """The notifications of one *action* (its row), collected during the action and written at the end of each
    transaction. *args*: the arguments of the action. *service*: the name of the conductor, which is the publisher of
    notifications about steps without a host. Nothing is collected unless the settings name a receiver or enable
    ``event_stream``."""

    def __init__(self, notifications: Notifications, action: ActionRow, args: Mapping[str, Any], service: str) -> None:
        self.notifications, self.action, self.args = notifications, action, args
        self.service, self._own = service, ACTIONS[action.action].notification
        self._event = ACTIONS[action.action].event
        self._who, self._key = Initiator.of(action), action_key(action)
        self._started, self._before_end = False, 0
        self._waiting: list[tuple[ServerEvent, str]] = []  # each with the action's event at that time

    def begin(self, event: str | None, host: str | None) -> None:
        """Add the start notifications of an event that happens on *host* as a part of the action. *event*: the name of
        the event; by default the event that ``ACTIONS`` names for the action."""
        self._event = event or self._event
        names: tuple[str, ...] = () if self._started else (self._own,)
        if self._event in STEPS:
            names = STEPS[self._event]
        else:
            self._started = True
        if EXISTS_BEFORE & set(names):
            self._add(EXISTS, "", host)
        for name in names:
            self._add(name, START, host)

    def begun(self) -> None:
        """Note that the start notification of the action was already sent, so that ``begin`` does not add it again."""
        self._started = True

    def event_ended(self, host: str | None) -> None:
        """Add the end notifications of the event that the last call of ``begin`` started. Called when the event has
        succeeded."""
        for name in reversed(STEPS.get(self._event, ())):
            self._add(name, END, host)

    def followed_by(self, name: str, host: str | None) -> None:
        """Add the end notification of the action's present operation, and the start notification *name* of the
        operation that follows within the same action, such as offloading after shelving. A later call of ``ended`` adds
        the last notification of the operation *name*."""
        if self._started and self._own != name:
            self._add(self._own, END, host)
            self._own = name
            self._add(name, START, host)

    def ended(self, error: BaseException | None, host: str | None) -> None:
        """Add the last notification of the action: phase error if it failed with *error*, otherwise phase end."""
        self._before_end = len(self._waiting)
        if error is None:
            if self._started or self._event not in STEPS:
                self._add(self._own, END, host)
            return
        if isinstance(error, NoValidHost):
            for event in selection_events(self._who, self.args, self.service, f"{self._key}.none", host_found=False):
                self._keep(event)
        words = user_message(error) if isinstance(error, MagnetarError) else type(error).__name__
        fault = ActionFault(type(error).__name__, type(error).__module__, words, self._event)
        if isinstance(error, NoValidHost) and (task := TASKS.get(self.action.action)):
            self._keep(self._made(task, ERROR, None, fault)._replace(object=TASK))
        for event in failure_events(self._made(self._own, "", host, fault)):
            self._keep(event)

    def not_ended(self) -> None:
        """Drop the notifications that ``ended`` added, because the transaction that would have ended the action was
        rolled back."""
        del self._waiting[self._before_end:]

    def selected(self, host: str) -> None:
        """Add the notifications that the scheduler has chosen *host*. Call this before the transaction that saves the
        host, which then also writes these notifications."""
        for event in selection_events(self._who, self.args, self.service, f"{self._key}.{host}"):
            self._keep(event)

    def _add(self, name: str, phase: str, host: str | None) -> None:
        self._keep(self._made(name, phase, host))

    def _keep(self, event: ServerEvent) -> None:
        if self.notifications and event.name:
            self._waiting.append((event, self._event))

    def _made(self, name: str, phase: str, host: str | None, fault: ActionFault | None = None) -> ServerEvent:
        return ServerEvent(name, phase, self._who, self.args, fault, host, self.service, self._key)

    def write(self, connection: Connection, old_row: ServerRow | None) -> None:
        """Write the added notifications at the end of a transaction of the action. *old_row*: the server's row before
        the transaction; the notification of a deletion gets addresses and volumes from this row."""
        if not self._waiting or (row := servers.fetch_server_row(connection, self.action.server_id, lock=True)) is None:
            return
        if row.deleted_at and old_row is not None and not old_row.deleted_at:
            row = row.changed_columns(interfaces=old_row.stored.interfaces, volumes=old_row.stored.volumes)
        again = self.action.attempts > 1  # an earlier attempt may have sent the start
        events = [event for event, name in self._waiting if not (
            again and event.object == INSTANCE and event.phase in ("", START) and event.fault is None
            and instance_actions.count_event_starts(connection, self.action.id, name, event.host) > 1)]
        self.notifications.add_server(connection, row, *events)

    def written(self) -> None:
        """Drop the added notifications, because the transaction that wrote them is committed."""
        self._waiting.clear()


def tell_power(notifications: Notifications, connection: Connection, server_id: str, old_vm_state: str,
               power_state: str, host: str) -> None:
    """Notify that a guest has changed to *power_state* by itself. Send the end notification of an action that leads to
    this state, such as power_off, preferably of an action that *old_vm_state* allows. Send nothing if no action leads
    to this state."""
    if not notifications or (row := servers.fetch_server_row(connection, server_id, lock=True)) is None:
        return
    target_state = {"power": OFF if power_state == CRASHED else power_state}
    fitting = [action for action in ACTIONS.values() if action.want == target_state]
    if fitting:
        action = next((fitting_action for fitting_action in fitting if old_vm_state in fitting_action.states),
                      fitting[0])
        notifications.add_server(connection, row,
                                 ServerEvent(action.notification, END, host=host))
