# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that need little except the processor: a few run in parallel, and identical ones share an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from enum import Enum, auto
from typing import Any

from .answer import Answer
from .request import Request

#: Limit of quick requests in threads at the same time, and seconds after which a request is no longer counted.
QUICK, PATIENCE = 3, 0.02
Handle = Callable[[Request], Answer]
#: Everything that an answer depends on: the start of the URL, the path, the query, and the headers with the token.
Alike = tuple[object, ...]
PendingAnswer = asyncio.Future[tuple[Request, Answer]]
Answered = asyncio.Future[Answer]


class RunIn(Enum):
    """Where the handler of a request runs.

    ``EVENT_LOOP``: in the event loop, because passing the request to a thread would take longer. ``ONE_THREAD``: in a
    thread, one request at a time, because it only computes. ``FEW_THREADS``: in a thread, a few requests at a time,
    because it mostly computes. ``THREAD``: in a thread. The others are separate thread pools: ``WAIT`` for requests
    that wait for hosts, ``HEALTH`` for reports of the cloud's health, ``LOGIN`` for logins and other long computations.
    """

    EVENT_LOOP = auto()
    ONE_THREAD = auto()
    FEW_THREADS = auto()
    THREAD = auto()
    WAIT = auto()
    HEALTH = auto()
    LOGIN = auto()


class Turnstile:
    """A limit of how many requests run in threads in parallel.

    More parallel requests would not end sooner, because only one thread computes at a time (Python's GIL). A request
    that takes longer than ``PATIENCE`` probably waits for a slow or unreachable database, so it no longer counts.
    """

    def __init__(self, most: int = QUICK) -> None:
        self._free = asyncio.Semaphore(most)

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Wait until a request may run. The request counts until the context ends, or for at most ``PATIENCE`` seconds.
        """
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
    """A runner of quick requests, in the event loop or in *threads*. Identical requests (same URL and headers) share
    one response, if they arrive before any of them begins to run. Many clients that poll the same servers therefore
    cost no more than a few clients. No client gets a response that was computed before its request arrived."""

    def __init__(self, threads: Executor) -> None:
        self.threads = threads
        self.turnstiles = {RunIn.ONE_THREAD: Turnstile(1), RunIn.FEW_THREADS: Turnstile()}
        #: The requests that wait for their turn, and of each kind the last one that has begun.
        self._waits: dict[Alike, PendingAnswer] = {}
        self._begun: dict[Alike, PendingAnswer] = {}

    async def answer(self, run_in: RunIn, handle: Handle, request: Request) -> Answer:
        """Return the response of *handle* to *request*, or to an identical request that has not begun yet. *run_in*:
        ``EVENT_LOOP``, ``ONE_THREAD`` or ``FEW_THREADS``. *handle* must not raise, and must not return a stream."""
        alike = (request.base, request.path, request.query_string, *request.headers.items())
        first = self._waits.get(alike)
        if first is not None:
            return _again(request, *await first)
        first = self._waits[alike] = asyncio.get_running_loop().create_future()
        try:
            if run_in is RunIn.EVENT_LOOP:
                answer = await self._here(alike, handle, request)
            else:
                answer = await self._run_limited(self.turnstiles[run_in], alike, first, handle, request)
            answer.content = answer.body()  # made once
            first.set_result((request, answer))
        finally:
            if not first.done():  # the process ends
                self._waits.pop(alike, None)
                first.cancel()
        return answer

    async def _here(self, alike: Alike, handle: Handle, request: Request) -> Answer:
        await asyncio.sleep(0)  # for requests that have arrived at the same moment
        del self._waits[alike]
        return handle(request)

    async def _run_limited(self, turnstile: Turnstile, alike: Alike, first: PendingAnswer, handle: Handle,
                           request: Request) -> Answer:
        if previous := self._begun.get(alike):  # while it runs, more of the kind may arrive
            await asyncio.wait((previous,), timeout=PATIENCE)
        async with turnstile.passed():
            del self._waits[alike]
            self._begun[alike] = first
            try:
                return await self._threaded(handle, request)
            finally:
                if self._begun.get(alike) is first:
                    del self._begun[alike]

    def _threaded(self, handle: Handle, request: Request) -> Answered:
        """Run *handle* in a thread, and return a future for its response. This is faster than ``run_in_executor``,
        because the result needs only one call into the event loop instead of a chain of futures with locks."""
        loop = asyncio.get_running_loop()
        answered: Answered = loop.create_future()
        self.threads.submit(_work, loop, answered, handle, request)
        return answered


def _work(loop: asyncio.AbstractEventLoop, answered: Answered, handle: Handle, request: Request) -> None:
    outcome: tuple[Callable[[Any], None], object]
    try:
        outcome = answered.set_result, handle(request)
    except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
        outcome = answered.set_exception, error
    loop.call_soon_threadsafe(_tell, answered, *outcome)


def _tell(answered: Answered, how: Callable[[Any], None], outcome: object) -> None:
    if not answered.done():  # nor cancelled
        how(outcome)


def _again(request: Request, like: Request, answer: Answer) -> Answer:
    """Return a copy of *answer*, the response to the identical request *like*, with the request id of *request*."""
    request.context, request.extra = like.context, like.extra
    headers = {name: request.id if value == like.id else value for name, value in answer.headers.items()}
    return Answer(answer.content, answer.status, headers, answer.media_type)
