# SPDX-License-Identifier: GPL-3.0-or-later
"""One address has so many connections to the API, and others are answered whatever it does."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from magnetar_control.services import Context
from magnetar_control.web import Answer, Request, protocol
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.websocket import ClientGone, WebSocket
from magnetar_core.http import connections
from magnetar_core.http.connections import MOST_REFUSALS, Connections
from tests.support.agent.pki import Pki
from tests.support.control.cloud import listening

MOST = 3
GET = b"GET /healthz HTTP/1.1\r\nhost: a\r\n%s\r\n"
KNOWN = b"x-auth-token: a\r\n"
Connect = Callable[..., socket.socket]


class Echo(Application):
    """Tells what came, over HTTP and WebSockets."""

    def handle(self, request: Request) -> Answer:
        if "x-auth-token" in request.headers:
            request.context = Context("user", "project")
        return Answer({"content": len(request.content)})

    async def websocket(self, socket: WebSocket) -> None:
        await socket.accept()
        with contextlib.suppress(ClientGone):
            while True:
                found = await socket.receive()
                await socket.send(found if isinstance(found, bytes) else found.encode())


def both_sides(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server, and of its clients."""
    pki = Pki(folder / "pki")
    served, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context(cafile=pki.ca)
    served.load_cert_chain(*pki.issue("localhost"))
    return served, ours


