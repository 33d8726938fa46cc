# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that take little but the processor: a few at a time, and those that ask the same together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from enum import Enum, auto
from typing import Any

from .answer import Answer
from .request import Request

#: Quick requests that are in threads at the same moment, and seconds after which one does not count any more.
QUICK, PATIENCE = 3, 0.02
Handle = Callable[[Request], Answer]
#: All that an answer depends on: where the path begins, the path, the query, and the headers, so the token too.
Alike = tuple[object, ...]
Asked = asyncio.Future[tuple[Request, Answer]]
Answered = asyncio.Future[Answer]


class Way(Enum):
    """Where a request is answered. ``HERE``: in the event loop, since to hand it to a thread would take longer.
    ``ALONE``: in a thread, one at a time, since it waits for nobody and only computes. ``TURN``: in a thread, a few at
    a time, since it takes little but the processor. ``THREAD``: in a thread. ``WAIT``, ``HEALTH``,
    ``LOGIN``: in threads of their own, for what waits for hosts, says whether the cloud is well, or computes long."""

    HERE = auto()
    ALONE = auto()
    TURN = auto()
    THREAD = auto()
    WAIT = auto()
    HEALTH = auto()
    LOGIN = auto()


class Turnstile:
    """Lets so many requests into threads at once. More of them answer none sooner, since one thread computes at a
    time, and make each longer, since all ask for their turn. One that takes longer than ``PATIENCE`` waits for
    something else (a database that is far or away), and the next may come in."""

    def __init__(self, most: int = QUICK) -> None:
        self._free = asyncio.Semaphore(most)

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Within, when it is its turn."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PATIENCE, self._free.release)
        try:
            yield
        finally:
            if loop.time() < timer.when():
                timer.cancel()
                self._free.release()


class Together:
    """Answers quick requests in the loop or in *threads*. Those that ask the same, with the same headers, while the
    first of them has not begun yet are answered as one: many forks that look after the same servers cost as much as a
    few. Nobody is told what was true before he asked."""

    def __init__(self, threads: Executor) -> None:
        self.threads = threads
        self.turnstiles = {Way.ALONE: Turnstile(1), Way.TURN: Turnstile()}
        #: What waits for its turn, and of each kind what has begun last.
        self._waits: dict[Alike, Asked] = {}
        self._begun: dict[Alike, Asked] = {}

    async def answer(self, way: Way, handle: Handle, request: Request) -> Answer:
        """The answer of *handle*, which never raises and gives no stream here."""
        alike = (request.base, request.path, request.query_string, *request.headers.items())
        first = self._waits.get(alike)
        if first is not None:
            return _again(request, *await first)
        first = self._waits[alike] = asyncio.get_running_loop().create_future()
        try:
            if way is Way.HERE:
                answer = await self._here(alike, handle, request)
            else:
                answer = await self._turn(self.turnstiles[way], alike, first, handle, request)
            answer.content = answer.body()  # made once
            first.set_result((request, answer))
        finally:
            if not first.done():  # the process ends
                self._waits.pop(alike, None)
                first.cancel()
        return answer

    async def _here(self, alike: Alike, handle: Handle, request: Request) -> Answer:
        await asyncio.sleep(0)  # for what has arrived at the same moment
        del self._waits[alike]
        return handle(request)

    async def _turn(self, turnstile: Turnstile, alike: Alike, first: Asked, handle: Handle, request: Request) -> Answer:
        if before := self._begun.get(alike):  # while it takes its time, more of the kind may come
            await asyncio.wait((before,), timeout=PATIENCE)
        async with turnstile.passed():
            del self._waits[alike]
            self._begun[alike] = first
            try:
                return await self._threaded(handle, request)
            finally:
                if self._begun.get(alike) is first:
                    del self._begun[alike]

    def _threaded(self, handle: Handle, request: Request) -> Answered:
        """What ``run_in_executor`` does, but that the way back is one call, not a chain of futures with locks."""
        loop = asyncio.get_running_loop()
        answered: Answered = loop.create_future()
        self.threads.submit(_work, loop, answered, handle, request)
        return answered


def _work(loop: asyncio.AbstractEventLoop, answered: Answered, handle: Handle, request: Request) -> None:
    told: tuple[Callable[[Any], None], object]
    try:
        told = answered.set_result, handle(request)
    except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
        told = answered.set_exception, error
    loop.call_soon_threadsafe(_tell, answered, *told)


def _tell(answered: Answered, how: Callable[[Any], None], what: object) -> None:
    if not answered.done():  # nor cancelled
        how(what)


def _again(request: Request, like: Request, answer: Answer) -> Answer:
    """The answer to *like* for *request*, which asks the same."""
    request.context, request.extra = like.context, like.extra
    headers = {name: request.id if value == like.id else value for name, value in answer.headers.items()}
    return Answer(answer.content, answer.status, headers, answer.media_type)
