# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor that dies at the n-th thing that it does to a database or an agent, and another that goes on."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import select, update

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.store.actions.action_row import ActionRow
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import actions
from magnetar_control.store.servers import servers
from magnetar_core.http.client import Client
from tests.support.control.cloud import Cloud

from .clouds import FLAVORS, row

REQUESTS = itertools.count(1)
NEVER = "9999-12-31T23:59:59.000000"
LONG = 1e9  # seconds


class Died(BaseException):
    """The conductor's process ends here."""


class Fate:
    """Counts what this thread does; death comes before the *number*-th, or (*late*) while the agent works on it."""

    def __init__(self, number: int, late: bool = False) -> None:
        self.number, self.late, self.count, self.died = number, late, 0, False
        self.thread = threading.current_thread()
        self.working: list[threading.Thread] = []

    def step(self) -> bool:
        """Something is to be done; whether death comes now."""
        if threading.current_thread() is not self.thread or self.died:
            return False
        self.count += 1
        self.died = self.count == self.number
        return self.died

    def counts(self, method: str) -> bool:
        """Whether a call of an agent is one of the things."""
        return not self.late or method != "GET"

    @contextlib.contextmanager
    def looms(self) -> Iterator[Fate]:
        """For as long as the block goes on."""
        write, call = Database.write, Client._call

        def dying_write(database: Database) -> Any:
            if not self.late and self.step():
                raise Died
            return write(database)

        def dying_call(client: Client, method: str, *given: Any, **named: Any) -> Any:
            if not self.counts(method):
                return call(client, method, *given, **named)
            if self.step():
                if self.late:
                    self._goes_on(client, call, method, *given, **named)
                raise Died
            return call(client, method, *given, **named)

        Database.write, Client._call = dying_write, dying_call  # type: ignore[method-assign]
        try:
            yield self
        finally:
            Database.write, Client._call = write, call  # type: ignore[method-assign]

    def _goes_on(self, client: Client, call: Any, *given: Any, **named: Any) -> None:
        """What was asked of the agent is done, though nobody hears of it. It has been sent when this returns: what
        others ask afterwards comes after it."""
        other = Client(client.endpoint, ca_cert=client._ca_cert, client_cert=client._client_cert,
                       client_key=client._client_key)

        connect, sent = other._connect, threading.Event()

        def connected() -> Any:
            connection = connect()
            answer = connection.getresponse
            connection.getresponse = lambda: (sent.set(), answer())[1]
            return connection

        def do() -> None:
            with contextlib.suppress(Exception), other:
                call(other, *given, **named)
            sent.set()

        other._connect = connected  # type: ignore[method-assign]
        self.working.append(threading.Thread(target=do, daemon=True))
        self.working[-1].start()
        assert sent.wait(120)


class Stall(Fate):
    """The conductor stands still before the *number*-th act, for longer than its lease: *meanwhile* happens.

    Not in the moment between its look at the lease and what it then asks of a host: nothing closes that one."""

    def __init__(self, number: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(number)
        self.meanwhile = meanwhile

    def step(self) -> bool:
        if super().step():
            self.meanwhile()
        return False

    def counts(self, method: str) -> bool:
        return method == "GET"


def ask(cloud: Cloud, id: str, key: str, columns: Mapping[str, Any] | None = None, **args: Any) -> int:
    """Put an action into the queue, where no conductor takes it; returns its number. *columns*: of the server."""
    database = cloud.parts.working.database
    with database.write() as connection:
        server = servers.fetch_server_row(connection, id)
        request = f"req-crash-{next(REQUESTS)}"
        assert servers.request_server_action(connection, server, key, request, server.user_id, server.project_id, args,
                                             **(columns or {})), server
        connection.execute(update(actions).where(actions.c.request_id == request).values(not_before=NEVER))
        return int(connection.execute(select(actions.c.id).where(actions.c.request_id == request)).scalar_one())


def take(cloud: Cloud, number: int, conductor: Any = None, attempts: int = 1) -> RunningAction:
    """The action in the hands of *conductor*; where it is put back, no other takes it."""
    conductor = conductor or cloud.parts.working
    with conductor.database.write() as connection:
        connection.execute(update(actions).where(actions.c.id == number).values(
            state="running", holder=conductor.holder, lease_until=NEVER, attempts=attempts))
        action = ActionRow(connection.execute(ActionRow.selection(actions).where(actions.c.id == number)).one())
    work = RunningAction(conductor, conductor.database, action)
    put_back = work.put_back
    work.put_back = lambda _seconds, **values: put_back(LONG, **values)  # type: ignore[method-assign]
    return work


def turn(cloud: Cloud, number: int, conductor: Any = None) -> bool:
    """Have this thread take the action and work on it; whether it has ended."""
    work = take(cloud, number, conductor)
    CELL[work.action.action](work)
    with work.database.read() as connection:
        return connection.execute(select(actions.c.state).where(actions.c.id == number)).scalar() in ("done", "failed")


def through(cloud: Cloud, id: str, key: str, fate: Fate, **args: Any) -> Any:
    """Do an action with a death in it, and go on until it has ended; returns the server's row."""
    number, ended = ask(cloud, id, key, **args), False
    for _at in range(20):
        with contextlib.suppress(Died), fate.looms():  # also when it was put back, for a turn on another host
            ended = turn(cloud, number)
        if ended:
            break
    for thread in fate.working:
        thread.join(20)
    return row(cloud, id)


def flavor(name: str) -> dict[str, Any]:
    """A flavor as the API gives it to an action."""
    vcpus, ram, disk, ephemeral, swap = FLAVORS[name]
    return {"id": name, "name": name, "vcpus": vcpus, "ram": ram, "disk": disk, "ephemeral": ephemeral, "swap": swap,
            "extra_specs": {}}
