# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection on which no request comes ends: whoever has it need not have said who it is."""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.api import routes, serve
from tests.support.agent.serving import served

ASK = b"GET /v1 HTTP/1.1\r\nhost: agent\r\n\r\n"


@pytest.fixture
def client(host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(serve, "PATIENCE", 1.0)
    where = tmp_path / "agent.sock"
    with served(host.agent, serve.unix_socket(where, "no-such-group")), socket.socket(socket.AF_UNIX) as found:
        found.settimeout(60)
        found.connect(str(where))
        yield found


def status(client: socket.socket, method: str = "GET") -> int:
    """That of an answer, which is read to its end."""
    with http.client.HTTPResponse(client, method=method) as answer:
        answer.begin()
        answer.read()
        return answer.status


def ended(client: socket.socket) -> bool:
    """Once what was answered before has been read."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("begin", [b"", ASK[:20]])
def test_one_that_does_not_come_is_not_waited_for(client: socket.socket, begin: bytes) -> None:
    client.sendall(begin)
    assert ended(client)


def test_nor_is_a_further_one(client: socket.socket) -> None:
    client.sendall(ASK)
    assert status(client) == 200
    client.sendall(ASK[:20])
    assert ended(client)


def test_who_asks_again_later_is_answered(client: socket.socket) -> None:
    for _time in range(2):
        client.sendall(ASK)
        assert status(client) == 200
        time.sleep(1.5)


def test_the_rest_of_a_body_that_was_answered_early_may_take_longer(
        client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    put = b"PUT /v1/nothing HTTP/1.1\r\nhost: agent\r\ncontent-length: 6144\r\n\r\n"
    client.sendall(put)
    assert status(client, "PUT") == 404
    monkeypatch.setattr(serve, "PATIENCE", 1.5)
    client.sendall(b"a" * serve.RATE)
    for _part in range(5):
        time.sleep(0.4)
        client.sendall(b"a" * serve.RATE)
    client.sendall(ASK)
    assert status(client) == 200
    client.sendall(put)
    assert status(client, "PUT") == 404
    client.sendall(b"a")  # and no more comes
    assert ended(client)


def test_a_body_that_does_not_come_ends(client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_SECONDS", 0.2)
    client.sendall(b"PUT /v1/flavor/f HTTP/1.1\r\nhost: agent\r\ncontent-length: 6\r\n\r\n{")
    assert status(client, "PUT") == 408


def test_who_goes_in_the_middle_of_a_body_is_no_failure_of_the_agent(
        client: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX) as going:
        going.connect(client.getpeername())
        going.sendall(b"PUT /v1/server/web1 HTTP/1.1\r\nhost: agent\r\ncontent-length: 6\r\n\r\n{")
    until = time.monotonic() + 60
    while True:
        client.sendall(ASK.replace(b"/v1", b"/metrics"))
        with http.client.HTTPResponse(client) as answer:
            answer.begin()
            lines = answer.read().decode().splitlines()
        counted = [line for line in lines if 'method="PUT"' in line and "status" in line]
        if counted or time.monotonic() > until:
            break
        time.sleep(0.05)
    assert counted and all('status="400"' in line for line in counted), counted
    assert "Traceback" not in caplog.text
