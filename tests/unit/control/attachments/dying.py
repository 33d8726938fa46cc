# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor that dies: at each transaction and at each call of an agent, before and after."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, update

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import actions
from magnetar_control.store.servers import servers
from magnetar_core.http.client import Client
from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually


class Died(BaseException):
    """The process ends here."""


class Fuse:
    """Lets the thread of an action end at the step *at*; then ``again`` has another take the action."""

    def __init__(self, cloud: Cloud, patch: pytest.MonkeyPatch) -> None:
        self.cloud, self.at, self.count = cloud, 0, 0
        self.blown = threading.Event()
        write, call = Database.write, Client._call

        @contextlib.contextmanager
        def written(database: Database) -> Iterator[Any]:
            self._step()
            with write(database) as connection:
                yield connection
            self._step()

        def called(client: Client, *args: Any, **more: Any) -> Any:
            self._step()
            answer = call(client, *args, **more)
            self._step()
            return answer

        patch.setattr(Database, "write", written)
        patch.setattr(Client, "_call", called)

    def light(self, at: int) -> None:
        """Die at the step *at*, counted from 1."""
        self.blown.clear()
        self.count, self.at = 0, at

    def _step(self) -> None:
        if self.at and threading.current_thread().name.startswith("work"):
            self.count += 1
            if self.count == self.at:
                self.at = 0
                self.blown.set()
                raise Died

    def again(self) -> None:
        """What happens when the lease of a dead conductor has ended: the action is taken anew."""
        conductor = self.cloud.parts.working
        assert conductor
        eventually(lambda: not conductor.running_actions.actions)
        for _cell, database in self.cloud.parts.store.databases():
            with database.write() as connection:
                connection.execute(update(actions).where(actions.c.state == "running").values(
                    state="queued", holder=None, lease_until=None))
                database.notify(connection, servers.ACTIONS_CHANGED)

    def idle(self) -> bool:
        """Whether no action waits or is worked on."""
        for _cell, database in self.cloud.parts.store.databases():
            with database.read() as connection:
                if connection.execute(select(actions.c.id).where(
                        actions.c.state.in_(("queued", "running"))).limit(1)).first():
                    return False
        return True

    def survive(self) -> bool:
        """Let what was asked for come to its end, with a death in between; False when there was none."""
        eventually(lambda: self.blown.is_set() or self.idle())
        died = self.blown.is_set()
        if died:
            self.again()
            eventually(self.idle)
        self.at = 0
        return died
