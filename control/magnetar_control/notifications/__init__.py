# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications: events of servers and other resources, sent to the operator's receivers in the form of Nova's
versioned notifications (docs/reference/notifications.md), and kept for ``/v1/events`` in a shorter form
(``stream_events``). Without a receiver and the stream nothing is built and nothing is queried.

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
from magnetar_control.store.actions import event_rows, outbox
from magnetar_control.store.hosts.incidents import IncidentRow
from magnetar_control.store.servers.server_row import ServerRow

from . import payloads, scheduling, stream_events
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
    """An event of a server, from which a notification is made.

    *name*: the middle part of the event type, such as create. *object*: the first part of the event type, ``instance``
    by default; other values are the keys of ``BINARIES``. *phase*: the last part of the event type: start, end, error,
    or "" for none. *args*: the arguments of the action. *host*: the host that acts. *conductor*: the conductor, which
    acts if *host* is ``None``. If both are ``None``, the API acts. *key*: the result of ``action_key``. Events of a
    server with the same type, key and host are repetitions of one event.
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
    """Return a text that identifies *action*, a row of ``actions``, for ``ServerEvent.key``."""
    return f"{action.request_id}.{action.id}"


def selection_events(who: Initiator, args: Mapping[str, Any], conductor: str, key: str, *, host_found: bool = True,
                     ) -> list[ServerEvent]:
    """Return the events of one scheduler run: its start and, with *host_found*, its end. *who*: the user and request
    that caused the run. *args*: the arguments of the action. *conductor*: the name of the conductor. *key*: the result
    of ``action_key``."""
    event = ServerEvent("select_destinations", START, who, args, conductor=conductor, key=key, object=SCHEDULER)
    return [event, event._replace(phase=END)] if host_found else [event]


def failure_events(event: ServerEvent) -> list[ServerEvent]:
    """Return *event*, which contains the fault of a failed action, as an event with the phase error. For the rollback
    of a live migration return two events instead, with the phases start and end."""
    return [event._replace(phase=phase) for phase in ((START, END) if event.name == ROLLBACK else (ERROR,))]


class Notifications:
    """The writer of Nova's versioned notifications for the receivers in *settings*, and of the events that
    ``/v1/events`` shows (setting ``event_stream``). Raises ``InvalidSettings``."""

    def __init__(self, settings: Settings) -> None:
        self.receivers, self.stream = receivers_of(settings), settings.event_stream
        self.volumes = settings.bdms_in_notifications
        self.service = settings.conductor_name or socket.gethostname()
        self.period = settings.instance_usage_audit_period

    def __bool__(self) -> bool:
        return bool(self.receivers) or self.stream

    def add_server(self, connection: Connection, row: ServerRow, *events: ServerEvent) -> None:
        """Write notifications of *events* of a server in the transaction of *connection* to its cell's database. *row*:
        the server's row at the time of the events."""
        if self.receivers and events:
            outbox.insert_notification_rows(connection, outbox.CELL, self.receivers, [
                made for event in events if (made := _made(event.event_type, partial(self._of_server, row, event)))])
        if self.stream:
            event_rows.insert_event_rows(connection, outbox.CELL, [
                made for event in events if event.object == INSTANCE and event.name != EXISTS and (
                    made := _made(event.event_type, partial(_server_event, row, event)))])

    def add(self, connection: Connection, payload: Callable[[], Mapping[str, Any]], *event_types: str) -> None:
        """Write one notification for each of *event_types* about a change in the API database, in the transaction of
        *connection*. *payload*: returns the payload, which is computed only if the settings name a receiver or enable
        ``event_stream``."""
        if self.receivers:
            outbox.insert_notification_rows(connection, outbox.API, self.receivers, [
                made for event_type in event_types if (made := _made(event_type,
                                                                     partial(self._of_noun, event_type, payload)))])
        if self.stream:
            event_rows.insert_event_rows(connection, outbox.API, [
                made for event_type in event_types if not event_type.endswith(f".{START}") and (
                    made := _made(event_type, partial(_resource_event, event_type, payload)))])

    def add_incident(self, connection: Connection, incident: IncidentRow, event_type: str, conductor: str,
                     cell: str) -> None:
        """Write the notification *event_type* about an incident (a host that died) in the transaction of *connection*
        to its cell's database. *conductor*: the name of the conductor that handles the incident. *cell*: the name of
        the cell."""
        if self.receivers:
            made = _made(event_type, lambda: notification_message(
                event_type, f"nova-conductor:{conductor}", payloads.incident_payload(incident, cell)))
            outbox.insert_notification_rows(connection, outbox.CELL, self.receivers, [made] if made else [])
        if self.stream:
            made = _made(event_type, partial(_resource_event, event_type, partial(
                payloads.incident_payload, incident, cell)))
            event_rows.insert_event_rows(connection, outbox.CELL, [made] if made else [])

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
        return notification_message(event.event_type, self._publisher(event), payload, _same_text(row, event))

    def _publisher(self, event: ServerEvent) -> str:
        if event.object in BINARIES:
            return f"{BINARIES[event.object]}:{event.conductor}"
        if event.host:
            return f"nova-compute:{event.host}"
        return f"nova-conductor:{event.conductor}" if event.conductor else f"nova-api:{self.service}"


def _same_text(row: ServerRow, event: ServerEvent) -> str | None:
    """Return a text that identifies the event, for ``message_id``; ``None`` if the event is never repeated."""
    return event.key and f"{row.id}.{event.key}.{event.event_type}.{event.host}"


def _server_event(row: ServerRow, event: ServerEvent) -> outbox.Message:
    """Return the event of a server as ``/v1/events`` shows it."""
    return stream_events.server_event(message_id(_same_text(row, event)), row, event.name, event.phase, event.who,
                                      event.fault, event.host or row.host)


def _resource_event(event_type: str, payload: Callable[[], Mapping[str, Any]]) -> outbox.Message:
    """Return the event of a resource other than a server, such as a flavor, as ``/v1/events`` shows it. *event_type*:
    the type of the event's notification. *payload*: returns the payload of this notification."""
    return stream_events.resource_event(message_id(), event_type, payload())


def _made(event_type: str, make: Callable[[], outbox.Message]) -> outbox.Message | None:
    """Return the result of *make*, which makes a notification of the type *event_type*. If *make* raises an error other
    than a database error, log the error and return ``None``. Then only the notification is lost, and the change that it
    reports does not fail."""
    try:
        return make()
    except DBAPIError:
        raise
    except Exception:
        log.exception("notification %s is lost: it cannot be made of what the database has", event_type)
        return None


def message_id(same: str | None = None) -> str:
    """Return the id of a notification. *same*: see ``notification_message``."""
    return str(uuid.uuid5(_NAMESPACE, same) if same else uuid.uuid4())


def notification_message(event_type: str, publisher_id: str, payload: Mapping[str, Any],
                         same: str | None = None) -> outbox.Message:
    """Return a notification with oslo.messaging's envelope (message_id, publisher_id, priority, timestamp …). *same*: a
    text that identifies the event; repetitions of the event then get the same message_id. By default the message_id is
    random."""
    id = message_id(same)
    return outbox.Message(id, event_type, orjson.dumps({
        "message_id": id, "publisher_id": publisher_id, "event_type": event_type,
        "priority": "ERROR" if event_type.endswith(f".{ERROR}") else "INFO", "payload": payload,
        "timestamp": datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")}).decode())
