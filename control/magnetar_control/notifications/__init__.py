# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications: what happens to servers and other things is told to receivers that the operator names, in the form of
Nova's versioned notifications (docs/notifications.md). Without a receiver nothing is made and nothing is asked.

They are written in the transaction of what they tell (``store.actions.outbox``); conductors send them.
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

from . import payloads, scheduling
from .audit_period import current_period
from .payloads import ActionFault, Initiator, Row
from .receivers import receivers_of

__all__ = ("END", "ERROR", "EXISTS", "INSTANCE", "START", "TASK", "ActionFault", "Initiator", "Notifications",
           "ServerEvent", "failed", "key_of", "message", "selected")
log = logging.getLogger(__name__)
START, END, ERROR = "start", "end", "error"
#: Objects of notifications of servers, and the binary of those that are not of a host, at Nova.
INSTANCE, SCHEDULER, TASK = "instance", "scheduler", "compute_task"
BINARIES = {SCHEDULER: "nova-scheduler", TASK: "nova-conductor"}
#: A server exists, in an audit period.
EXISTS = "exists"
#: A live migration that fails is rolled back, which Nova tells as something that starts and ends.
ROLLBACK = "live_migration_rollback"
#: What an id is made of where what is told may happen twice, so that receivers know a double.
_NAMESPACE = uuid.UUID("8f0c2b3e-6a0f-4a53-9d5c-6d61676e6574")


class ServerEvent(NamedTuple):
    """Something that happens to a server. *name*: below ``instance.``, or below another *object* of ``BINARIES``;
    *phase*: start, end, error, or none. *args*: of the action. *host*: which does it; *conductor*: that does what no
    host does. The API does what neither does. *key*: of the action; what is told with the same key and host is the
    same."""

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
        """Nova's name."""
        return ".".join(filter(None, (self.object, self.name, self.phase)))


def key_of(action: Any) -> str:
    """The key of an action, of what is told of it."""
    return f"{action.request_id}.{action.id}"


def selected(who: Initiator, args: Mapping[str, Any], conductor: str, key: str, *, found: bool = True,
             ) -> list[ServerEvent]:
    """What the scheduler tells of a choice, whether it has *found* a host or not."""
    event = ServerEvent("select_destinations", START, who, args, conductor=conductor, key=key, object=SCHEDULER)
    return [event, event._replace(phase=END)] if found else [event]


def failed(event: ServerEvent) -> list[ServerEvent]:
    """What is told of an action that has failed, as the *fault* of *event* says."""
    return [event._replace(phase=phase) for phase in ((START, END) if event.name == ROLLBACK else (ERROR,))]


class Notifications:
    """What *settings* say of them. Raises ``InvalidSettings``."""

    def __init__(self, settings: Settings) -> None:
        self.receivers = receivers_of(settings)
        self.volumes = settings.bdms_in_notifications
        self.service = settings.conductor_name or socket.gethostname()
        self.period = settings.instance_usage_audit_period

    def __bool__(self) -> bool:
        return bool(self.receivers)

    def add_server(self, connection: Connection, row: Row, *events: ServerEvent) -> None:
        """Tell what happens to a server whose *row* is as it is then, in the transaction of *connection* to its cell's
        database."""
        if self.receivers and events:
            outbox.add(connection, outbox.CELL, self.receivers, [
                made for event in events if (made := _made(event.event_type, partial(self._of_server, row, event)))])

    def add(self, connection: Connection, payload: Callable[[], Mapping[str, Any]], *event_types: str) -> None:
        """Tell what the API does to something in the API database, in the transaction of *connection*. *payload* is
        called only where somebody is told."""
        if self.receivers:
            outbox.add(connection, outbox.API, self.receivers, [
                made for one in event_types if (made := _made(one, partial(self._of_noun, one, payload)))])

    def _of_noun(self, event_type: str, payload: Callable[[], Mapping[str, Any]]) -> outbox.Message:
        return message(event_type, f"nova-api:{self.service}", payload())

    def _of_server(self, row: Row, event: ServerEvent) -> outbox.Message:
        args = {"audit_period": current_period(self.period, datetime.now(UTC).replace(tzinfo=None)), **event.args}
        if event.object == SCHEDULER:
            payload = scheduling.request_spec(row, args)
        elif event.object == TASK and event.fault:
            payload = scheduling.compute_task(row, args, event.fault)
        else:
            payload = payloads.of_action(event.name, row, event.who, args, event.fault, volumes=self.volumes)
        same = event.key and f"{row['id']}.{event.key}.{event.event_type}.{event.host}"
        return message(event.event_type, self._publisher(event), payload, same)

    def _publisher(self, event: ServerEvent) -> str:
        if event.object in BINARIES:
            return f"{BINARIES[event.object]}:{event.conductor}"
        if event.host:
            return f"nova-compute:{event.host}"
        return f"nova-conductor:{event.conductor}" if event.conductor else f"nova-api:{self.service}"


def _made(event_type: str, make: Callable[[], outbox.Message]) -> outbox.Message | None:
    """What *make* returns; ``None``, and a line in the log, where it fails: what is to be told goes on all the same."""
    try:
        return make()
    except DBAPIError:
        raise
    except Exception:
        log.exception("notification %s is lost: it cannot be made of what the database has", event_type)
        return None


def message(event_type: str, publisher_id: str, payload: Mapping[str, Any], same: str | None = None) -> outbox.Message:
    """A notification in the envelope of oslo.messaging. *same*: what makes it the same one when it is told again."""
    id = str(uuid.uuid5(_NAMESPACE, same) if same else uuid.uuid4())
    return outbox.Message(id, event_type, orjson.dumps({
        "message_id": id, "publisher_id": publisher_id, "event_type": event_type,
        "priority": "ERROR" if event_type.endswith(f".{ERROR}") else "INFO", "payload": payload,
        "timestamp": datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")}).decode())
