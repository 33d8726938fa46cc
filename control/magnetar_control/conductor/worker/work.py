# SPDX-License-Identifier: GPL-3.0-or-later
"""The execution of one action that a conductor has leased: its server, its host, its events, and its end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE, user_message
from magnetar_control.documents import (
    FlavorOfServer,
    ImageOfServer,
    ServerNic,
    ServerRequest,
    ShareOfServer,
    VolumeOfServer,
)
from magnetar_control.services import Context
from magnetar_control.store.actions import actions
from magnetar_control.store.actions.action_row import ActionRow
from magnetar_control.store.actions.actions import strip_password_argument
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Cancelled, Conflict, HypervisorDown, MagnetarError, NoSpace, NotFound, Unreachable
from magnetar_core.flows.migrate import Side
from magnetar_core.http.client import Client, Progress
from magnetar_core.power import ERROR, POWERS, power_number
from magnetar_core.server_plan import TEXT

from .action_notifications import ActionNotifications
from .conductor import Conductor

log = logging.getLogger(__name__)
#: Returns the seconds of a clock that also runs while the machine is suspended.
clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
#: Errors after which the same request may succeed later.
DOWN = (Unreachable, HypervisorDown)
#: Roles of a conductor's calls to services for a user: the API resolved everything as its caller, who may be an admin.
ROLES = frozenset(("admin", "member", "reader"))


class WrongHost(Conflict):
    """This host cannot have the server; another host may."""


class HostDown(MagnetarError):
    """The host's agent does not answer, or libvirt there does not."""

    code = "unreachable"
    status = 503


class HostFull(HostDown):
    """The host answers, but its disk is too full for the request now."""

    code = NoSpace.code
    status = NoSpace.status


@contextlib.contextmanager
def full_is_down() -> Iterator[None]:
    """Convert a ``NoSpace`` error of the ``with`` block into ``HostFull``, a subclass of ``HostDown``, so that the
    action is repeated. Use this for steps that cannot be undone."""
    try:
        yield
    except NoSpace as full:
        raise HostFull(full.message) from full


class LeaseLost(Exception):
    """The error that another conductor has leased this action, because the lease of this conductor had expired."""


def leased_database(confirm: Callable[[], None], database: Database) -> Database:
    """Return a wrapper of *database* whose write transactions first call *confirm*, such as
    ``RunningAction.confirm_lease``. If *confirm* raises ``LeaseLost``, the transaction fails."""
    @contextlib.contextmanager
    def confirmed(way: Callable[[], contextlib.AbstractContextManager[Connection]]) -> Iterator[Connection]:
        with way() as connection:
            confirm()
            yield connection

    return cast("Database", SimpleNamespace(kind=database.kind, read=database.read, retried=database.retried, **{
        name: partial(confirmed, getattr(database, name)) for name in ("write", "single")}))


def admin_message(error: BaseException) -> str:
    """Return the whole message of a failure, with the parts that only administrators may read."""
    if isinstance(error, MagnetarError):
        return f"{error.message} {error.details.get('explanation') or ''}".rstrip()
    return f"{type(error).__name__}: {error}".rstrip()


class Continuation(NamedTuple):
    """A leased action that a worker thread of this conductor runs next. *server*: the server's row; read from the
    database if ``None``. *event*: the number of an event of the action that has already begun."""

    database: Database
    action: ActionRow
    server: ServerRow | None = None
    event: int | None = None


