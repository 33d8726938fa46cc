# SPDX-License-Identifier: GPL-3.0-or-later
"""Links between two agents over real TLS: who gets in, what goes through, and what is left."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.agent import Agent
from magnetar_agent.api import access, serve
from magnetar_agent.api.app import AgentApplication
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.link import LinkAddress, Links, Offer
from magnetar_agent.link.relay import RelayEnd
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Conflict, NotFound, Unreachable
from magnetar_core.http.client import Client
from magnetar_core.http.connections import MOST_REFUSALS, Connections
from tests.support.agent.pki import Pki
from tests.support.agent.serving import served

#: Connections that one address may have, besides links.
PLACES = 4


def settings(folder: Path, pki: Pki, name: str, port: int) -> AgentSettings:
    cert, key = pki.issue(name)
    return AgentSettings(state_dir=folder / name, listen=f"127.0.0.1:{port}", tls_cert=cert, tls_key=key,
                         tls_client_ca=pki.ca, tokens_file=folder / "none.yml", grace=0.1)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
def near(tmp_path: Path, pki: Pki) -> Iterator[Links]:
    """The links of an agent that connects."""
    links = Links(settings(tmp_path, pki, "kvm1", 1))
    yield links
    links.close()


@pytest.fixture
def far(tmp_path: Path, pki: Pki) -> Iterator[Agent]:
    """An agent that serves on ``far.port``."""
    with ExitStack() as ending:
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        agent = Agent(settings(tmp_path, pki, "kvm2", port), FakeHypervisor())
        ending.callback(agent.close)
        tls = access.server_tls_context(agent.host.settings, access.BearerTokens(agent.host.settings.tokens_file))
        ending.enter_context(served(agent, sock, tls, Connections(PLACES)))
        yield agent


def echo(sock: socket.socket, _peer: str) -> None:
    while data := sock.recv(1 << 16):
        sock.sendall(data)


def remote(far: Agent, id: str = "l1", peer: str = "kvm2") -> LinkAddress:
    assert far.host.settings.address
    return LinkAddress(id, peer, *far.host.settings.address)


def read(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (data := sock.recv(1 << 20)):
        found += data
    return found


def test_bytes_go_both_ways_through_a_call_and_through_a_forward(near: Links, far: Agent, tmp_path: Path) -> None:
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"echo": echo}))
    near.forward(remote(far), "echo", tmp_path / "local.sock")
    with socket.socket(socket.AF_UNIX) as forwarded, near.call(remote(far), "echo") as called:
        forwarded.connect(str(tmp_path / "local.sock"))
        for sock in (forwarded, called):
            sent = os.urandom(3_000_000)
            threading.Thread(target=sock.sendall, args=(sent,)).start()
            assert read(sock, len(sent)) == sent
    near.cut("l1")
    assert not (tmp_path / "local.sock").exists()


def test_links_take_no_place_of_their_address(near: Links, far: Agent) -> None:
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"echo": echo}))
    with ExitStack() as ending:
        for _time in range(PLACES + MOST_REFUSALS + 1):
            sock = ending.enter_context(near.call(remote(far), "echo"))
            sock.sendall(b"a")
            assert sock.recv(1) == b"a"


def test_a_door_may_be_a_unix_socket(near: Links, far: Agent, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "door"))
        listener.listen()
        far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"door": tmp_path / "door"}))
        with near.call(remote(far), "door") as sock:
            there, _address = listener.accept()
            with there:
                sock.sendall(b"hello")
                assert there.recv(9) == b"hello"
                there.sendall(b"bye")
            assert read(sock, 9) == b"bye"  # what was written comes before the end


def test_a_slow_reader_holds_the_writer(near: Links, far: Agent) -> None:
    hold, seen = threading.Event(), []

    def slow(sock: socket.socket, _peer: str) -> None:
        hold.wait(120)
        while data := sock.recv(1 << 20):
            seen.append(len(data))

    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"slow": slow}))
    with near.call(remote(far), "slow") as sock:
        sock.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 1 << 28:
                sent += sock.send(bytes(1 << 16))
        assert sent < 1 << 26  # it waits in buffers, not in memory without end
        hold.set()
    deadline = time.monotonic() + 120
    while sum(seen) < sent and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(seen) == sent


@pytest.mark.parametrize(("id", "peer", "wanted"), [
    ("l1", "kvm9", "echo"), ("l2", "kvm1", "echo"), ("l1", "kvm1", "libvirt"), ("l1", "", "echo"),
])
def test_what_is_not_offered_to_this_peer_is_not_there(
        near: Links, far: Agent, id: str, peer: str, wanted: str) -> None:
    far.host.links.offer(Offer(id, frozenset([peer]), {"echo": echo}))
    with pytest.raises(NotFound, match="There is no link l1"):
        near.call(remote(far), wanted)


def test_a_withdrawn_link_is_cut(near: Links, far: Agent) -> None:
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"echo": echo}))
    with near.call(remote(far), "echo") as sock:
        far.host.links.withdraw("l1")
        assert sock.recv(1) == b""
    with pytest.raises(NotFound):
        near.call(remote(far), "echo")


def test_nobody_behind_the_door(near: Links, far: Agent, tmp_path: Path) -> None:
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"door": tmp_path / "nothing"}))
    with pytest.raises(Unreachable, match="Nobody answers behind the endpoint"):
        near.call(remote(far), "door")


def test_another_agent_answers(near: Links, far: Agent) -> None:
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"echo": echo}))
    with pytest.raises(Unreachable, match="its certificate is for 'kvm2'"):
        near.call(remote(far, peer="kvm3"), "echo")


def test_another_ca(far: Agent, tmp_path: Path) -> None:
    links = Links(settings(tmp_path, Pki(tmp_path / "other"), "kvm1", 1))
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"echo": echo}))
    try:
        with pytest.raises(Unreachable, match="certificates of one CA"):
            links.call(remote(far), "echo")
    finally:
        links.close()


def test_nobody_listens(near: Links) -> None:
    with pytest.raises(Unreachable, match="Connection refused|Connect call failed"):
        near.call(LinkAddress("l1", "kvm2", "127.0.0.1", 1), "echo")


def test_without_tls_there_are_no_links(tmp_path: Path, far: Agent) -> None:
    links = Links(AgentSettings(state_dir=tmp_path))
    assert links.name() is None
    with pytest.raises(Conflict, match="tls_client_ca"):
        links.call(remote(far), "echo")
    links.close()


@pytest.mark.parametrize("line", [b"x" * 5000, b"nonsense\n", b"[]\n", b'{"link": {}}\n'])
def test_nonsense_in_the_first_line(far: Agent, pki: Pki, line: bytes) -> None:
    answer = spoken(far, pki, line)
    assert answer == b"" or b"no link" in answer


def spoken(far: Agent, pki: Pki, line: bytes) -> bytes:
    """What a peer that says *line* is told."""
    context: Any = ssl.create_default_context(cafile=str(pki.ca))
    context.check_hostname = False
    context.load_cert_chain(*pki.issue("kvm1"))
    context.set_alpn_protocols(["magnetar-link/1"])
    with socket.create_connection(far.host.settings.address, timeout=5) as raw, context.wrap_socket(raw) as sock:
        try:
            sock.sendall(line)
            return bytes(sock.recv(4096))
        except (ConnectionError, ssl.SSLError):
            return b""


def test_an_idle_client_does_not_keep_an_agent_from_ending(tmp_path: Path, pki: Pki) -> None:
    cert, key = pki.issue("admin")
    with serve.tcp_socket(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        agent = Agent(replace(settings(tmp_path, pki, "kvm2", port), grace=20.0), FakeHypervisor())
        tls = access.server_tls_context(agent.host.settings, access.BearerTokens(agent.host.settings.tokens_file))
        server = serve.make_http_server(AgentApplication(agent), agent.host.settings, tls)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), daemon=True)
        thread.start()
        agent.host.settings.client_certs["admin"] = "operate"
        with Client(f"https://127.0.0.1:{port}", ca_cert=str(pki.ca), client_cert=str(cert),
                    client_key=str(key)) as admin:  # fmt: skip
            assert admin.info()["api"] == 1
            server.should_exit = True
            thread.join(20)  # asyncio would wait 30 s
            assert not thread.is_alive()
        agent.close()


def test_the_api_answers_on_the_same_port(far: Agent, pki: Pki) -> None:
    cert, key = pki.issue("admin")
    far.host.settings.client_certs["admin"] = "operate"
    with Client(f"https://127.0.0.1:{far.host.settings.address[1]}", ca_cert=str(pki.ca), client_cert=str(cert),
                client_key=str(key)) as client:
        assert client.info()["api"] == 1
    near = Links(settings(far.host.settings.state_dir, pki, "kvm1", 1))
    far.host.links.offer(Offer("l1", frozenset(["kvm1"]), {"echo": echo}))
    with near.call(remote(far), "echo") as sock:  # a certificate without any scope in the API
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    near.close()


def test_an_end_that_is_closed_is_closed_once(pki: Pki) -> None:
    """asyncio's TLS fails to abort a connection that was closed twice, and the other end would stay open."""
    cert, key = pki.issue("kvm1")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(cert, key)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE

    async def closed() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(RelayEnd, "127.0.0.1", 0, ssl=server) as listening:
            port = listening.sockets[0].getsockname()[1]
            _transport, end = await loop.create_connection(RelayEnd, "127.0.0.1", port, ssl=client,
                                                           server_hostname="kvm1")
            end.close()
            end.close()
            end.abort()

    asyncio.run(closed())
