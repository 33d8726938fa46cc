# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications: events of servers and other resources, sent to the operator's receivers in the form of Nova's
versioned notifications (docs/reference/notifications.md). Without a receiver nothing is built and nothing is queried.

Notifications are written in the transaction of their event (``store.actions.outbox``); conductors send them.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from magnetar_control.settings import Settings
from magnetar_control.store.actions import outbox
from magnetar_control.store.hosts.incidents import IncidentRow
from magnetar_control.store.servers.server_row import ServerRow

from . import payloads, scheduling
from .audit_period import current_period
from .payloads import ActionFault, Initiator
from .receivers import receivers_of

__all__ = (
    "END",
    "ERROR",
    "EXISTS",
    "INSTANCE",
    "START",
    "TASK",
    "ActionFault",
    "Initiator",
    "Notifications",
    "ServerEvent",
    "action_key",
    "failure_events",
    "notification_message",
    "selection_events",
)
log = logging.getLogger(__name__)
START, END, ERROR = "start", "end", "error"
#: Objects of servers' notifications, and Nova's names of the binaries of the objects that no host publishes.
INSTANCE, SCHEDULER, TASK = "instance", "scheduler", "compute_task"
BINARIES = {SCHEDULER: "nova-scheduler", TASK: "nova-conductor"}
#: A server exists, in an audit period.
EXISTS = "exists"
#: The rollback of a failed live migration, which Nova notifies with start and end.
ROLLBACK = "live_migration_rollback"
#: The namespace of ids of repeatable notifications, from which receivers recognize duplicates.
_NAMESPACE = uuid.UUID("8f0c2b3e-6a0f-4a53-9d5c-6d61676e6574")


class ServerEvent(NamedTuple):
    """An event of a server.

    *name*: the part of the event type after the object, which is ``instance`` by default; other values of *object* are
    the keys of ``BINARIES``. *phase*: start, end, error, or "" for none. *args*: the arguments of the action. *host*:
    the host that acts; *conductor*: the conductor that acts when no host does. With neither, the API acts. *key*: the
    action's key (``action_key``). Two events with the same name, phase, key and host are one event that was repeated.
    """

    name: str
    phase: str = ""
    who: Initiator = Initiator()
    args: Mapping[str, Any] = {}
    fault: ActionFault | None = None
    host: str | None = None
    conductor: str | None = None
    key: str | None = None
    object: str = INSTANCE

    @property
    def event_type(self) -> str:
        """Return Nova's event type, such as ``instance.create.end``."""
        return ".".join(filter(None, (self.object, self.name, self.phase)))


def action_key(action: Any) -> str:
    """Return the text that identifies an action in its events (``ServerEvent.key``)."""
    return f"{action.request_id}.{action.id}"


def selection_events(who: Initiator, args: Mapping[str, Any], conductor: str, key: str, *, host_found: bool = True,
                     ) -> list[ServerEvent]:
    """Return the events of one run of the scheduler, for notifications: its start, and its end if it found a host
    (*host_found*). *args*: the arguments of the action; *conductor*: the name of the conductor; *key*: the action's
    key."""
    event = ServerEvent("select_destinations", START, who, args, conductor=conductor, key=key, object=SCHEDULER)
    return [event, event._replace(phase=END)] if host_found else [event]


def failure_events(event: ServerEvent) -> list[ServerEvent]:
    """Return the events of a failed action, for notifications: *event*, which has the fault, in the phase error; for
    the rollback of a live migration, in the phases start and end instead."""
    return [event._replace(phase=phase) for phase in ((START, END) if event.name == ROLLBACK else (ERROR,))]


class Notifications:
    """The notifications that *settings* configure. Raises ``InvalidSettings``."""

    def __init__(self, settings: Settings) -> None:
        self.receivers = receivers_of(settings)
        self.volumes = settings.bdms_in_notifications
        self.service = settings.conductor_name or socket.gethostname()
        self.period = settings.instance_usage_audit_period

    def __bool__(self) -> bool:
        return bool(self.receivers)

    def add_server(self, connection: Connection, row: ServerRow, *events: ServerEvent) -> None:
        """Write notifications of *events* of a server, in the transaction of *connection* to its cell's database.
        *row*: the server's row at the time of the events."""
        if self.receivers and events:
            outbox.insert_notification_rows(connection, outbox.CELL, self.receivers, [
                made for event in events if (made := _made(event.event_type, partial(self._of_server, row, event)))])

    def add(self, connection: Connection, payload: Callable[[], Mapping[str, Any]], *event_types: str) -> None:
        """Write notifications of a change in the API database, in the transaction of *connection*. *payload* is called
        only when there is a receiver."""
        if self.receivers:
            outbox.insert_notification_rows(connection, outbox.API, self.receivers, [
                made for event_type in event_types if (made := _made(event_type,
                                                                     partial(self._of_noun, event_type, payload)))])

    def add_incident(self, connection: Connection, incident: IncidentRow, event_type: str, conductor: str,
                     cell: str) -> None:
        """Write the notification *event_type* of an incident, in the transaction of *connection* to its cell's
        database. *conductor*, *cell*: the names of the conductor that works on it, and of its cell."""
        if self.receivers:
            made = _made(event_type, lambda: notification_message(
                event_type, f"nova-conductor:{conductor}", payloads.incident_payload(incident, cell)))
            outbox.insert_notification_rows(connection, outbox.CELL, self.receivers, [made] if made else [])

    def _of_noun(self, event_type: str, payload: Callable[[], Mapping[str, Any]]) -> outbox.Message:
        return notification_message(event_type, f"nova-api:{self.service}", payload())

    def _of_server(self, row: ServerRow, event: ServerEvent) -> outbox.Message:
        args = {"audit_period": current_period(self.period, datetime.now(UTC).replace(tzinfo=None)), **event.args}
        if event.object == SCHEDULER:
            payload = scheduling.request_spec_payload(row, args)
        elif event.object == TASK and event.fault:
            payload = scheduling.compute_task_payload(row, args, event.fault)
        else:
            payload = payloads.action_payload(event.name, row, event.who, args, event.fault, volumes=self.volumes)
        same = event.key and f"{row.id}.{event.key}.{event.event_type}.{event.host}"
        return notification_message(event.event_type, self._publisher(event), payload, same)

    def _publisher(self, event: ServerEvent) -> str:
        if event.object in BINARIES:
            return f"{BINARIES[event.object]}:{event.conductor}"
        if event.host:
            return f"nova-compute:{event.host}"
        return f"nova-conductor:{event.conductor}" if event.conductor else f"nova-api:{self.service}"


def _made(event_type: str, make: Callable[[], outbox.Message]) -> outbox.Message | None:
    """Return the result of *make*, a notification of the type *event_type*. If it cannot be made, log the error and
    return ``None``, so that the notified change does not fail."""
    try:
        return make()
    except DBAPIError:
        raise
    except Exception:
        log.exception("notification %s is lost: it cannot be made of what the database has", event_type)
        return None


def notification_message(event_type: str, publisher_id: str, payload: Mapping[str, Any],
                         same: str | None = None) -> outbox.Message:
    """Return a notification in the envelope of oslo.messaging. *same*: a text that is the same for each repetition of
    the event; the notification's id is made from it, and is random by default."""
    id = str(uuid.uuid5(_NAMESPACE, same) if same else uuid.uuid4())
    return outbox.Message(id, event_type, orjson.dumps({
        "message_id": id, "publisher_id": publisher_id, "event_type": event_type,
        "priority": "ERROR" if event_type.endswith(f".{ERROR}") else "INFO", "payload": payload,
        "timestamp": datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")}).decode())
