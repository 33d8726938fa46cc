# SPDX-License-Identifier: GPL-3.0-or-later
"""One action that a conductor has taken: its server, its host, its events, and how it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import orjson
from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE, plain
from magnetar_control.services import Context, Document
from magnetar_control.store.actions import actions
from magnetar_control.store.actions.action_secrets import forgotten
from magnetar_control.store.engine.database import Database, now
from magnetar_control.store.servers import servers
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Cancelled, Conflict, HypervisorDown, MagnetarError, NoSpace, NotFound, Unreachable
from magnetar_core.flows.migrate import Side
from magnetar_core.http.client import Client, Progress
from magnetar_core.power import ERROR, POWERS, number
from magnetar_core.server_plan import TEXT

from .action_notifications import ActionNotifications
from .environment import Environment

log = logging.getLogger(__name__)
#: Returns the seconds of a clock that runs also while the machine is suspended.
clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
#: What an agent that may do it later says, or is said of it.
DOWN = (Unreachable, HypervisorDown)
#: Roles with which a conductor calls services for a user: the API resolved all as its caller, who may be an admin.
ROLES = frozenset(("admin", "member", "reader"))


class WrongHost(Conflict):
    """This host cannot have the server; another host may."""


class HostDown(MagnetarError):
    """The host's agent does not answer, or libvirt there does not."""

    code = "unreachable"
    status = 503


class HostFull(HostDown):
    """The host answers, and has no room on its disk to do it now."""

    code = NoSpace.code
    status = NoSpace.status


@contextlib.contextmanager
def full_is_down() -> Iterator[None]:
    """Within, a host with a full disk is one that may do it later: for what has begun, and has no other way than on."""
    try:
        yield
    except NoSpace as full:
        raise HostFull(full.message) from full


class LeaseLost(Exception):
    """Another conductor has the action meanwhile."""


def leased(confirm: Callable[[], None], database: Database) -> Database:
    """The database, to which an action writes only while *confirm* (of its ``Work``) does not raise ``LeaseLost``."""
    @contextlib.contextmanager
    def confirmed(way: Callable[[], contextlib.AbstractContextManager[Connection]]) -> Iterator[Connection]:
        with way() as connection:
            confirm()
            yield connection

    return cast("Database", SimpleNamespace(kind=database.kind, read=database.read, retried=database.retried, **{
        name: partial(confirmed, getattr(database, name)) for name in ("write", "single")}))


def admin_message(error: BaseException) -> str:
    """The whole message of a failure, with what only administrators read."""
    if isinstance(error, MagnetarError):
        return f"{error.message} {error.details.get('explanation') or ''}".rstrip()
    return f"{type(error).__name__}: {error}".rstrip()


def _document(column: str) -> Any:
    """A property: the document in a column of the server."""
    return property(lambda work: orjson.loads(getattr(work.server, column)))


class Continuation(NamedTuple):
    """An action that this conductor holds, and a worker goes on with. *server*: its row, read when left out. *event*:
    number of its event that has begun."""

    database: Database
    action: Any
    server: Any = None
    event: int | None = None


