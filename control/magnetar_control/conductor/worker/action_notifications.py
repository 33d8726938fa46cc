# SPDX-License-Identifier: GPL-3.0-or-later
"""What an action in hand has to tell: its notifications, each written with the next transaction of the action.

An action's own notification (``ACTIONS``) starts with its first event and ends with the action. Events that ``STEPS``
names have notifications of their own, which end with the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import plain
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
    failed,
    key_of,
    selected,
)
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_core.actions import ACTIONS, STEPS
from magnetar_core.errors import MagnetarError
from magnetar_core.power import CRASHED, OFF

#: What Nova calls that which an action could not begin since no host was found, below ``compute_task.``.
TASKS = {"create": "build_instances", **dict.fromkeys(("resize", "migrate", "os-migrateLive"), "migrate_server"),
         **dict.fromkeys(("rebuild", "evacuate"), "rebuild_server")}
#: Before these Nova tells that the server exists, since the period began.
EXISTS_BEFORE = {"rebuild", "resize_prep"}


class ActionNotifications:
    """Those of one *action*: its row, and its *args*. *service*: the conductor, which tells what no host does. Nothing
    is noted where nobody receives it."""

    def __init__(self, notifications: Notifications, action: Any, args: Mapping[str, Any], service: str) -> None:
        self.notifications, self.action, self.args = notifications, action, args
        self.service, self._own = service, ACTIONS[action.action].notification
        self._event = ACTIONS[action.action].event
        self._who, self._key = Initiator.of(action), key_of(action)
        self._started, self._before_end = False, 0
        self._waiting: list[tuple[ServerEvent, str]] = []  # each with the action's event in which it was noted

    def begin(self, event: str | None, host: str | None) -> None:
        """An event of the action begins at *host*: the one named, or the action's own."""
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
        """The action's own event has begun, and is told already."""
        self._started = True

    def event_ended(self, host: str | None) -> None:
        """The event has ended well."""
        for name in reversed(STEPS.get(self._event, ())):
            self._add(name, END, host)

    def followed_by(self, name: str, host: str | None) -> None:
        """The action's own notification ends, and another one starts in its place."""
        if self._started and self._own != name:
            self._add(self._own, END, host)
            self._own = name
            self._add(name, START, host)

    def ended(self, error: BaseException | None, host: str | None) -> None:
        """The action has ended, failed where there is an *error*."""
        self._before_end = len(self._waiting)
        if error is None:
            if self._started or self._event not in STEPS:
                self._add(self._own, END, host)
            return
        if isinstance(error, NoValidHost):
            for event in selected(self._who, self.args, self.service, f"{self._key}.none", found=False):
                self._keep(event)
        words = plain(error) if isinstance(error, MagnetarError) else type(error).__name__
        fault = ActionFault(type(error).__name__, type(error).__module__, words, self._event)
        if isinstance(error, NoValidHost) and (task := TASKS.get(self.action.action)):
            self._keep(self._made(task, ERROR, None, fault)._replace(object=TASK))
        for event in failed(self._made(self._own, "", host, fault)):
            self._keep(event)

    def not_ended(self) -> None:
        """Forget what ``ended`` has noted: the transaction that was to end the action was rolled back."""
        del self._waiting[self._before_end:]

    def selected(self, host: str) -> None:
        """The scheduler has chosen *host*, which is about to be noted."""
        for event in selected(self._who, self.args, self.service, f"{self._key}.{host}"):
            self._keep(event)

    def _add(self, name: str, phase: str, host: str | None) -> None:
        self._keep(self._made(name, phase, host))

    def _keep(self, event: ServerEvent) -> None:
        if self.notifications and event.name:
            self._waiting.append((event, self._event))

    def _made(self, name: str, phase: str, host: str | None, fault: ActionFault | None = None) -> ServerEvent:
        return ServerEvent(name, phase, self._who, self.args, fault, host, self.service, self._key)

    def write(self, connection: Connection, before: Any) -> None:
        """Write what is to be told at the end of a transaction of the action. *before*: the server's row as it was: a
        server that is deleted is told with the addresses and volumes that it had."""
        if not self._waiting or (row := servers.row(connection, self.action.server_id, lock=True)) is None:
            return
        found = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's name
        if row.deleted_at and before is not None and not before.deleted_at:
            found.update(interfaces=before.interfaces, volumes=before.volumes)
        again = self.action.attempts > 1  # a try before may have told that it starts
        told = [event for event, name in self._waiting if not (
            again and event.object == INSTANCE and event.phase in ("", START) and event.fault is None
            and instance_actions.times_begun(connection, self.action.id, name, event.host) > 1)]
        self.notifications.add_server(connection, found, *told)

    def written(self) -> None:
        """That transaction is committed."""
        self._waiting.clear()


def tell_power(notifications: Notifications, connection: Connection, server_id: str, before: str, word: str,
               host: str) -> None:
    """Tell that a guest has gone into the power state *word* by itself: what an action that wants this, of a server
    with the vm_state *before* where there is one, ends with."""
    if not notifications or (row := servers.row(connection, server_id, lock=True)) is None:
        return
    wanted = {"power": OFF if word == CRASHED else word}
    fitting = [action for action in ACTIONS.values() if action.want == wanted]
    if fitting:
        action = next((one for one in fitting if before in one.states), fitting[0])
        notifications.add_server(connection, row._mapping,  # noqa: SLF001 - SQLAlchemy's name
                                 ServerEvent(action.notification, END, host=host))