class RunningAction:
    """An action, such as the resize of a server, while it runs. This conductor has leased the action: it has reserved
    the action in the queue for a limited time.

    ``server``: the server's row; read from the database unless it is passed. ``args``: the arguments of the action.
    *event*: the number of an event of the action that has already begun."""

    def __init__(self, conductor: Conductor, database: Database, action: ActionRow, server: ServerRow | None = None,
                 event: int | None = None) -> None:
        self.conductor, self.database, self.action = conductor, database, action
        self._event, self._began = event, clock()
        self.args = action.args
        self.rule = ACTIONS[action.action]
        self.notifications = ActionNotifications(conductor.notifications, action, self.args, conductor.name)
        self.cancelled = threading.Event()
        self.server: ServerRow = server or self.load()
        #: Called with the connection of the transaction that ends the action.
        self.end_writes: list[Callable[[Connection], object]] = []
        self.continuation: Continuation | None = None  # the action that the same worker does next
        #: A host and its last resource of the server, as reported during this action.
        self.last_report: tuple[str, Mapping[str, Any]] | None = None
        self._left: Mapping[str, Any] = {}
        self._abroad: str | None = None  # the host that was asked last, except the server's own
        #: Called with the connection of the next transaction.
        self._deferred: list[Callable[[Connection], None]] = []
        if action.attempts > 1:
            self._deferred.append(lambda connection: actions.interrupt_event_rows(connection, action.id))
        self._deferred_columns: dict[str, Any] = {}

    def load(self) -> ServerRow:
        """Read the server's row again and return it. The row exists: the conductor ends actions of missing servers
        before their work begins."""
        with self.database.read() as connection:
            self.server = cast("ServerRow", servers.fetch_server_row(connection, self.action.server_id))
        return self.server

    @property
    def id(self) -> str:
        """The server's uuid."""
        return str(self.action.server_id)

    @property
    def flavor(self) -> FlavorOfServer:
        """The server's present flavor."""
        return self.server.flavor

    @property
    def image(self) -> ImageOfServer:
        """The fields of the server's image that are stored in the server's row."""
        return self.server.image

    @property
    def request(self) -> ServerRequest:
        """The stored fields of the request that created the server."""
        return self.server.request

    @property
    def shares(self) -> Sequence[ShareOfServer]:
        """The shares of the server, including those that are being attached."""
        return self.server.shares

    @property
    def volumes(self) -> Sequence[VolumeOfServer]:
        """The volumes of the server, including those that are being attached."""
        return self.server.volumes

    @property
    def nics(self) -> Sequence[ServerNic]:
        """The NICs of the server, including those that are being attached."""
        return self.server.nics

    @property
    def idempotency_key(self) -> str:
        """The idempotency key of this action in requests to agents. An agent executes a request with the same key only
        once."""
        return f"{self.action.request_id}.{self.action.id}"

    def context(self) -> Context:
        """Return the context of the server's user, with which other services are called for the server."""
        return Context(self.server.user_id, self.server.project_id, ROLES)

    @contextlib.contextmanager
    def client(self, host: str | None = None, patience: float | None = None) -> Iterator[Client]:
        """Yield a client of the agent of *host* (default: the server's host). *patience*: the timeout in seconds.
        Raises ``HostDown`` if the agent does not answer in time, and ``HostBusy`` if too many actions use the host."""
        name = host or self.server.host
        try:
            with self.asking(name), self.conductor.client(name, patience) as client:
                yield client
        except DOWN as error:
            raise HostDown(f"The agent of host {name} does not answer: {error.message}") from None

    @contextlib.contextmanager
    def sides(self, first_host: str, second_host: str, names: str) -> Iterator[tuple[Side, Side]]:
        """Yield the agents of two hosts, which may be the same host. *names*: both hosts as a text, for error messages.
        Raises ``HostDown`` if an agent does not answer, and ``HostBusy`` if too many actions use a host."""
        client = self.conductor.client
        try:
            with contextlib.ExitStack() as lent:
                for host in (first_host, second_host):
                    lent.enter_context(self.asking(host))
                first_agent = Side(lent.enter_context(client(first_host)))
                yield first_agent, first_agent if second_host == first_host else Side(
                    lent.enter_context(client(second_host)))
        except DOWN as error:
            raise HostDown(f"The agent of {names} does not answer: {error.message}") from None

    @contextlib.contextmanager
    def asking(self, host: str | None) -> Iterator[None]:
        """Count the action for *host* while the ``with`` block runs. If this conductor already runs the maximum number
        of actions for the host, wait first; raise ``HostBusy`` if this takes too long. Raises ``LeaseLost`` if another
        conductor has leased the action, since that conductor may be repeating or undoing requests to the host."""
        self.confirm_old_lease()
        if not host:  # the server has none; asking for a client reports that
            yield
            return
        if host != self.action.host:
            self._abroad = host
        with self.conductor.leased_actions.asking((self.database.name, self.action.id), host):
            yield

    def delete_on(self, host: str, resource_type: str = "server", key: str | None = None) -> None:
        """Delete the server from *host*, or delete another resource of the agent of *host*. *resource_type*: the type
        of the resource, such as volume. *key*: the id of the resource; by default the server's uuid. Do nothing if the
        host does not have the resource."""
        with contextlib.suppress(NotFound), self.client(host, PATIENCE) as client:
            client.delete(resource_type, key or self.id)

    def progress(self, _operation: Any) -> None:
        """Raise ``Cancelled`` if the action was cancelled. Passed as a callback to requests that take long."""
        if self.cancelled.is_set():
            raise Cancelled("The server was deleted meanwhile.")

    def resting(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for waiting on something outside the conductor. While its ``with`` block runs, the
        action gives up its worker slot to other actions (see ``WorkerSlots.resting``)."""
        return self.conductor.slots.resting((self.database.name, self.action.id))

    @contextlib.contextmanager
    def guest(self, client: Client) -> Iterator[Progress]:
        """Yield a progress callback for requests during which the agent may wait for the guest to shut down.

        When this wait begins, the action gives up its worker slot to other actions until the ``with`` block ends. If
        the action is cancelled during the wait, the agent's operation is cancelled too, and the request to the agent
        raises ``Cancelled``.
        """
        with contextlib.ExitStack() as resting:
            waits = False

            def watch(operation: Mapping[str, Any]) -> None:
                nonlocal waits
                if (operation.get("progress") or {}).get("phase") != TEXT["stop"]:
                    return
                if not waits:
                    waits = True
                    resting.enter_context(self.resting())
                if self.cancelled.is_set():
                    with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
                        client.cancel(operation["id"])

            yield watch

    def begin(self, why: str = "Something else came over it before it was done.") -> None:
        """Raise ``Cancelled`` with the message *why* if the action was cancelled before this attempt began."""
        if self.action.cancel:
            raise Cancelled(why)

    def confirm_lease(self, connection: Connection | None = None) -> None:
        """Raise ``LeaseLost`` if another conductor has leased the action. Another conductor can do so if this conductor
        was paused for longer than its lease.

        Call this in each transaction that saves progress, with its *connection* to the server's database. Also call it
        before a request to a host, because the other conductor may be undoing earlier requests to this host.
        """
        if connection is None:
            with self.database.read() as reading:
                self.confirm_lease(reading)
        elif not actions.holds_action_lease(connection, self.action.id, self.conductor.holder):
            raise LeaseLost

    def confirm_old_lease(self) -> None:
        """Raise ``LeaseLost`` if another conductor has leased the action. Skip the query while the lease is so young
        that it cannot have expired."""
        if clock() - self._began > actions.LEASE / 4:
            self.confirm_lease()

    @contextlib.contextmanager
    def write(self, values: dict[str, Any] | None = None) -> Iterator[Connection]:
        """Begin a transaction in the server's database, run the deferred writes (such as columns passed to ``defer``)
        in this transaction, and yield the connection. *values*: the columns that the caller itself will write to the
        server's row. The deferred columns are added to this dict, so that the caller writes them too."""
        deferred, columns = self._deferred[:], dict(self._deferred_columns)
        with self.database.write() as connection:
            for write in deferred:
                write(connection)
            if values is not None:
                values.update({name: value for name, value in columns.items() if name not in values})
            elif columns:
                servers.update_server_progress(connection, self.id, self._replaceable_states(connection, columns),
                                               **columns)
            yield connection
            self.notifications.write(connection, self.server)
        self.notifications.written()
        del self._deferred[:len(deferred)]
        self._deferred_columns.clear()

    def _replaceable_states(self, connection: Connection, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the task_states that a write of *values* to the server's row may replace: normally the task_states of
        this action. Return an empty tuple if *values* contain the task_state, this action can interrupt others
        (``over`` in ``ACTIONS``), and another such action is queued. The present task_state may then belong to the
        queued action."""
        waits = "task_state" in values and self.rule.over and servers.overtaking_action_waits(connection, self.id)
        return () if waits else self.rule.tasks

    def flush(self) -> None:
        """If writes were deferred to the action's next transaction, such as columns passed to ``defer``, run them now
        in a transaction."""
        if self._deferred or self._deferred_columns:
            with self.write():
                pass

    def note(self, **values: Any) -> None:
        """Set the columns *values* of the server's row now, and reload the row."""
        with self.write(values) as connection:
            self._noted(connection, values)

    def _noted(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self.confirm_lease(connection)
        self.server = cast("ServerRow", servers.update_progress_returning(
            connection, self.id, self._replaceable_states(connection, values), **values))
        self.database.notify(connection, servers.SERVERS_CHANGED)

    def defer(self, **values: Any) -> None:
        """Set the columns *values* of the server's row in the action's next transaction."""
        self._deferred_columns.update(values)

    @contextlib.contextmanager
    def event(self, name: str | None = None, host: str | None = None,
              noted: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Record the ``with`` block as an event of the instance action. *name*: the name of the event; by default the
        event that ``ACTIONS`` names for the action. *host*: the host where the event happens; by default the server's
        host. *noted*: columns of the server's row to set when the event begins.

        If this ``RunningAction`` was created with the number of an event that has already begun, the first block
        continues that event. The action's next transaction writes the end of the event. After a crash before this
        transaction, the event has no end, and the action is repeated.
        """
        number, self._event = self._event, None
        if number is not None:
            self.notifications.begun()
        else:
            self.notifications.begin(name, host or self.server.host)
            values = dict(noted) if noted else None
            with self.write(values) as connection:
                number = actions.insert_event_row(connection, self.action.id,
                                                  name or self.rule.event or self.action.action,
                                                  host or self.server.host)
                if values:
                    self._noted(connection, values)
                else:
                    self.confirm_lease(connection)  # otherwise the event would stay open for ever
        ended: dict[str, Any] = {"result": "Success"}
        try:
            yield
        except LeaseLost:
            raise
        except Exception as error:
            ended = {"result": "Error", "details": admin_message(error),
                     "traceback": "".join(traceback.format_exception(error))[-8000:]}
            raise
        else:
            self.notifications.event_ended(host or self.server.host)
        finally:
            ended["finish_time"] = utc_now()
            self._deferred.append(lambda connection: actions.end_event_row(connection, number, **ended))

    def done(self, **values: Any) -> None:
        """End the action successfully. In one transaction, clear the server's task_state, set its vm_state as
        ``ACTIONS`` defines it for the action, and set the columns *values*."""
        if self.rule.after:
            values.setdefault("vm_state", self.rule.after)
        self.notifications.ended(None, self.server.host if self.server else None)
        self._end("done", None, values)

    def failed(self, error: BaseException, **values: Any) -> None:
        """End the action as failed, and save *error* as the server's fault. *values*: columns of the server's row to
        set. The fault's message, which users see, names no hosts and addresses; for an unexpected exception it is only
        the class name, as in Nova. Users see the fault's details only if its code is below 500."""
        code, message, details = 500, type(error).__name__, "".join(traceback.format_exception(error))[-4000:]
        if isinstance(error, MagnetarError):
            code, message = error.status, user_message(error)
            if code < 500 or error.details.get("explanation"):
                details = admin_message(error)
        values["fault"] = servers.json_text({"code": code, "message": message[:255], "created": utc_now(),
                                             "details": details})
        self.notifications.ended(error, self.server.host if self.server else None)
        self._end("failed", "Error", values)

    def matches(self, resource: Mapping[str, Any]) -> bool:
        """Return whether *resource*, the server as its agent reports it, has the power state in which the action left
        the server. Also return ``True`` if the action deletes the server, or if the reported power state is unknown."""
        power_state = str(resource.get("power_state"))
        return self.rule.task == servers.DELETING or power_state not in POWERS or self._left.get(
            "power_state") == power_number(power_state)

    def _end(self, state: str, message: str | None, values: dict[str, Any]) -> None:
        if self.rule.task:
            values.setdefault("task_state", None)

        def once() -> None:
            with self.write(values) as connection:
                if not actions.end_action_row(connection, self.action.id, self.conductor.holder, state, message,
                                              strip_password_argument(self.action.stored.args)):
                    raise LeaseLost
                if values and self.rule.task == servers.DELETING:
                    servers.update_server_row(connection, self.id, **values)
                elif values:
                    servers.update_server_progress(connection, self.id, self._replaceable_states(connection, values),
                                                   **values)
                for write in self.end_writes:
                    write(connection)
                self.database.notify(connection, servers.SERVERS_CHANGED)

        self.database.retried(once)
        self._left = values
        self.conductor.ended(self.action.action, state)

    def revise(self, column: str, change: Callable[[list[Any]], list[Any]],
               follows: Callable[[list[Any]], Mapping[str, Any]] | None = None) -> None:
        """Change a JSON list in the server's row. *column*: ``volumes``, ``interfaces`` or ``shares``. *change*: takes
        the old list and returns the new list. *follows*: takes the new list and returns further columns to set."""
        def once() -> None:
            with self.database.write() as connection:
                self.confirm_lease(connection)
                revised = servers.update_list_column(connection, self.id, column, change)
                if follows:
                    servers.update_server_row(connection, self.id, **follows(revised))
                self.database.notify(connection, servers.SERVERS_CHANGED)

        self.database.retried(once)

    def put_back(self, seconds: float, **values: Any) -> None:
        """Put the action back into the queue for another attempt after *seconds*. If the action has used another host
        than the server's, the new attempt also waits until the conductor's limit of actions allows another action for
        that host. *values*: columns to set in the action's row."""
        with self.write() as connection:
            actions.requeue_action_row(connection, self.action.id, self.conductor.holder, self.database.clock(seconds),
                                       waits_for=self._abroad, **values)
            self.database.notify(connection, servers.ACTIONS_CHANGED)

    def error(self, cause: BaseException) -> None:
        """End the action as failed with the error *cause*, and set the server's vm_state to error."""
        self.failed(cause, vm_state=ERROR)
