# SPDX-License-Identifier: GPL-3.0-or-later
"""Quick requests go through a few at a time, one that is stuck keeps nobody waiting for long, and those that ask the
same are answered together."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from magnetar_control.web import Answer, Request, quick


def test_a_few_at_a_time():
    inside, most = 0, 0

    async def one(turnstile):
        nonlocal inside, most
        async with turnstile.passed():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async def all_():
        turnstile = quick.Turnstile()
        for _again in range(3):  # all have left again, each once
            await asyncio.gather(*(one(turnstile) for _number in range(20)))

    asyncio.run(all_())
    assert most == quick.QUICK


def test_what_waits_for_a_database_that_is_away_lets_others_in(monkeypatch):
    monkeypatch.setattr(quick, "PATIENCE", 0.001)

    async def stuck(turnstile, over):
        async with turnstile.passed():
            await over.wait()

    async def all_():
        turnstile, over = quick.Turnstile(), asyncio.Event()
        held = [asyncio.create_task(stuck(turnstile, over)) for _number in range(quick.QUICK * 3)]
        async with asyncio.timeout(20):
            async with turnstile.passed():
                pass
        over.set()
        await asyncio.gather(*held)
        return turnstile._free._value

    assert asyncio.run(all_()) == quick.QUICK


class Looks:
    """An application that says how often it was asked; it may be held up."""

    def __init__(self):
        self.count, self.free, self.inside = 0, threading.Event(), threading.Event()
        self.free.set()

    def handle(self, request):
        self.count += 1
        seen = self.count
        self.inside.set()
        assert self.free.wait(120)
        request.context, request.extra["route"] = request.headers["x-auth-token"], "/servers"
        return Answer({"seen": seen}, 203, {"x-compute-request-id": request.id, "vary": "token"})


def of(token="mine", path="/v2.1/servers"):
    return Request("GET", path, "", {"x-auth-token": token})


@contextlib.contextmanager
def together():
    with ThreadPoolExecutor(8) as threads:
        yield quick.Together(threads)


WAYS = pytest.mark.parametrize("run_in", [quick.RunIn.EVENT_LOOP, quick.RunIn.ONE_THREAD, quick.RunIn.FEW_THREADS])


@WAYS
def test_who_asks_the_same_at_the_same_moment_is_answered_together(run_in):
    looks, requests = Looks(), [of() for _number in range(20)]

    async def all_():
        with together() as quickly:
            return await asyncio.gather(*(quickly.answer(run_in, looks.handle, one) for one in requests))

    answers = asyncio.run(all_())
    # To a thread the first goes at once, and the others together after it.
    assert looks.count == (1 if run_in is quick.RunIn.EVENT_LOOP else 2)
    for request, answer in zip(requests, answers, strict=True):
        seen = 1 if request is requests[0] else looks.count
        assert (answer.status, answer.body(), answer.media_type) == (203, b'{"seen":%d}' % seen, "application/json")
        assert answer.headers == {"x-compute-request-id": request.id, "vary": "token"}
        assert (request.context, request.extra) == ("mine", {"route": "/servers"})
    assert len({one.headers["x-compute-request-id"] for one in answers}) == 20


@WAYS
def test_who_asks_for_something_else_or_is_somebody_else_is_answered_alone(run_in):
    looks = Looks()
    requests = [of(), of("theirs"), of(path="/v2.1/flavors"),
                Request("GET", "/v2.1/servers", "limit=1", {"x-auth-token": "mine"}),
                Request("GET", "/v2.1/servers", "", {"x-auth-token": "mine", "accept": "text/plain"})]

    async def all_():
        with together() as quickly:
            return await asyncio.gather(*(quickly.answer(run_in, looks.handle, one) for one in requests))

    assert sorted(one.body() for one in asyncio.run(all_())) == [b'{"seen":%d}' % number for number in range(1, 6)]


def test_nobody_is_told_what_was_true_before_he_asked(monkeypatch):
    monkeypatch.setattr(quick, "PATIENCE", 0.001)
    looks = Looks()
    looks.free.clear()

    async def all_():
        with together() as quickly:
            first = asyncio.create_task(quickly.answer(quick.RunIn.FEW_THREADS, looks.handle, of()))
            await asyncio.to_thread(looks.inside.wait, 20)
            later = [asyncio.create_task(quickly.answer(quick.RunIn.FEW_THREADS, looks.handle, of()))
                     for _number in range(5)]
            await asyncio.sleep(0.05)  # they do not wait for the first for longer than their patience
            looks.free.set()
            return [(await one).body() for one in (first, *later)], quickly

    answers, quickly = asyncio.run(all_())
    assert answers == [b'{"seen":1}'] + [b'{"seen":2}'] * 5
    assert looks.count == 2
    assert not quickly._waits
    assert not quickly._begun


@WAYS
def test_nothing_waits_for_what_was_cancelled(run_in):
    looks = Looks()

    async def all_():
        with together() as quickly:
            first = asyncio.create_task(quickly.answer(run_in, looks.handle, of()))
            second = asyncio.create_task(quickly.answer(run_in, looks.handle, of()))
            await asyncio.sleep(0)
            first.cancel()
            done, waiting = await asyncio.wait((first, second), timeout=20)
            assert not waiting
            assert len(done) == 2
            return (await quickly.answer(run_in, looks.handle, of())).status

    assert asyncio.run(all_()) == 203
