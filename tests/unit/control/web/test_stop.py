# SPDX-License-Identifier: GPL-3.0-or-later
"""A request that is in progress when the API stops is answered in the form of the other errors of its application."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from magnetar_control import serve
from magnetar_control.api.nova import faults
from magnetar_control.settings import Settings
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.quick import Way


class Slow(Application):
    """An application that answers when the test ends, in threads of the kind *where*."""

    def __init__(self, where: Way) -> None:
        self.where, self.begun, self.over = where, threading.Event(), threading.Event()

    def handle(self, _request: Request) -> Answer:
        self.begun.set()
        assert self.over.wait(120)
        return Answer({"late": True})

    def way(self, _request: Request) -> Way:
        return self.where


class SlowCompute(Slow):
    """The same with the errors of the Compute API."""

    def refused(self, _request: Request, fault: Fault) -> Answer:
        return faults.render_compute_fault(fault)


@contextlib.contextmanager
def stopping_api(application: Slow, monkeypatch: pytest.MonkeyPatch) -> Iterator[http.client.HTTPConnection]:
    """Yield a client; the API is told to stop as soon as *application* has its request."""
    servers: list[serve.ApiServer] = []

    class Noted(serve.ApiServer):
        async def main_loop(self) -> None:
            servers.append(self)
            await super().main_loop()

    def stop() -> None:
        assert application.begun.wait(120)
        servers[0].handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(serve, "ApiServer", Noted)
    monkeypatch.setattr(serve, "GRACE", 0)
    ready = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(2) as threads:
        port = listening.getsockname()[1]
        served = threads.submit(serve.serve_requests, Settings(), AsgiServer({"": application}), [listening], ready.set)
        assert ready.wait(120)
        threads.submit(stop)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as client:
            yield client
        application.over.set()
        served.result()


@pytest.mark.parametrize("where", [Way.ALONE, Way.TURN, Way.THREAD, Way.WAIT, Way.HEALTH, Way.LOGIN])
@pytest.mark.parametrize(("kind", "name"), [(Slow, "error"), (SlowCompute, "serviceUnavailable")])
def test_a_request_in_progress_gets_an_error_of_its_application(
        kind: type[Slow], name: str, where: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    with stopping_api(kind(where), monkeypatch) as client:
        client.request("GET", "/servers")
        answer = client.getresponse()
        assert answer.status == 503 and answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Connection"] == "close" and int(answer.headers["Retry-After"]) > 0
        document = orjson.loads(answer.read())
    assert document[name]["code"] == 503
    assert "is stopping" in document[name]["message"] and "Try again" in document[name]["message"]
