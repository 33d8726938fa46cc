# SPDX-License-Identifier: GPL-3.0-or-later
"""What guests are answered at each path, and how the small server bears with odd and hostile ones."""

from __future__ import annotations

import asyncio
import base64
import json
import socket

import pytest

from magnetar_agent.metadata import guest_http, messages, process
from magnetar_agent.metadata.guest_data import EC2_VERSIONS, VERSIONS
from magnetar_agent.metadata.guest_http import HEAD, MOST_PASSWORD, GuestHttp
from magnetar_agent.metadata.paths import GuestPaths
from tests.support.agent.metadata_http import TREE, served


def found(path: str, password: str = "") -> bytes | None:
    content = GuestPaths(TREE, password).find(path)
    return None if content is None else content.body


@pytest.mark.parametrize(("path", "lines"), [
    ("/", EC2_VERSIONS), ("", EC2_VERSIONS), ("/ec2/", EC2_VERSIONS), ("/openstack", VERSIONS),
    ("/openstack/", VERSIONS),
    ("/openstack/2012-08-10", ("meta_data.json", "user_data")),
    ("/openstack/latest/", ("meta_data.json", "user_data", "password", "vendor_data.json", "network_data.json",
                            "vendor_data2.json")),
    ("/2009-04-04", ("meta-data/", "user-data")), ("/latest/meta-data/public-keys/", ("0=mine",)),
    ("/latest/meta-data/public-keys/0", ("openssh-key",)),
    ("/latest/meta-data/public-keys/0/openssh-key", ("ssh-rsa AAAA",)),
    ("/2009-04-04/meta-data/placement/", ("availability-zone",)), ("/latest/user-data", ("#!/bin/sh", "")),
    ("/latest/meta-data/placement/availability-zone", ("az1",)), ("/1.0/meta-data/ami-launch-index", ("0",)),
    ("/latest/meta-data/security-groups", ("default", "web")), ("/openstack/content/0000", ("hi",)),
    ("/2009-04-04/meta-data/", (
        "ami-id", "ami-launch-index", "ami-manifest-path", "block-device-mapping/", "hostname", "instance-action",
        "instance-id", "instance-type", "local-hostname", "local-ipv4", "placement/", "public-hostname", "public-ipv4",
        "public-keys/", "reservation-id", "security-groups")),
])
def test_listings_and_elements(path: str, lines: tuple[str, ...]) -> None:
    assert found(path) == "\n".join(lines).encode()


@pytest.mark.parametrize("path", [
    "/openstack/2011-01-01", "/2010-01-01", "/openstack/latest/nothing", "/latest/meta-data/none", "/openstack/content",
    "/openstack/2012-08-10/password", "/latest/meta-data/ami-id/more", "/latest/meta-data/public-keys/0/_name",
    "/openstack/latest/meta_data.json/x", "/latest/api/token", "/openstack/content/0001", "/ec2/latest/meta-data.json"])
def test_nothing_there(path: str) -> None:
    assert found(path) is None


def test_documents_are_those_of_the_drive() -> None:
    for version in VERSIONS:
        for name in found(f"/openstack/{version}").decode().split("\n"):
            if name != "password":
                assert found(f"/openstack/{version}/{name}") == TREE[f"openstack/{version}/{name}"]
    for version in EC2_VERSIONS:
        told = json.loads(TREE[f"ec2/{version}/meta-data.json"])
        listed = found(f"/{version}/meta-data").decode().split("\n")
        assert len(listed) == len(told)
    assert found("/openstack/latest/password", "sealed") == b"sealed"


def get(path: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    size = [f"Content-Length: {len(body)}"] if body or method == "POST" else []
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *size, *lines, "", "")).encode() + body


def test_reading() -> None:
    async def talk(send):
        said = await send(get("/openstack/latest/user_data") + get("/latest/meta-data/hostname"))
        assert said.count(b"HTTP/1.1 200 OK") == 2 and said.endswith(b"web") and b"#!/bin/sh" in said
        head = await send(get("/openstack/latest/meta_data.json", method="HEAD"))
        size = len(TREE["openstack/latest/meta_data.json"])
        assert f"Content-Length: {size}\r\n".encode() in head and head.endswith(b"\r\n\r\n")
        assert b"Content-Type: application/json\r\n" in head
        assert b" 404 " in await send(get("/nothing")) and b" 405 " in await send(get("/openstack", method="PUT"))
        assert b" 404 " in await send(get("/latest/api/token", method="PUT"))
        assert b" 200 " in await send(get("http://169.254.169.254/latest?x=y"))
        assert b" 200 " in await send(b"GET /latest HTTP/1.0\r\n\r\n")
        assert b" 200 " in await send(get("/latest", "X-Forwarded-For: 1.2.3.4", "X-Instance-ID: other"))

    served(talk)