@pytest.fixture(params=["http", "https"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """``client(address, tls)``: a connection from an address of loopback; not *tls*: it does not shake hands."""
    served = ours = None
    if request.param == "https":
        served, ours = both_sides(tmp_path)
    with listening(AsgiServer({"": Echo()}), Connections(MOST), served) as port, contextlib.ExitStack() as ending:
        def connected(address: str = "127.0.0.1", tls: bool = True) -> socket.socket:
            found = socket.create_connection(("127.0.0.1", port), 60, (address, 0))
            if ours and tls:
                found = ours.wrap_socket(found, server_hostname="localhost")
            return ending.enter_context(found)

        yield connected


def asked(client: socket.socket, more: bytes = b"") -> bytes:
    """The answer to a request."""
    client.sendall(GET % more)
    return answer(client)


def answer(client: socket.socket) -> bytes:
    """All of it."""
    found = b""
    while not (match := re.search(rb"content-length: (\d+)(?s:.*?)\r\n\r\n", found)) or (
            len(found) < match.end() + int(match[1])):
        piece = client.recv(65536)
        assert piece, found
        found += piece
    return found


def known(client: socket.socket) -> socket.socket:
    """A connection whose client has said who it is."""
    assert asked(client, KNOWN).startswith(b"HTTP/1.1 200 ")
    return client


def until_answered(client: Connect) -> bytes:
    """An answer to a new connection, when the end of those before it has been noticed."""
    for _time in range(600):
        found = b""
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError), client() as one:
            found = asked(one, b"connection: close\r\n")
        if found.startswith(b"HTTP/1.1 200 "):
            break
        time.sleep(0.1)
    return found


def test_one_address_has_so_many_and_is_told(client: Connect) -> None:
    kept = [known(client()) for _time in range(MOST)]
    refused = asked(client())
    assert refused.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: 10\r\n" in refused
    error = orjson.loads(refused.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "too-many-requests" and "127.0.0.1 has 3 connections" in error["message"]
    assert asked(client("127.0.0.2")).startswith(b"HTTP/1.1 200 ")
    assert all(asked(one).startswith(b"HTTP/1.1 200 ") for one in kept for _time in range(2))
    kept.pop().close()
    assert until_answered(client).startswith(b"HTTP/1.1 200 ")


def test_who_says_nothing_takes_nothing_from_others(client: Connect) -> None:
    """Nor without a handshake; and those beyond an address's places are not kept."""
    kept = [known(client()) for _time in range(MOST)]
    silent = [client(tls=False) for _time in range(MOST_REFUSALS)]
    further = client(tls=False)
    with contextlib.suppress(ConnectionResetError):
        assert not further.recv(1)
    assert asked(client("127.0.0.2")).startswith(b"HTTP/1.1 200 ")
    for one in (*silent, *kept):
        one.close()
    assert until_answered(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("tls", [True, False])
def test_who_says_nothing_keeps_nobody_of_its_address_out(client: Connect, tls: bool) -> None:
    """With a handshake or without, with an anonymous request or none; who has said who it is stays."""
    kept = known(client())
    unknown = [client(tls=tls) for _time in range(MOST + MOST_REFUSALS)]
    if tls:
        assert asked(unknown[-1]).startswith(b"HTTP/1.1 200 ")
    assert asked(client()).startswith(b"HTTP/1.1 200 ")
    assert asked(kept).startswith(b"HTTP/1.1 200 ")
    with contextlib.suppress(ConnectionResetError):
        assert not unknown[0].recv(1)  # the oldest went first


def test_who_is_refused_has_to_ask_soon(client: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    _kept, refused = [known(client()) for _time in range(MOST)], client()
    with contextlib.suppress(ConnectionResetError):
        assert not refused.recv(1)


def test_no_handshake_is_no_connection(client: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes in place of it."""
    monkeypatch.setattr(connections, "HANDSHAKE", 0.2)
    monkeypatch.setattr(protocol, "PATIENCE", 0.2)
    for said in (b"", b"GET / HTTP/1.0\r\n", b"\x16\x03\x01\x00\x05hello", b"\x80" * 5000) * MOST:
        client(tls=False).sendall(said)
    assert until_answered(client).startswith(b"HTTP/1.1 200 ")


def test_a_request_that_comes_at_once_and_a_long_one(client: Connect) -> None:
    one = client()
    size = 1 << 19
    one.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size + b"a" * size)
    assert answer(one).endswith(b'{"content":%d}' % size)


def console(one: socket.socket) -> socket.socket:
    """A WebSocket, by one thread: websockets' client reads and writes in two, for which OpenSSL is not made."""
    one.sendall(b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
    assert one.recv(65536).startswith(b"HTTP/1.1 101 ")
    return one


def test_a_console_keeps_its_place_to_its_end(client: Connect) -> None:
    first = console(client())
    with console(client()), console(client()):
        first.sendall(b"\x82\x81" + bytes(4) + b"a")  # RFC 6455, 5.2: bytes, masked with zeros
        assert first.recv(65536) == b"\x82\x01a"
        assert asked(client()).startswith(b"HTTP/1.1 429 ")
    assert until_answered(client).startswith(b"HTTP/1.1 200 ")
    first.sendall(b"\x82\x81" + bytes(4) + b"a")
    assert first.recv(65536) == b"\x82\x01a"


def test_a_server_ends_while_a_console_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its client has said so, and agrees to the end of TLS later."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    served, ours = both_sides(tmp_path)
    with contextlib.ExitStack() as ending, listening(AsgiServer({"": Echo()}), Connections(MOST), served) as port:
        client = ending.enter_context(ours.wrap_socket(
            ending.enter_context(socket.create_connection(("127.0.0.1", port), 60)), server_hostname="localhost"))
        console(client).sendall(b"\x88\x80" + bytes(4))  # RFC 6455, 5.5.1: to close, masked with zeros
        assert client.recv(65536)[:1] == b"\x88"
    assert not raised


class Waiting(Echo):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def handle(self, request: Request) -> Answer:
        if request.path == "/wait":
            assert self.told.wait(60)
        return super().handle(request)


def test_a_proxy_tells_whose_a_request_is() -> None:
    """Its own connections are many, and not counted."""
    application, places = Waiting(), Connections(MOST)
    server = AsgiServer({"": application}, trusted=True, connections=places)

    def get(port: int, path: str, **headers: str) -> http.client.HTTPConnection:
        client = ending.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)))
        client.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return client

    with listening(server) as port, contextlib.ExitStack() as ending:
        waiting = [get(port, "/wait", x_forwarded_for=f"203.0.113.{last}, 192.0.2.1") for last in range(MOST)]
        while places._open.total() < MOST:
            time.sleep(0.01)
        refused = get(port, "/a", x_forwarded_for="192.0.2.1").getresponse()
        assert refused.status == 429 and refused.headers["retry-after"] == "10"
        assert "192.0.2.1 has 3" in orjson.loads(refused.read())["error"]["message"]
        with pytest.raises(InvalidStatus, match="429"), connect(
                f"ws://127.0.0.1:{port}/a", additional_headers={"x-forwarded-for": "192.0.2.1"}):
            pass
        assert get(port, "/a", x_forwarded_for="192.0.2.1, 192.0.2.2").getresponse().status == 200
        assert all(get(port, "/a").getresponse().status == 200 for _time in range(2 * MOST))
        application.told.set()
        assert [one.getresponse().status for one in waiting] == [200] * MOST
        assert get(port, "/a", x_forwarded_for="192.0.2.1").getresponse().status == 200
        with connect(f"ws://127.0.0.1:{port}/a", additional_headers={"x-forwarded-for": "192.0.2.1"}) as console:
            console.send(b"a")
            assert console.recv() == b"a" and places._open == {"192.0.2.1": 1}


def test_an_address_that_no_proxy_tells_is_not_believed() -> None:
    """Nor counted: without trust_proxy connections are."""
    places = Connections(1)
    with listening(AsgiServer({"": Echo()}, connections=places), places) as port:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for last in range(3):
            client.request("GET", "/a", headers={"x-forwarded-for": f"192.0.2.{last}"})
            assert client.getresponse().read() and places._open == {"127.0.0.1": 1}
        client.close()
