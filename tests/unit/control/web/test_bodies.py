# SPDX-License-Identifier: GPL-3.0-or-later
"""Bodies and answers that are kept in memory: they have to move, and one address has so many bytes of them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import orjson
import pytest

from magnetar_control.services import Context
from magnetar_control.web import Answer, Fault, Request, bodies
from magnetar_control.web.application import Routed, by_token, guarded_route
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.bodies import BufferedBytes
from magnetar_control.web.transfers import Pace
from magnetar_core.http import stalled
from magnetar_core.http.connections import Connections
from tests.support.control.cloud import listening

#: Bytes of an answer that no kernel takes at once.
LONG = 32 << 20


def validate(token: str) -> Context | None:
    """Know one token."""
    return Context("user", "project") if token == "known" else None


def rendered(fault: Fault) -> Answer:
    """Show a fault."""
    return Answer({"error": fault.message}, fault.status)


@pytest.fixture
def server() -> AsgiServer:
    """A server for callers with the token ``known``; ``/anyone`` is for all."""
    def length(request: Request) -> dict[str, int]:
        return {"length": len(request.content)}

    return AsgiServer({"": Routed([
        guarded_route("POST /", length), guarded_route("POST /anyone", length, who="anyone"),
        guarded_route("GET /long", lambda _request: Answer(b"a" * LONG, media_type="text/plain"))], by_token(validate),
        rendered)})


@pytest.fixture
def port(server: AsgiServer) -> Iterator[int]:
    with listening(server, Connections(100)) as found:
        yield found


@pytest.fixture
def clients(port: int) -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as ending:
        yield ending


def begun(clients: contextlib.ExitStack, port: int, path: str, size: int, sent: int, token: str = "") -> socket.socket:
    """A connection with a request whose body has *size* bytes, of which *sent* come."""
    client = clients.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    header = f"x-auth-token: {token}\r\n" if token else ""
    client.sendall(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n{header}\r\n".encode())
    client.sendall(b"a" * sent)
    return client


def answered(client: socket.socket) -> tuple[int, bytes, str | None]:
    """Status, body and Retry-After of an answer."""
    with http.client.HTTPResponse(client) as answer:
        answer.begin()
        return answer.status, answer.read(), answer.headers["retry-after"]


@pytest.mark.parametrize("sent", [0, 10, 200_000])
@pytest.mark.parametrize("token", ["", "unknown"])
def test_the_body_of_who_is_not_known_is_not_waited_for(
        port: int, clients: contextlib.ExitStack, sent: int, token: str) -> None:
    assert answered(begun(clients, port, "/", 1 << 20, sent, token))[0] == 401


def test_who_asks_whether_to_send_is_told_no(port: int, clients: contextlib.ExitStack) -> None:
    client = clients.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    client.sendall(b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n")
    assert client.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_there_is_nothing_to_send_a_body_to(port: int, clients: contextlib.ExitStack) -> None:
    assert answered(begun(clients, port, "/nowhere", 1 << 20, 10))[0] == 404


def test_who_is_known_may_take_its_time(port: int, clients: contextlib.ExitStack) -> None:
    client = begun(clients, port, "/", 1 << 20, 100_000, "known")
    time.sleep(2 * bodies.PROMPT)
    client.sendall(b"a" * ((1 << 20) - 100_000))
    assert answered(client)[:2] == (200, b'{"length":1048576}')


@pytest.mark.parametrize(("path", "token"), [("/", "known"), ("/anyone", "")])
def test_a_body_that_does_not_come_ends(port: int, clients: contextlib.ExitStack, path: str, token: str,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PROMPT", 0.1)
    monkeypatch.setattr(bodies, "PACE", Pace(1024, 0.3))
    client = begun(clients, port, path, 1 << 20, 10, token)
    status, content, _later = answered(client)
    assert status == 408 and b"at least 1024 a second must" in content
    assert not client.recv(1)


def test_one_address_has_so_many_bytes(port: int, clients: contextlib.ExitStack, server: AsgiServer) -> None:
    """Bodies that do not end, of anybody; what is refused is given back, and others are served."""
    most = server.buffered.of_address = 3 << 20
    slow = [begun(clients, port, "/anyone", 1 << 20, (1 << 20) - 1) for _time in range(3)]
    while server.buffered.addresses.total() < most - 3:
        time.sleep(0.01)
    status, content, later = answered(begun(clients, port, "/anyone", 1 << 20, 1 << 20))
    assert status == 429 and later == "10" and b"127.0.0.1 has" in content
    for client in slow:
        client.sendall(b"a")
        assert answered(client)[0] == 200
    while server.buffered.addresses.total():
        time.sleep(0.01)
    assert answered(begun(clients, port, "/anyone", 1 << 20, 1 << 20))[0] == 200


def test_when_all_is_taken_an_address_may_still_have_one_body() -> None:
    kept = BufferedBytes(4 << 20, 4 << 20)
    kept.share("192.0.2.1").add(4 << 20)
    other = kept.share("192.0.2.2")
    other.add(bodies.BODY_LIMIT)
    with pytest.raises(Fault, match=r"192.0.2.2 has 1048576 bytes"):
        kept.share("192.0.2.2").add(1)
    other.free()
    other.free()
    assert kept.addresses == {"192.0.2.1": 4 << 20}


def test_who_does_not_read_is_ended(port: int, clients: contextlib.ExitStack, server: AsgiServer,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are counted meanwhile."""
    monkeypatch.setattr(stalled, "WINDOW", 1.5)
    server.buffered.of_address = LONG
    client = clients.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    client.sendall(b"GET /long HTTP/1.1\r\nhost: a\r\nx-auth-token: known\r\n\r\n")
    while server.buffered.addresses.total() < LONG:
        time.sleep(0.01)
    further = clients.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    further.sendall(b"GET /long HTTP/1.1\r\nhost: a\r\nx-auth-token: known\r\n\r\n")
    status, content, _later = answered(further)
    assert status == 429 and orjson.loads(content)["error"].endswith("read their answers.")
    while server.buffered.addresses.total():
        time.sleep(0.01)
    with pytest.raises(OSError):
        while client.recv(1 << 20):
            pass
        raise ConnectionResetError  # ended early


def test_who_reads_slowly_but_reads_has_all(port: int, clients: contextlib.ExitStack,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled, "WINDOW", 1.0)
    client = clients.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    client.sendall(b"GET /long HTTP/1.1\r\nhost: a\r\nx-auth-token: known\r\n\r\n")
    with http.client.HTTPResponse(client) as answer:
        answer.begin()
        size = 0
        for _time in range(16):  # over several windows
            time.sleep(0.2)
            size += len(answer.read(1 << 20))
        assert size + len(answer.read()) == LONG