@pytest.mark.parametrize(("sent", "status"), [
    (b"nonsense\r\n\r\n", 400), (b"GET / HTTP/9\r\n\r\n", 400), (b"GET nowhere HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX: " + b"y" * 9000 + b"\r\n\r\n", 431), (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"POST /openstack/latest/password HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400), (b"GET  / HTTP/1.1\r\n\r\n", 400),
    (b"\xff\xfe / HTTP/1.1\r\n\r\n", 400), (b"POST /openstack/latest/password HTTP/1.1\r\n\r\n", 411)])
def test_odd_requests(sent: bytes, status: int) -> None:
    async def talk(send):
        said = await send(sent)
        assert said.startswith(f"HTTP/1.1 {status} ".encode()), said[:80]
        assert b"Connection: close" in said

    assert not served(talk)


def test_a_password_is_left_once() -> None:
    async def talk(send):
        for path in ("/openstack/2012-08-10/password", "/openstack/password"):
            assert b" 404 " in await send(get(path, method="POST", body=b"x"))
        assert b" 400 " in await send(get("/openstack/latest/password", method="PUT", body=b"x"))
        assert b" 400 " in await send(get("/openstack/latest/password", method="POST", body=b"x" * (MOST_PASSWORD + 1)))
        assert b" 400 " in await send(get("/openstack/latest/password", method="POST", body=b"\xff"))
        assert b" 400 " in await send(get("/openstack/latest/password", method="POST", body=b"a\0b"))
        assert b" 200 " in await send(get("/openstack/latest/password", method="POST", body=b"x" * MOST_PASSWORD))
        assert b" 409 " in await send(get("/openstack/2013-04-04/password", method="POST", body=b"other"))
        assert (await send(get("/openstack/latest/password"))).endswith(b"x" * MOST_PASSWORD)

    assert served(talk) == ["x" * MOST_PASSWORD]


def test_slow_guests_are_cut_and_many_connections_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARRIVE", "IDLE", "READ"):
        monkeypatch.setattr(guest_http, name, 0.3)

    async def talk(send):
        loop = asyncio.get_running_loop()

        async def opened(data: bytes) -> socket.socket:
            one = socket.create_connection(("127.0.0.1", send.port))
            one.setblocking(False)
            await loop.sock_sendall(one, data)
            return one

        for data in (b"", b"GET / HT", b"GET /openstack HTTP/1.1\r\nX: y\r\n"):
            one = await opened(data)
            assert await loop.sock_recv(one, 10) == b""
        many = [await opened(b"") for _number in range(guest_http.OF_GUEST + 5)]
        await asyncio.sleep(1)
        for one in many:
            one.close()
        assert b" 200 " in await send(get("/latest"))

    served(talk)


def test_a_flood_with_forged_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of requests of one guest, which says that it is another: it gets its own data, the other guest is
    answered meanwhile, and the agent is asked once about each."""
    monkeypatch.setattr(process, "FRESH", 3600.0)
    hosts, about = {"127.0.0.1": "flooding", "127.0.0.2": "quiet"}, []
    forged = ("X-Forwarded-For: 127.0.0.2", "Forwarded: for=127.0.0.2", "X-Instance-ID: quiet", "Host: 127.0.0.2")

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = json.loads(await reader.readexactly(messages.message_length(await reader.readexactly(4))))
            about.append(asked["about"])
            writer.write(messages.encode_message({"number": asked["number"], "password": "", "tree": {
                "openstack/latest/user_data": 0}, "parts": [base64.b64encode(asked["about"].encode()).decode()]}))

    async def ask(host: str, port: int, count: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(get("/openstack/latest/user_data", *forged) * count)
        writer.write_eof()
        said = await reader.read()
        writer.close()
        return said

    async def run() -> None:
        ours, theirs = socket.socketpair()
        questions = process.Questions(ours)
        questions.guests = hosts
        answering = asyncio.create_task(agent(*await asyncio.open_connection(sock=theirs)))
        reading = asyncio.create_task(questions.run())
        http = GuestHttp(questions.find, questions.send_password)
        server = await asyncio.start_server(http.connected, "127.0.0.1", 0, limit=HEAD)
        port = server.sockets[0].getsockname()[1]
        other = await asyncio.start_server(http.connected, "127.0.0.2", port, limit=HEAD)
        async with asyncio.timeout(120):
            many = [asyncio.create_task(ask("127.0.0.1", port, 250)) for _number in range(guest_http.OF_GUEST)]
            for _number in range(20):
                said = await ask("127.0.0.2", port, 1)
                assert said.endswith(b"quiet") and b"flooding" not in said
            for said in await asyncio.gather(*many):
                assert said.count(b"HTTP/1.1 200 OK") == said.count(b"flooding") == 250 and b"quiet" not in said
        assert sorted(about) == ["flooding", "quiet"]
        for one in (server, other):
            one.close()
        answering.cancel()
        reading.cancel()

    asyncio.run(run())
