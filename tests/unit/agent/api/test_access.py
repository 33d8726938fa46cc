# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what: peers of the unix socket, tokens, certificates, and scopes, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import stat
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.api import access, serve
from magnetar_agent.api.access import (
    OPERATE,
    READ,
    SO_PEERGROUPS,
    BearerTokens,
    InvalidTokens,
    Peer,
    admit_caller,
    unix_socket_peer,
)
from magnetar_agent.link import ALPN
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound, Unauthenticated
from magnetar_core.http.connections import MOST_REFUSALS, Connections
from tests.support.agent.serving import Client, Unix, served

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Connections that one address may have.
MOST = 20


class Socket:
    """A unix socket whose peer is who the test says."""

    def __init__(self, uid: int, gid: int, groups: tuple[int, ...] = ()) -> None:
        self.uid, self.gid, self.groups = uid, gid, groups

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """What the kernel would say."""
        if option == SO_PEERGROUPS:
            return struct.pack(f"{len(self.groups)}i", *self.groups)
        return struct.pack("3i", 1, self.uid, self.gid)


@pytest.mark.parametrize(("sock", "scope"), [
    (Socket(0, 0), OPERATE), (Socket(4711, 77), OPERATE), (Socket(4711, 5, (6, 77)), OPERATE),
    (Socket(4711, 5, (6, 7)), None), (Socket(4711, 5), None),
])
def test_peers(monkeypatch: pytest.MonkeyPatch, sock: Socket, scope: str | None) -> None:
    monkeypatch.setattr(access, "group_id", {"magnetar": 77}.get)
    caller = unix_socket_peer(sock, "magnetar")
    assert caller.scope == scope
    if scope is None:
        assert "usermod -aG magnetar" in str(caller.refusal)
        with pytest.raises(Forbidden):
            admit_caller(caller, "GET", {}, BearerTokens(Path("/nonexistent")))


def test_a_token_of_a_cloud() -> None:
    with pytest.raises(Unauthenticated, match="token of a cloud"):
        admit_caller(access.NOBODY, "GET", {b"x-auth-token": b"gAAAA"}, BearerTokens(Path("/nonexistent")))


def test_the_socket_is_closed_to_others(host: Any, tmp_path: Path) -> None:
    where = tmp_path / "run" / "agent.sock"
    with served(host.agent, serve.unix_socket(where, "no-such-group")):
        assert stat.S_IMODE(where.stat().st_mode) == 0o660
        with pytest.raises(serve.CannotStart, match="answers on"):
            serve.unix_socket(where, "no-such-group")
        assert Client(Unix(where)).call("GET", "/v1")[0] == 200
    serve.unix_socket(where, "no-such-group").close()  # nobody answers any more: replaced
    where.unlink()
    where.write_text("precious")
    with pytest.raises(serve.CannotStart, match="not a socket"):
        serve.unix_socket(where, "no-such-group")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(("groups", "status"), [([], 403), ([100, 12], 403), ([100, 4711], 200)])
def test_strangers_and_members(host: Any, monkeypatch: pytest.MonkeyPatch, groups: list[int], status: int) -> None:
    monkeypatch.setattr(access, "group_id", {"magnetar": 4711}.get)
    where = Path(f"/tmp/magnetar-test-{os.getpid()}.sock")
    try:
        with served(host.agent, serve.unix_socket(where, "magnetar")):
            assert where.stat().st_gid == 4711
            where.chmod(0o666)  # even then
            call = subprocess.run(
                ["/usr/bin/python3", "-c", "import socket, sys; s = socket.socket(socket.AF_UNIX); "
                                           "s.connect(sys.argv[1]); "
                                           "s.send(b'GET /v1 HTTP/1.0\\r\\n\\r\\n'); print(s.makefile().read())",
                 str(where)],
                user=65534, group=65534, extra_groups=groups, capture_output=True, text=True, check=True)
            assert call.stdout.startswith(f"HTTP/1.1 {status} ")
            assert ("is neither root nor in group magnetar" in call.stdout) == (status == 403)
    finally:
        where.unlink(missing_ok=True)


