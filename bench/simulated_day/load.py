# SPDX-License-Identifier: GPL-3.0-or-later
"""The load of a simulated day: creates, deletions, live migrations and reads.

Work is due at a fixed rate, even if earlier work has not ended, so a slow answer does not delay other work. Latency is
measured from the time when the work was due. While too much work of a kind is unfinished, further work of that kind is
skipped, and counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .connections import Connections, NoReply, Reply
from .record import DayRecord

#: Seconds between two requests for a server: the first pause, its factor, and the longest pause.
LOOK, SLOWER, LOOK_MOST = 0.025, 1.5, 2.0
#: Seconds after which waiting for a server ends.
PATIENCE = 900.0
#: The shares of reads: kind, and how many of a hundred.
READS = {"show": 55, "list": 25, "next page": 10, "all tenants": 5, "limits": 5}
PAGE = 50
#: Answers that a control plane must not give.
WRONG = frozenset((500, 502, 504))


@dataclass(frozen=True)
class LoadRates:
    """The number of operations of each kind that are due per second. *most*: the number of unfinished operations of a
    kind at which further ones are skipped.
    """

    creates: float
    migrations: float
    reads: float
    most: int


class _Refused(Exception):
    """A request was refused, or a server did not reach the expected state."""


class Load:
    """The load generator. *filled*: uuids of servers that it may migrate and show. *tokens*: tokens of the projects
    whose servers are listed; *admin*: the token for creations. *bodies*: requests for new servers.
    """

    def __init__(self, port: int, record: DayRecord, rates: LoadRates, filled: Sequence[str], tokens: Sequence[str],
                 admin: str, bodies: Callable[[], Mapping[str, Any]]) -> None:
        self.connections, self.record, self.rates = Connections(port), record, rates
        self.tokens, self.admin, self.bodies = tokens, admin, bodies
        self.over = asyncio.Event()
        self._filled, self._shown = list(filled), tuple(filled)
        #: Idle servers of the load, and the number of them at which deletions begin.
        self._idle: list[str] = []
        self._enough = max(3, round(rates.creates * 15))
        self._unfinished: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random(1)  # noqa: S311 - no secrets

    async def run(self) -> None:
        """Generate load until ``over`` is set, then wait for unfinished work."""
        async with asyncio.TaskGroup() as group:
            for rate, draw in ((self.rates.creates, lambda: ("create", self._create)),
                               (self.rates.creates, lambda: ("delete", self._delete)),
                               (self.rates.migrations, lambda: ("migrate", self._migrate)),
                               (self.rates.reads, self._draw_read)):
                if rate:
                    group.create_task(self._begin_at_rate(rate, draw))
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.connections.close()

    @property
    def unfinished(self) -> int:
        """Return the number of unfinished operations."""
        return sum(self._unfinished.values())

    async def _begin_at_rate(self, rate: float, draw: Callable[[], tuple[str, Callable[[], Awaitable[None]]]]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self.over.is_set():
            due += 1 / rate
            if (pause := due - loop.time()) > 0:
                await asyncio.sleep(pause)
            kind, work = draw()
            if kind == "delete" and len(self._idle) < self._enough:
                continue
            if self._unfinished[kind] >= self.rates.most:
                self.record.skipped[kind] += 1
                continue
            self._unfinished[kind] += 1
            self.record.begun[kind] += 1
            task = asyncio.create_task(self._do(kind, work, due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, kind: str, work: Callable[[], Awaitable[None]], due: float) -> None:
        try:
            await work()
            self.record.note_success(kind, asyncio.get_running_loop().time() - due)
        except NoReply as error:
            self.record.note_error(kind, str(error), problem=True)
        except _Refused as error:
            self.record.note_error(kind, str(error), problem=str(error).startswith(tuple(map(str, WRONG))))
        except Exception as error:  # noqa: BLE001 - an answer in a form that nobody expects
            self.record.note_error(kind, f"{type(error).__name__}: {error}", problem=True)
        finally:
            self._unfinished[kind] -= 1

    def _draw_read(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        kind = self._random.choices([*READS], [*READS.values()])[0]
        return kind, lambda: self._read(kind)

    # Work ------------------------------------------------------------------------------------------------------
    async def _ask(self, method: str, path: str, body: Any = None, token: str = "",
                   accepted: Sequence[int] = (200, 202, 204)) -> Reply:
        reply = await self.connections.ask(method, f"/v2.1{path}", token or self.admin, body)
        if reply.status not in accepted:
            raise _Refused(f"{reply.status} {reply.message}")
        return reply

    async def _look_until(self, id: str, done: Callable[[Mapping[str, Any] | None], bool]) -> Mapping[str, Any] | None:
        """Poll a server until the function *done* accepts it, and return it; ``None`` stands for a server that is gone.
        Failures during an upgrade are ignored.
        """
        loop, pause = asyncio.get_running_loop(), LOOK
        deadline = loop.time() + PATIENCE
        while loop.time() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * SLOWER, LOOK_MOST)
            try:
                reply = await self._ask("GET", f"/servers/{id}", accepted=(200, 404))
            except NoReply:
                if not self.record.upgrading:
                    raise
                continue
            except _Refused:  # busy for a moment
                continue
            server = reply.document["server"] if reply.status == 200 else None
            if done(server):
                return server
        raise _Refused(f"not finished after {PATIENCE:.0f} s")

    async def _create(self) -> None:
        reply = await self._ask("POST", "/servers", self.bodies())
        id = reply.document["server"]["id"]
        server = await self._look_until(id, lambda server: server is None or server["status"] != "BUILD")
        if server is None:
            raise _Refused("a new server is gone")
        self._idle.append(id)
        if server["status"] != "ACTIVE":
            raise _Refused(f"{server['status']}: {server.get('fault', {}).get('message', '')}")

    async def _delete(self) -> None:
        id = self._take(self._idle)
        while True:
            try:
                await self._ask("DELETE", f"/servers/{id}", accepted=(204, 404))
                break
            except NoReply:  # the request may be repeated
                if not self.record.upgrading:
                    raise
                await asyncio.sleep(LOOK_MOST)
        await self._look_until(id, lambda server: server is None)

    async def _migrate(self) -> None:
        """Migrate a random server, one that the load created or a filled one."""
        total = len(self._idle) + len(self._filled)
        if not total:
            raise _Refused("there is no server to migrate")
        pool = self._idle if self._random.random() * total < len(self._idle) else self._filled
        id = self._take(pool)
        try:
            await self._migrate_server(id)
        finally:
            pool.append(id)

    async def _migrate_server(self, id: str) -> None:
        before = (await self._ask("GET", f"/servers/{id}")).document["server"]
        if before["status"] != "ACTIVE":
            raise _Refused(f"a server to migrate is {before['status']}")
        await self._ask("POST", f"/servers/{id}/action", {"os-migrateLive": {"host": None, "block_migration": "auto"}})
        after = await self._look_until(id, lambda server: server is None or not server["OS-EXT-STS:task_state"])
        if after is None or after["status"] != "ACTIVE":
            raise _Refused(f"after a migration the server is {after['status'] if after else 'gone'}")
        if after["OS-EXT-SRV-ATTR:host"] == before["OS-EXT-SRV-ATTR:host"]:
            raise _Refused("the server stayed on its host")

    def _take(self, pool: list[str]) -> str:
        at = self._random.randrange(len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        return pool.pop()

    async def _read(self, kind: str) -> None:
        token = self._random.choice(self.tokens)
        if kind == "show":
            ids = self._idle if self._idle and self._random.random() < 0.2 else self._shown or self._idle
            if ids:
                await self._ask("GET", f"/servers/{self._random.choice(ids)}", accepted=(200, 404))
        elif kind == "limits":
            await self._ask("GET", "/limits", token=token)
        elif kind == "all tenants":
            await self._ask("GET", f"/servers/detail?all_tenants=1&limit={PAGE}")
        else:
            marker = ""
            if kind == "next page":
                page = await self._ask("GET", f"/servers?limit={PAGE}", token=token)
                rows = page.document["servers"]
                marker = f"&marker={rows[-1]['id']}" if rows else ""
            await self._ask("GET", f"/servers/detail?limit={PAGE}{marker}", token=token)
