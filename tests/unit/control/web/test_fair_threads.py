# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has many logins, or whatever else computes long, keeps others waiting for one of them at most."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from magnetar_control.services import Context
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application, Routed, by_token, guarded_route
from magnetar_control.web.asgi import HEALTH_SHARE, HEALTH_WAITING, LOGIN_SHARE, LOGINS_WAITING, AsgiServer
from magnetar_control.web.fair_threads import FairThreads
from magnetar_control.web.quick import RunIn


def held(pool: FairThreads, *keys: str) -> tuple[threading.Event, list[str], list[asyncio.Task[None]]]:
    """Calls of *keys*, which end when the event is set; the order in which they did."""
    go, order = threading.Event(), list[str]()

    def call(key: str) -> Callable[[], None]:
        def wait() -> None:
            assert go.wait(60)
            order.append(key)
        return wait

    return go, order, [asyncio.ensure_future(pool.run(key, call(key))) for key in keys]


def test_those_that_wait_take_turns() -> None:
    async def run() -> list[str]:
        go, order, calls = held(FairThreads("test", 1, 1, 10), "a", "a", "a", "a", "b", "b", "c")
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*calls)
        return order

    assert asyncio.run(run()) == ["a", "a", "b", "c", "a", "b", "a"]


def test_nobody_takes_all_threads() -> None:
    async def run() -> None:
        threads = FairThreads("test", 3, 2, 10)
        go, order, calls = held(threads, *"aaaa")
        await asyncio.sleep(0)
        await threads.run("b", lambda: order.append("b"))
        assert order == ["b"]
        go.set()
        await asyncio.gather(*calls)
        assert order == [*"baaaa"] and not threads._running and not threads._waiting

    asyncio.run(run())


def test_so_many_may_wait() -> None:
    async def run() -> None:
        threads = FairThreads("test", 1, 1, 2)
        go, _order, calls = held(threads, *"aaa")
        await asyncio.sleep(0)
        with pytest.raises(Fault, match="2 requests of this kind from a wait") as refused:
            await threads.run("a", lambda: None)
        assert refused.value.status == 429 and refused.value.headers == {"Retry-After": "5"}
        calls[1].cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(calls[0], calls[2], threads.run("b", lambda: None))
        assert not threads._running and not threads._waiting

    asyncio.run(run())


class SlowHealth(Application):
    """Health that is told when the test says so, but to one address."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def run_in(self, request: Request) -> RunIn:
        return RunIn.HEALTH

    def handle(self, request: Request) -> Answer:
        assert request.address == "192.0.2.9" or self.go.wait(60)
        return Answer({})


def test_one_address_does_not_keep_health_from_others() -> None:
    async def run() -> None:
        health = SlowHealth()
        server = AsgiServer({"": health})
        many = [asyncio.ensure_future(asked(server, "GET", "/healthz", "192.0.2.1")) for _time in range(70)]
        assert await asked(server, "GET", "/healthz", "192.0.2.9") == 200
        health.go.set()
        statuses = await asyncio.gather(*many)
        assert statuses.count(429) == 70 - HEALTH_SHARE - HEALTH_WAITING

    asyncio.run(run())


async def asked(server: AsgiServer, method: str, path: str, address: str, token: str = "") -> int:
    """The status of an answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-length", b"2"), *([(b"x-auth-token", token.encode())] if token else [])]
    await server({"type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http",
                  "headers": headers, "client": (address, 1)}, receive, send)
    return int(sent[0]["status"])


class Logins:
    """A server whose logins wait until the test lets them go on."""

    def __init__(self) -> None:
        self.go, self.order = threading.Event(), list[str]()
        self.server = AsgiServer({"": Routed(
            [guarded_route("POST /login", self.login, who="anyone", run_in=RunIn.LOGIN),
             guarded_route("POST /secret", self.login,
                                                                                                  run_in=RunIn.LOGIN)],
            by_token(lambda token: Context(token, "project")), lambda fault: Answer({}, fault.status))})

    def login(self, request: Request) -> dict[str, str]:
        whose = request.context.user_id if request.context else request.address
        assert whose in ("honest", "192.0.2.9") or self.go.wait(60)
        self.order.append(whose)
        return {"whose": whose}


@pytest.mark.parametrize(("path", "address", "token"), [
    ("/login", "192.0.2.1", ""), ("/secret", "192.0.2.1", "mallory")])
@pytest.mark.parametrize(("honest", "mine"), [("/login", ""), ("/secret", "honest")])
def test_many_logins_keep_nobody_waiting(path: str, address: str, token: str, honest: str, mine: str) -> None:
    """Those of one address, or of one user."""
    async def run() -> None:
        logins = Logins()
        many = [asyncio.ensure_future(asked(logins.server, "POST", path, address, token)) for _time in range(
            LOGIN_SHARE + LOGINS_WAITING + 5)]
        await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)  # one is refused
        assert await asked(logins.server, "POST", honest, "192.0.2.9", mine) == 200
        assert len(logins.order) == 1
        logins.go.set()
        statuses = await asyncio.gather(*many)
        assert statuses.count(429) == 5 and statuses.count(200) == LOGIN_SHARE + LOGINS_WAITING

    asyncio.run(run())