def test_tokens(tmp_path: Path) -> None:
    tokens = BearerTokens(tmp_path / "etc" / "tokens.yml")
    assert tokens.list() == []
    secret = tokens.create("awx", OPERATE)
    assert secret not in tokens.path.read_text() and stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert tokens.caller(f"Bearer {secret}".encode()) == Peer("token:awx", OPERATE, None, "tls")
    for header in (b"Bearer wrong", b"Basic abc", b"Bearer ", b"Bearer \xff"):
        with pytest.raises(Unauthenticated):
            tokens.caller(header)
    with pytest.raises(Conflict):
        tokens.create("awx", READ)
    with pytest.raises(InvalidField):
        tokens.create("a b", READ)
    BearerTokens(tokens.path).revoke("awx")  # by another process
    with pytest.raises(Unauthenticated):
        tokens.caller(f"Bearer {secret}".encode())
    with pytest.raises(NotFound):
        tokens.revoke("awx")
    tokens.path.chmod(0o644)
    with pytest.raises(InvalidTokens, match="chmod 600"):
        tokens.list()
    tokens.path.chmod(0o600)
    tokens.path.write_text("tokens: [{name: x}]")
    with pytest.raises(InvalidTokens):
        tokens.list()


def test_scopes_and_other_sites() -> None:
    tokens = BearerTokens(Path("/nonexistent"))
    reader = Peer("token:r", READ, None, "tls")
    assert admit_caller(reader, "GET", {}, tokens) is reader
    for method in ("PUT", "POST", "DELETE"):
        with pytest.raises(Forbidden, match="has the scope read"):
            admit_caller(reader, method, {}, tokens)
    with pytest.raises(Unauthenticated, match="magnetar token create"):
        admit_caller(access.NOBODY, "GET", {}, tokens)
    with pytest.raises(Forbidden, match="another site"):
        admit_caller(Peer("cert:me", OPERATE), "POST", {b"origin": b"https://evil", b"host": b"kvm1:6553"}, tokens)


