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
    """Convert ``NoSpace`` from the block into ``HostFull``, so that the action is repeated as for a host that is down.
    Use this for work that has begun and cannot be undone."""
    try:
        yield
    except NoSpace as full:
        raise HostFull(full.message) from full


class LeaseLost(Exception):
    """The error that another conductor has taken the action of this work, because its lease had ended."""


def leased_database(confirm: Callable[[], None], database: Database) -> Database:
    """Return a view of *database* whose write transactions call *confirm* (of a ``Work``) first: they fail when it
    raises ``LeaseLost``."""
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
    """An action that this conductor holds already and a worker continues. *server*: its row; read if omitted. *event*:
    the number of its event that has begun."""

    database: Database
    action: ActionRow
    server: ServerRow | None = None
    event: int | None = None


class Work:
    """One action that this conductor has leased, and the state of its execution.

    ``server``: the server's row when the work began; read from the database unless it is passed. ``args``: the
    arguments of the action. *event*: the number of an event of the action that has begun already."""

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
        """The fields of the server's image that its row keeps."""
        return self.server.image

    @property
    def request(self) -> ServerRequest:
        """The request that made the server."""
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
        """The idempotency key of this action for agents: an agent runs requests with the same key once."""
        return f"{self.action.request_id}.{self.action.id}"

    def context(self) -> Context:
        """Return the context of the server's user, for calls to services."""
        return Context(self.server.user_id, self.server.project_id, ROLES)

    @contextlib.contextmanager
    def client(self, host: str | None = None, patience: float | None = None) -> Iterator[Client]:
        """Yield a client of the agent of *host* (by default the server's). Raises ``HostDown`` when the agent does not
        answer (within *patience* seconds, if given), and ``HostBusy``."""
        name = host or self.server.host
        try:
            with self.asking(name), self.conductor.client(name, patience) as client:
                yield client
        except DOWN as error:
            raise HostDown(f"The agent of host {name} does not answer: {error.message}") from None

    @contextlib.contextmanager
    def sides(self, first_host: str, second_host: str, names: str) -> Iterator[tuple[Side, Side]]:
        """Yield the agents of two hosts, which may be the same. *names*: a description of both hosts for error
        messages. Raises ``HostBusy``, and ``HostDown`` if an agent does not answer."""
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
        """Count the action for *host* while the ``with`` block runs; first wait while the host's maximum of actions is
        reached. Raises ``HostBusy``. Raises ``LeaseLost`` if another conductor has the action, since that one may
        repeat or undo requests to the host.
        """
        self.confirm_old_lease()
        if not host:  # the server has none; asking for a client reports that
            yield
            return
        if host != self.action.host:
            self._abroad = host
        with self.conductor.leased_actions.asking((self.database.name, self.action.id), host):
            yield

    def delete_on(self, host: str, noun: str = "server", key: str | None = None) -> None:
        """Delete the server from *host*, or the resource *key* of the type *noun* (such as volume); do nothing if the
        host does not have it."""
        with contextlib.suppress(NotFound), self.client(host, PATIENCE) as client:
            client.delete(noun, key or self.id)

    def progress(self, _operation: Any) -> None:
        """Raise ``Cancelled`` if the action was cancelled. Called while a host works."""
        if self.cancelled.is_set():
            raise Cancelled("The server was deleted meanwhile.")

    def resting(self) -> contextlib.AbstractContextManager[None]:
        """Let other actions use the worker while the ``with`` block runs, in which this action waits for something
        outside the conductor.
        """
        return self.conductor.places.resting((self.database.name, self.action.id))

    @contextlib.contextmanager
    def guest(self, client: Client) -> Iterator[Progress]:
        """Yield a progress callback for requests during which the host may wait for the guest to shut down.

        During that wait other actions can use the worker. When the action is overtaken by another, the wait for the
        guest ends, and the host reports ``Cancelled``."""
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
        """Raise ``Cancelled`` with *why* if the action was cancelled before it was taken, in this or an earlier
        attempt."""
        if self.action.cancel:
            raise Cancelled(why)

    def confirm_lease(self, connection: Connection | None = None) -> None:
        """Raise ``LeaseLost`` if another conductor has the action: this one was stopped for longer than its lease.

        Call it in each transaction that saves progress (with its *connection* to the server's database), and before
        asking a host for something that another action may have undone."""
        if connection is None:
            with self.database.read() as reading:
                self.confirm_lease(reading)
        elif not actions.holds_action_lease(connection, self.action.id, self.conductor.holder):
            raise LeaseLost

    def confirm_old_lease(self) -> None:
        """Raise ``LeaseLost`` if another conductor has the action. Check nothing if the work is too young for its lease
        to have ended."""
        if clock() - self._began > actions.LEASE / 4:
            self.confirm_lease()

    @contextlib.contextmanager
    def write(self, values: dict[str, Any] | None = None) -> Iterator[Connection]:
        """Yield the connection of one transaction of the server's database, which includes the deferred writes. A
        caller that sets columns itself passes them as *values*; the deferred columns are added to them."""
        deferred, columns = self._deferred[:], dict(self._deferred_columns)
        with self.database.write() as connection:
            for write in deferred:
                write(connection)
            if values is not None:
                values.update({name: value for name, value in columns.items() if name not in values})
            elif columns:
                servers.update_server_progress(connection, self.id, self._own(connection, columns), **columns)
            yield connection
            self.notifications.write(connection, self.server)
        self.notifications.written()
        del self._deferred[:len(deferred)]
        self._deferred_columns.clear()

    def _own(self, connection: Connection, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the task_states that a write of the columns *values* may replace: those of this action. Return none
        if *values* change the task_state although another action that overtakes this one is queued."""
        waits = "task_state" in values and self.rule.over and servers.overtaking_action_waits(connection, self.id)
        return () if waits else self.rule.tasks

    def flush(self) -> None:
        """Run the deferred writes now, in one transaction, if there are any."""
        if self._deferred or self._deferred_columns:
            with self.write():
                pass

    def note(self, **values: Any) -> None:
        """Set columns *values* of the server's row, and read the row again."""
        with self.write(values) as connection:
            self._noted(connection, values)

    def _noted(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self.confirm_lease(connection)
        self.server = cast("ServerRow", servers.update_progress_returning(
            connection, self.id, self._own(connection, values), **values))
        self.database.ring(connection, servers.SERVERS_BELL)

    def defer(self, **values: Any) -> None:
        """Set columns *values* of the server's row in the next transaction."""
        self._deferred_columns.update(values)

    @contextlib.contextmanager
    def event(self, name: str | None = None, host: str | None = None,
              noted: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Record the ``with`` block as an event of the instance action. *name*: by default the action's own event.
        *host*: where it happens. *noted*: columns of the server that are set when the event begins.

        If the action came with a begun event (``Continuation``), the block continues that event. The end of the event
        is written with the next transaction: after a crash in between, the event stays open and the action is
        repeated."""
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
        """End the action successfully, in one transaction: clear the server's task_state, and set its vm_state to the
        one in the action's row in ``ACTIONS``, and its columns *values*."""
        if self.rule.after:
            values.setdefault("vm_state", self.rule.after)
        self.notifications.ended(None, self.server.host if self.server else None)
        self._end("done", None, values)

    def failed(self, error: BaseException, **values: Any) -> None:
        """End the action as failed: save the fault and *values*. The fault's message for users names no hosts and
        addresses (for an unexpected failure only the class, as in Nova). Users see its details only if its code is
        below 500."""
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
        """Return whether *resource*, the server as its host reports it, has the power state in which the action left
        it. Also true if the action deletes the server, or *resource* has no known power state."""
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
                    servers.update_server_progress(connection, self.id, self._own(connection, values), **values)
                for write in self.end_writes:
                    write(connection)
                self.database.ring(connection, servers.SERVERS_BELL)

        self.database.retried(once)
        self._left = values
        self.conductor.ended(self.action.action, state)

    def revise(self, column: str, change: Callable[[list[Any]], list[Any]],
               follows: Callable[[list[Any]], Mapping[str, Any]] | None = None) -> None:
        """Change a list of the server (*column*: ``volumes``, ``interfaces`` or ``shares``) with the function *change*,
        and set the columns that *follows* returns for the new list."""
        def once() -> None:
            with self.database.write() as connection:
                self.confirm_lease(connection)
                revised = servers.update_list_column(connection, self.id, column, change)
                if follows:
                    servers.update_server_row(connection, self.id, **follows(revised))
                self.database.ring(connection, servers.SERVERS_BELL)

        self.database.retried(once)

    def put_back(self, seconds: float, **values: Any) -> None:
        """Put the action back into the queue, and set columns *values* of the action's row. It can be taken again after
        *seconds*, when the other host that it uses, if any, has room too."""
        with self.write() as connection:
            actions.requeue_action_row(connection, self.action.id, self.conductor.holder, self.database.clock(seconds),
                                       waits_for=self._abroad, **values)
            self.database.ring(connection, servers.ACTIONS_BELL)

    def error(self, cause: BaseException) -> None:
        """End the action as failed because of *cause*, with the server in error."""
        self.failed(cause, vm_state=ERROR)