class Work:
    """An action that was taken. ``server``: the server's row when the work began, read unless it is given. ``args``:
    those of the action. *event*: number of an event that has begun already."""

    flavor: Document = _document("flavor")  # the flavor that the server has
    request: Document = _document("request")  # the request that made the server
    shares: list[Document] = _document("shares")
    volumes: list[Document] = _document("volumes")  # those that the server has or will have, as ``nics``
    nics: list[Document] = _document("interfaces")

    def __init__(self, conductor: Environment, database: Database, action: Any, server: Any = None,
                 event: int | None = None) -> None:
        self.conductor, self.database, self.action = conductor, database, action
        self._event, self._began = event, clock()
        self.args: dict[str, Any] = orjson.loads(action.args)
        self.rule = ACTIONS[action.action]
        self.notifications = ActionNotifications(conductor.notifications, action, self.args, conductor.name)
        self.cancelled = threading.Event()
        self.server = server
        #: Called with the connection of the transaction that ends the action.
        self.end_writes: list[Callable[[Connection], object]] = []
        self.continuation: Continuation | None = None  # the action that the same worker does next
        #: A host and its resource of the server, as heard last while this action was in hand.
        self.heard: tuple[str, Mapping[str, Any]] | None = None
        self._left: Mapping[str, Any] = {}
        self._abroad: str | None = None  # the host that was asked last, of those that are not the server's
        #: Called with the connection of the next transaction.
        self._deferred: list[Callable[[Connection], None]] = []
        if action.attempts > 1:
            self._deferred.append(lambda connection: actions.cut_off(connection, action.id))
        self._deferred_columns: dict[str, Any] = {}
        if server is None:
            self.load()

    def load(self) -> None:
        """Read the server again."""
        with self.database.read() as connection:
            self.server = servers.row(connection, self.action.server_id)

    @property
    def id(self) -> str:
        """The server's uuid."""
        return str(self.action.server_id)

    @property
    def idempotency_key(self) -> str:
        """Idempotency key of this action for agents: an agent does what has the same key once."""
        return f"{self.action.request_id}.{self.action.id}"

    def context(self) -> Context:
        """The server's user, for calls of the services."""
        return Context(self.server.user_id, self.server.project_id, ROLES)

    @contextlib.contextmanager
    def client(self, host: str | None = None, patience: float | None = None) -> Iterator[Client]:
        """A client of the agent of *host* (the server's when left out). Raises ``HostDown`` when it does not answer,
        within *patience* seconds where given, and ``HostBusy``."""
        name = host or self.server.host
        try:
            with self.asking(name), self.conductor.client(name, patience) as client:
                yield client
        except DOWN as error:
            raise HostDown(f"The agent of host {name} does not answer: {error.message}") from None

    @contextlib.contextmanager
    def sides(self, here: str, there: str, names: str) -> Iterator[tuple[Side, Side]]:
        """The agents of two hosts, which may be one. Raises ``HostDown`` with their *names*, and ``HostBusy``."""
        client = self.conductor.client
        try:
            with contextlib.ExitStack() as lent:
                for host in (here, there):
                    lent.enter_context(self.asking(host))
                one = Side(lent.enter_context(client(here)))
                yield one, one if there == here else Side(lent.enter_context(client(there)))
        except DOWN as error:
            raise HostDown(f"The agent of {names} does not answer: {error.message}") from None

    @contextlib.contextmanager
    def asking(self, host: str | None) -> Iterator[None]:
        """Within, the action counts for *host*, which may keep it waiting. Raises ``HostBusy``, and ``LeaseLost``: what
        is asked of a host may have been done and undone by others since."""
        self.confirm_old_lease()
        if not host:  # the server has none, which who asks for a client is told
            yield
            return
        if host != self.action.host:
            self._abroad = host
        with self.conductor.shares.asking((self.database.name, self.action.id), host):
            yield

    def delete_on(self, host: str, noun: str = "server", key: str | None = None) -> None:
        """Delete the server, or what else *noun* and *key* name, from the host, if it is there."""
        with contextlib.suppress(NotFound), self.client(host, PATIENCE) as client:
            client.delete(noun, key or self.id)

    def progress(self, _operation: Any) -> None:
        """Called while a host works. Raises ``Cancelled`` when the action was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled("The server was deleted meanwhile.")

    def resting(self) -> contextlib.AbstractContextManager[None]:
        """Within, the action waits for something that is no work of the conductor's: others have its worker's place."""
        return self.conductor.resting((self.database.name, self.action.id))

    @contextlib.contextmanager
    def guest(self, client: Client) -> Iterator[Progress]:
        """Within, the host may wait for the guest to shut down. What this gives is called while the host works: others
        have the worker's place then, and a guest is waited for no longer when something else comes over the action, of
        which the host says ``Cancelled``."""
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
        """Raises ``Cancelled`` with *why* when the action was cancelled before it was taken, which it may have been
        before."""
        if self.action.cancel:
            raise Cancelled(why)

    def confirm_lease(self, connection: Connection | None = None) -> None:
        """Raise ``LeaseLost`` when another conductor has the action: this one stood still for longer than its lease.
        Call it in each transaction that notes progress (with its *connection* to the server's database), and before a
        host is asked for something that another action may have undone."""
        if connection is None:
            with self.database.read() as reading:
                self.confirm_lease(reading)
        elif not actions.holds(connection, self.action.id, self.conductor.holder):
            raise LeaseLost

    def confirm_old_lease(self) -> None:
        """As ``confirm_lease``, unless the work began so lately that the lease cannot have ended."""
        if clock() - self._began > actions.LEASE / 4:
            self.confirm_lease()

    @contextlib.contextmanager
    def write(self, values: dict[str, Any] | None = None) -> Iterator[Connection]:
        """One transaction of the server's database, with the deferred writes. A caller that sets columns itself gives
        them as *values*; deferred columns are added to these."""
        deferred, columns = self._deferred[:], dict(self._deferred_columns)
        with self.database.write() as connection:
            for write in deferred:
                write(connection)
            if values is not None:
                values.update({name: value for name, value in columns.items() if name not in values})
            elif columns:
                servers.progress(connection, self.id, self._own(connection, columns), **columns)
            yield connection
            self.notifications.write(connection, self.server)
        self.notifications.written()
        del self._deferred[:len(deferred)]
        self._deferred_columns.clear()

    def _own(self, connection: Connection, values: Mapping[str, Any]) -> tuple[str, ...]:
        """The task_states that *values* may replace: none where another action of its kind waits to come over it."""
        waits = "task_state" in values and self.rule.over and servers.comes_again(connection, self.id)
        return () if waits else self.rule.tasks

    def flush(self) -> None:
        """Do the deferred writes."""
        if self._deferred or self._deferred_columns:
            with self.write():
                pass

    def note(self, **values: Any) -> None:
        """Set columns of the server, and read it again."""
        with self.write(values) as connection:
            self._noted(connection, values)

    def _noted(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self.confirm_lease(connection)
        self.server = servers.progressed(connection, self.id, self._own(connection, values), **values)
        self.database.ring(connection, servers.SERVERS_BELL)

    def defer(self, **values: Any) -> None:
        """Set columns of the server in the next transaction."""
        self._deferred_columns.update(values)

    @contextlib.contextmanager
    def event(self, name: str | None = None, host: str | None = None,
              noted: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Record the block as an event of the action. *noted*: columns of the server that are set at its begin. An
        event that the action came with is not begun again. Its end is written with the next transaction: a crash in
        between leaves an open event, and the action is done again."""
        number, self._event = self._event, None
        if number is not None:
            self.notifications.begun()
        else:
            self.notifications.begin(name, host or self.server.host)
            values = dict(noted) if noted else None
            with self.write(values) as connection:
                number = actions.started(connection, self.action.id, name or self.rule.event or self.action.action,
                                         host or self.server.host)
                if values:
                    self._noted(connection, values)
                else:
                    self.confirm_lease(connection)  # else the event would stay open, for nobody would end it
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
            ended["finish_time"] = now()
            self._deferred.append(lambda connection: actions.finished(connection, number, **ended))

    def done(self, **values: Any) -> None:
        """The action has succeeded: no task_state, the vm_state of its row in ``ACTIONS``, and *values*, at once."""
        if self.rule.after:
            values.setdefault("vm_state", self.rule.after)
        self.notifications.ended(None, self.server and self.server.host)
        self._end("done", None, values)

    def failed(self, error: BaseException, **values: Any) -> None:
        """The action has failed: save the fault and *values*. Users read the message without hosts and addresses (of an
        unexpected failure its class, as in Nova), and no details of faults from 500 on."""
        code, message, details = 500, type(error).__name__, "".join(traceback.format_exception(error))[-4000:]
        if isinstance(error, MagnetarError):
            code, message = error.status, plain(error)
            if code < 500 or error.details.get("explanation"):
                details = admin_message(error)
        values["fault"] = servers.text({"code": code, "message": message[:255], "created": now(), "details": details})
        self.notifications.ended(error, self.server and self.server.host)
        self._end("failed", "Error", values)

    def matches(self, resource: Mapping[str, Any]) -> bool:
        """Whether the action has left the server in the power state of the host's *resource*, or deleted it."""
        word = str(resource.get("power_state"))
        return self.rule.task == servers.DELETING or word not in POWERS or self._left.get("power_state") == number(word)

    def _end(self, state: str, message: str | None, values: dict[str, Any]) -> None:
        if self.rule.task:
            values.setdefault("task_state", None)

        def once() -> None:
            with self.write(values) as connection:
                if not actions.ended(connection, self.action.id, self.conductor.holder, state, message,
                                     forgotten(self.action.args)):
                    raise LeaseLost
                if values and self.rule.task == servers.DELETING:
                    servers.change(connection, self.id, **values)
                elif values:
                    servers.progress(connection, self.id, self._own(connection, values), **values)
                for write in self.end_writes:
                    write(connection)
                self.database.ring(connection, servers.SERVERS_BELL)

        self.database.retried(once)
        self._left = values
        self.conductor.ended(self.action.action, state)

    def revise(self, column: str, change: Callable[[list[Document]], list[Document]],
               follows: Callable[[list[Document]], Mapping[str, Any]] | None = None) -> None:
        """Change one of the server's lists (``volumes``, ``interfaces``, ``shares``), and the columns that follow
        from it."""
        def once() -> None:
            with self.database.write() as connection:
                self.confirm_lease(connection)
                kept = servers.revise(connection, self.id, column, change)
                if follows:
                    servers.change(connection, self.id, **follows(kept))
                self.database.ring(connection, servers.SERVERS_BELL)

        self.database.retried(once)

    def put_back(self, seconds: float, **values: Any) -> None:
        """Put the action back into the queue, to be taken again after *seconds*, when another host that it has asked
        has room for it as well."""
        with self.write() as connection:
            actions.put_back(connection, self.action.id, self.conductor.holder, self.database.clock(seconds),
                             waits_for=self._abroad, **values)
            self.database.ring(connection, servers.ACTIONS_BELL)

    def error(self, cause: BaseException) -> None:
        """The action has failed, and the server is in error."""
        self.failed(cause, vm_state=ERROR)
