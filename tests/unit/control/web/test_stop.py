# SPDX-License-Identifier: GPL-3.0-or-later
"""An API that stops behind a balancer serves until that is noticed; a request that is in progress at its end is
answered in the form of the other errors of its application."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import orjson
import pytest

from magnetar_control import serve
from magnetar_control.api.health import Healthz
from magnetar_control.api.nova import faults
from magnetar_control.health import CloudHealth, Health
from magnetar_control.settings import Settings
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.quick import RunIn


class Brisk(Application):
    """An application that answers at once."""

    def handle(self, _request: Request) -> Answer:
        return Answer({"late": False})


class Well(Health):
    """The health of a cloud whose database answers."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), lambda: 15.0)

    def read(self) -> CloudHealth:
        return CloudHealth(database=True)


class Slow(Application):
    """An application that answers when the test ends, in threads of the kind *where*."""

    def __init__(self, where: RunIn) -> None:
        self.where, self.begun, self.over = where, threading.Event(), threading.Event()

    def handle(self, _request: Request) -> Answer:
        self.begun.set()
        assert self.over.wait(120)
        return Answer({"late": True})

    def run_in(self, _request: Request) -> RunIn:
        return self.where


class SlowCompute(Slow):
    """The same with the errors of the Compute API."""

    def refused(self, _request: Request, fault: Fault) -> Answer:
        return faults.render_compute_fault(fault)


@contextlib.contextmanager
def running_api(server: AsgiServer, monkeypatch: pytest.MonkeyPatch,
                **settings: Any) -> Iterator[tuple[int, serve.ApiServer]]:
    """Yield the port of an API and its server; the test ends it."""
    servers: list[serve.ApiServer] = []

    class Noted(serve.ApiServer):
        async def main_loop(self) -> None:
            servers.append(self)
            await super().main_loop()

    monkeypatch.setattr(serve, "ApiServer", Noted)
    ready = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        port = listening.getsockname()[1]
        served = threads.submit(serve.serve_requests, Settings(**settings), server, [listening], ready.set)
        assert ready.wait(120)
        yield port, servers[0]
        served.result(120)


@contextlib.contextmanager
def stopping_api(application: Slow, monkeypatch: pytest.MonkeyPatch) -> Iterator[http.client.HTTPConnection]:
    """Yield a client; the API is told to stop as soon as *application* has its request."""
    monkeypatch.setattr(serve, "GRACE", 0)
    with running_api(AsgiServer({"": application}), monkeypatch) as (port, api):

        def stop() -> None:
            assert application.begun.wait(120)
            api.handle_exit(signal.SIGTERM, None)

        threading.Thread(target=stop, daemon=True).start()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as client:
            yield client
        application.over.set()


def asked(client: http.client.HTTPConnection, path: str = "/servers") -> tuple[int, str | None]:
    """Return status and header Connection of the answer to a request."""
    client.request("GET", path)
    answer = client.getresponse()
    answer.read()
    return answer.status, answer.headers["Connection"]


def test_an_api_serves_until_balancers_have_noticed_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    health = Well()
    server = AsgiServer({"": Brisk(), "/healthz": Healthz(health)}, on_stop=health.stop)
    with running_api(server, monkeypatch, api_stop_delay=30.0) as (port, api):
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        assert asked(kept) == (200, None) and asked(kept, "/healthz") == (200, None)
        api.handle_exit(signal.SIGTERM, None)
        assert asked(kept) == (200, "close")
        kept.close()
        for path, status in (("/healthz", 503), ("/servers", 200)):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as new:
                assert asked(new, path) == (status, "close")
        api.handle_exit(signal.SIGTERM, None)  # the second one ends it


def test_an_api_without_a_delay_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_api(AsgiServer({"": Brisk()}), monkeypatch) as (_port, api):
        api.handle_exit(signal.SIGTERM, None)


def test_an_interrupt_has_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_api(AsgiServer({"": Brisk()}), monkeypatch, api_stop_delay=30.0) as (_port, api):
        api.handle_exit(signal.SIGINT, None)


@pytest.mark.parametrize("where",
                         [RunIn.ONE_THREAD, RunIn.FEW_THREADS, RunIn.THREAD, RunIn.WAIT, RunIn.HEALTH, RunIn.LOGIN])
@pytest.mark.parametrize(("kind", "name"), [(Slow, "error"), (SlowCompute, "serviceUnavailable")])
def test_a_request_in_progress_gets_an_error_of_its_application(
        kind: type[Slow], name: str, where: RunIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with stopping_api(kind(where), monkeypatch) as client:
        client.request("GET", "/servers")
        answer = client.getresponse()
        assert answer.status == 503 and answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Connection"] == "close" and int(answer.headers["Retry-After"]) > 0
        document = orjson.loads(answer.read())
    assert document[name]["code"] == 503
    assert "is stopping" in document[name]["message"] and "Try again" in document[name]["message"]
