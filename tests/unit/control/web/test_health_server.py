# SPDX-License-Identifier: GPL-3.0-or-later
"""The address of health and figures: who connects to it and says nothing takes no thread for long."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control.api import health
from magnetar_control.api.health import HealthServer


class Figures:
    """What ``Metrics`` gives."""

    def text(self) -> str:
        return "up 1\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(health, "HEALTH_CONNECTIONS", 2)
    monkeypatch.setattr(health, "HEALTH_PATIENCE", 1.0)
    figures: Any = Figures()
    with contextlib.closing(HealthServer("127.0.0.1:0", figures)) as server:
        yield server.port


def asked(port: int) -> int:
    """The status of an answer; 0 without one."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        try:
            client.request("GET", "/metrics")
            return client.getresponse().status
        except OSError:
            return 0


def test_who_says_nothing_is_ended(port: int) -> None:
    with contextlib.ExitStack() as ending:
        silent = [ending.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _time in range(2)]
        silent[0].sendall(b"GET /me")
        for client in silent:
            with contextlib.suppress(ConnectionResetError):
                assert not client.recv(1)
        assert any(asked(port) == 200 for _time in range(600))


def test_a_client_that_is_gone_when_its_time_is_over(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server cuts a connection that has ended: nothing is raised in the thread that does it."""
    raised: list[Any] = []
    gone = threading.Event()
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(Figures, "text", lambda _figures: str(gone.wait(60)))
    client = socket.create_connection(("127.0.0.1", port), 60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the end is a reset
    client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    timers = waiting_timers()
    client.close()
    for timer in timers:
        timer.join(60)
    gone.set()
    assert timers and not raised


def waiting_timers() -> list[threading.Timer]:
    """Wait until the server has begun to answer; return the timers that end its connections."""
    for _time in range(600):
        found = [thread for thread in threading.enumerate()
                 if isinstance(thread, threading.Timer) and thread.is_alive()]
        if found:
            return found
        threading.Event().wait(0.05)
    raise AssertionError("the server does not answer")
