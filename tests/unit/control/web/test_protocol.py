# SPDX-License-Identifier: GPL-3.0-or-later
"""What comes before the body of a request has an end, in size and time: whoever sends it has not logged in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from magnetar_control.web import Answer, Request, protocol
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import QUERY_LIMIT, AsgiServer
from tests.support.control.cloud import listening


class Lengths(Application):
    """Tells how much came."""

    def handle(self, request: Request) -> Answer:
        return Answer({"query": len(request.query_string), "content": len(request.content)})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "KEEP_ALIVE", 1)
    with listening(AsgiServer({"": Lengths()})) as found:
        yield found


def asked(port: int, *parts: bytes) -> bytes:
    """What is answered until the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        for part in parts:
            client.sendall(part)
        found = b""
        while piece := client.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nhost: a\r\nx-a: ", b"GET / HTTP/1.1\r\n"])
def test_a_head_that_does_not_end_is_refused(port: int, begin: bytes) -> None:
    more = b"x-a: a\r\n" * (protocol.HEAD // 8) if begin.endswith(b"\n") else b"a" * protocol.HEAD
    answer = asked(port, begin, more)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == protocol.MESSAGE


def test_bodies_and_further_requests_are_no_part_of_it(port: int) -> None:
    size = protocol.HEAD * 4
    post = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size + b"a" * size
    last = b"GET /?a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    answer = asked(port, post, post, last)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert answer.count(b'{"query":0,"content":%d}' % size) == 2 and answer.endswith(b'{"query":1,"content":0}')


@pytest.mark.parametrize("begin", [b"", b"GET", b"\r\n", b"GET /?a HTTP/1.1\r\nhost: a\r\n\r\n\r\n"])
def test_one_that_does_not_come_is_not_waited_for(port: int, begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 0.2)
    try:
        answer = asked(port, begin)
    except ConnectionResetError:
        answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 200 ")


@contextmanager
def answered_early() -> Iterator[socket.socket]:
    """Yield a client whose body of 6144 bytes has its answer, 403, before any of it came."""
    async def refuses(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with listening(refuses) as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 6144\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")
        yield client


def test_the_rest_of_a_body_that_was_answered_early_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 1.5)
    with answered_early() as client:
        for _part in range(6):
            time.sleep(0.4)
            client.sendall(b"a" * protocol.RATE)
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")
        client.sendall(b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")
        client.sendall(b"a")  # and no more comes
        assert not client.recv(65536)


def test_the_rest_of_a_body_comes_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 0.5)
    with answered_early() as client, pytest.raises(OSError):
        for _part in range(6000):
            time.sleep(0.05)
            client.sendall(b"a")


def test_a_query_has_an_end(port: int) -> None:
    def query(size: int) -> bytes:
        return asked(port, b"GET /?%s HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" % (b"a" * size))

    assert query(QUERY_LIMIT).startswith(b"HTTP/1.1 200 ")
    refused = query(QUERY_LIMIT + 1)
    assert refused.startswith(b"HTTP/1.1 400 ") and b"Ask for less at once" in refused


class Answers(Application):
    """Answers with as many bytes as the query says, or with the header that it names."""

    def handle(self, request: Request) -> Answer:
        if request.path == "/header":
            return Answer({}, headers={"X-Text": "a\r\nX-Other: b"})
        if request.path == "/none":
            return Answer(None, 204)
        headers = {"Connection": "close"} if request.path == "/last" else {}
        return Answer("a" * int(request.query_string or 0), headers=headers, media_type="text/plain")


@pytest.mark.parametrize(("line", "head", "size"), [
    (b"GET /?10", b"200 OK", 10), (b"HEAD /?10", b"200 OK", 0), (b"DELETE /none", b"204 No Content", 0),
    (b"GET /last?10", b"200 OK", 10), (b"GET /?131072", b"200 OK", 131072)])
def test_head_and_body_of_an_answer_are_one_write(line: bytes, head: bytes, size: int,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    made = protocol.AdmittedHttp.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        made(self, transport)
        self.transport = Noting(transport, writes)

    monkeypatch.setattr(protocol.AdmittedHttp, "connection_made", connection_made)
    with listening(AsgiServer({"": Answers()})) as port:
        answer = asked(port, line + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert writes == [answer]
    lines, _end, body = answer.partition(b"\r\n\r\n")
    assert lines.startswith(b"HTTP/1.1 " + head + b"\r\n") and len(body) == size
    assert lines.lower().count(b"\r\nconnection: close") == 1
    assert (b"content-length" in lines) == (b"204" not in head)


class Noting:
    """A transport that notes what is written to it."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_a_header_cannot_add_another_one() -> None:
    with listening(AsgiServer({"": Answers()})) as port:
        answer = asked(port, b"GET /header HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ") and b"x-other" not in answer.lower()