# TLS ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a certificate for localhost, and client certificates for awx, viewer and stranger."""
    folder = tmp_path_factory.mktemp("keys")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-addext", "keyUsage=critical,keyCertSign", "-keyout",
            "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA")
    (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("localhost", "awx", "viewer", "stranger"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-extfile", "san", "-out", f"{name}.pem")
    return folder


@pytest.fixture
def https(host: Any, keys: Path, tmp_path: Path) -> Iterator[Any]:
    """``https(name)``: a client with the certificate of *name*, or none; ``https.token`` has the scope read."""
    host.agent.host.settings = replace(
        host.agent.host.settings, listen="127.0.0.1:0", tls_cert=keys / "localhost.pem", tls_key=keys / "localhost.key",
        tls_client_ca=keys / "ca.pem", tokens_file=tmp_path / "tokens.yml",
        client_certs={"awx": "operate", "viewer": "read"})
    tokens = BearerTokens(tmp_path / "tokens.yml")
    secret = tokens.create("prometheus", READ)
    sock = serve.tcp_socket(("127.0.0.1", 0))
    port = sock.getsockname()[1]

    def client(name: str | None, **more: Any) -> Client:
        context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
        for key, value in more.items():
            setattr(context, key, value)
        if name:
            context.load_cert_chain(keys / f"{name}.pem", keys / f"{name}.key")
        return Client(http.client.HTTPSConnection("localhost", port, context=context, timeout=10))

    client.token, client.port, client.ca = secret, port, keys / "ca.pem"  # type: ignore[attr-defined]
    with served(host.agent, sock, access.server_tls_context(host.agent.host.settings, tokens), Connections(MOST)):
        yield client


FLAVOR = {"vcpus": 1, "ram": 64}


def test_client_certificates(https: Any) -> None:
    assert https("awx").call("PUT", "/v1/flavor/f", FLAVOR)[1]["changed"] is True
    assert https("viewer").call("GET", "/v1/flavor/f")[0] == 200
    status, answer = https("viewer").call("DELETE", "/v1/flavor/f")
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    status, answer = https("viewer").call("GET", "/v1/image/i/data")  # it may be a copy of somebody's disk
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert https("awx").call("GET", "/v1/image/i/data")[0] == 404
    status, answer = https("stranger").call("GET", "/v1")
    assert status == 403 and "client_certs" in answer["error"]["message"]


def test_one_address_has_so_many_connections(https: Any) -> None:
    """Others are answered, and a refusal says why."""
    with contextlib.ExitStack() as ending:
        for number in range(MOST):
            kept = https("awx") if number % 2 else https(None)
            ending.enter_context(contextlib.closing(kept.connection))
            bearer = {} if number % 2 else {"authorization": f"Bearer {https.token}"}
            assert kept.call("GET", "/v1", **bearer)[0] == 200
        status, answer = https("awx").call("GET", "/v1")
        assert (status, answer["error"]["code"]) == (429, "too-many-requests")
        assert "connections_per_address" in answer["error"]["message"]
        other = https("awx")
        other.connection.source_address = ("127.0.0.2", 0)
        assert other.call("GET", "/v1")[0] == 200
    for _time in range(600):
        if https("awx").call("GET", "/v1")[0] == 200:
            break
        time.sleep(0.1)
    assert https("awx").call("GET", "/v1")[0] == 200


@pytest.mark.parametrize("shakes", ["", "http/1.1", ALPN])
def test_who_is_not_known_keeps_nobody_of_its_address_out(https: Any, shakes: str) -> None:
    """Silent, with a handshake and no certificate, or asking for a link without one: else the host counts as down."""
    context = ssl.create_default_context(cafile=https.ca)
    context.set_alpn_protocols([shakes or ALPN])
    with contextlib.ExitStack() as ending:
        first = https("awx")
        assert first.call("GET", "/v1")[0] == 200
        for _time in range(MOST + MOST_REFUSALS):
            plain = ending.enter_context(socket.create_connection(("127.0.0.1", https.port), 60))
            if shakes:
                ending.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        assert https("awx").call("GET", "/v1")[0] == 200
        assert first.call("GET", "/v1")[0] == 200


def test_bearer_tokens(https: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "magnetar.audit")
    client = https(None)
    status, answer = client.call("GET", "/healthz")
    assert (status, client.headers["www-authenticate"]) == (401, 'Bearer realm="magnetar"')
    assert "magnetar token create" in answer["error"]["message"]
    assert client.call("GET", "/v1", Authorization=f"Bearer {https.token}")[0] == 200
    status, answer = client.call("PUT", "/v1/flavor/f", FLAVOR, Authorization=f"Bearer {https.token}")
    assert status == 403 and "scope read" in answer["error"]["message"]
    status, answer = client.call("GET", "/v1/host/reach?address=kvm2&port=6553", Authorization=f"Bearer {https.token}")
    assert status == 403 and "this connects to another host" in answer["error"]["message"]
    assert client.call("GET", "/v1/flavor", Authorization=f"Bearer {https.token}")[1] == {"flavors": []}
    records: list[Any] = caplog.records
    assert [record.result for record in records if record.name == "magnetar.audit"] == ["refused"]
    assert https.token not in caplog.text


def test_tls_is_new_enough(https: Any) -> None:
    with pytest.raises((ssl.SSLError, OSError)):
        https("awx", minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1).call("GET", "/v1")
    with socket.create_connection(("127.0.0.1", https.port)) as plain:
        plain.sendall(b"GET /v1 HTTP/1.0\r\n\r\n")
        assert b"HTTP/1.1 200" not in plain.recv(100)


def test_no_tcp_without_a_way_to_tell_callers_apart(host: Any, keys: Path, tmp_path: Path) -> None:
    settings = replace(host.agent.host.settings, listen="127.0.0.1:0", tls_cert=keys / "localhost.pem",
                       tls_key=keys / "localhost.key", tokens_file=tmp_path / "tokens.yml")
    tokens = BearerTokens(settings.tokens_file)
    assert access.server_tls_context(settings, tokens) is None
    assert serve.NO_TCP in serve.check_settings(settings)
    tokens.create("one", READ)
    assert access.server_tls_context(settings, tokens) is not None
