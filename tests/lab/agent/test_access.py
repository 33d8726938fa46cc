# SPDX-License-Identifier: GPL-3.0-or-later
"""Who reaches a real agent process: nobody over TCP unless it is set up; then certificates and tokens, by scope."""

from __future__ import annotations

import grp
import json
import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.api.access import READ, BearerTokens
from magnetar_core.errors import Forbidden, InvalidField, MagnetarError, Unauthenticated, Unreachable
from magnetar_core.http.client import Client
from tests.support.lab.agent import LabAgent
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

FLAVOR = {"vcpus": 1, "ram": 64}
GROUP = "users"  # a group that every Debian has
USER_DATA = "c2VjcmV0LXVzZXItZGF0YQ=="  # secret-user-data
#: What somebody without rights on the socket sees: the kernel refuses to connect, or the agent to answer.
STRANGER = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"GET /v1 HTTP/1.1\\r\\nHost: agent\\r\\nConnection: close\\r\\n\\r\\n")
print(s.recv(65536).split()[1].decode())
"""


def listening(process: int) -> list[str]:
    """Local addresses of the TCP sockets on which a process listens."""
    inodes = {str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()}
    text = "".join(Path(f"/proc/{process}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    lines = [line.split() for line in text.splitlines()]
    return [words[1] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in inodes]


def certificates(folder: Path) -> None:
    """A CA, another CA, and certificates for localhost, awx, viewer and (of the other CA) stranger."""
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for ca, names in {"ca": ("localhost", "awx", "viewer"), "other": ("stranger",)}.items():
        openssl("req", "-x509", *new, "-addext", "keyUsage=critical,keyCertSign", "-keyout",
                f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
        for name in names:
            openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
                    "-CAcreateserial", "-extfile", "san", "-out", f"{name}.pem")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the certificates."""
    folder = tmp_path_factory.mktemp("keys")
    certificates(folder)
    return folder


@pytest.fixture(scope="module")
def https(keys: Path) -> Iterator[LabAgent]:
    """An agent that listens on TCP; ``https.port``."""
    port = free_port()
    settings = {"listen": f"127.0.0.1:{port}", "tls_cert": str(keys / "localhost.pem"),
                "tls_key": str(keys / "localhost.key"), "tls_client_ca": str(keys / "ca.pem"),
                "client_certs": {"awx": "operate", "viewer": "read"}, "socket_group": GROUP}
    with LabAgent(**settings) as made:
        made.url = f"https://localhost:{port}"  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def secret(https: LabAgent) -> str:
    """A token of scope read; the agent accepts tokens, since it started when there was one."""
    found = BearerTokens(https.folder / "tokens.yml").create("prometheus", READ)
    https.stop()
    https.start()
    return found


def remote(agent: Any, keys: Path, name: str | None = None, **more: Any) -> Client:
    """A client over HTTPS with the certificate of *name*."""
    mine = {"client_cert": str(keys / f"{name}.pem"), "client_key": str(keys / f"{name}.key")} if name else {}
    return Client(**{"endpoint": agent.url, "ca_cert": str(keys / "ca.pem"), "timeout": 20, **mine, **more})


def test_no_tcp_unless_it_is_set_up() -> None:
    with LabAgent() as lab:
        assert lab.process is not None
        assert listening(lab.process.pid) == []
        assert stat.S_IMODE(lab.socket.stat().st_mode) == 0o660


def test_the_socket_is_for_root_and_the_group(https: LabAgent) -> None:
    group = grp.getgrnam(GROUP).gr_gid
    assert https.socket.stat().st_gid == group
    for words, expected in (["--clear-groups"], "PermissionError"), ([f"--groups={group}"], "200"):
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", *words, "/usr/bin/python3", "-c", STRANGER, https.socket],
            check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert expected in done.stdout


def test_certificates_only(https: LabAgent, keys: Path) -> None:
    """Without tokens a certificate is asked for by TLS itself."""
    for client, text in ((remote(https, keys), "client_cert and client_key"),
                         (remote(https, keys, "stranger"), "tls_client_ca")):
        with client, pytest.raises(Unreachable, match=text):
            client.list("flavor")


def test_certificates_and_tokens(https: LabAgent, keys: Path, secret: str) -> None:
    kept = https.folder / "tokens.yml"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert secret not in kept.read_text()
    with remote(https, keys, "awx") as client:
        assert client.ensure("flavor", "f", FLAVOR)["changed"]
    for reader in remote(https, keys, "viewer"), remote(https, keys, token=secret):
        with reader as client:
            assert [one["name"] for one in client.list("flavor")] == ["f"]
            for attempt in (lambda: client.ensure("flavor", "g", FLAVOR), lambda: client.delete("flavor", "f"),
                            lambda: client.event("server", "s", "reboot"), lambda: client.ensure_many("flavor", [])):
                with pytest.raises(Forbidden, match="scope read"):
                    attempt()
    assert https.names("flavor") == ["f"]

    refused: dict[Any, tuple[type[MagnetarError], str]] = {
        remote(https, keys): (Unauthenticated, "certificate"),
        remote(https, keys, token="guessed"): (Unauthenticated, "token"),
        remote(https, keys, "stranger"): (Unreachable, "tls_client_ca"),
        remote(https, keys, "awx", ca_cert=str(keys / "other.pem")): (Unreachable, "not trusted"),
        remote(https, keys, "awx", ca_cert=str(keys / "none.pem")): (InvalidField, "ca_cert"),
    }
    for client, (error, text) in refused.items():
        with client, pytest.raises(error, match=text):
            client.list("flavor")
    said = https.log.read_text()
    assert secret not in said and "guessed" not in said


def test_every_change_has_one_audit_line_without_secrets(https: LabAgent, keys: Path) -> None:
    with remote(https, keys, "awx") as client:
        made = client.ensure("server", "s", {"flavor": FLAVOR, "image": None, "power": "off", "user_data": USER_DATA})
        client.ensure("server", "s", {}, dry_run=True)
        with pytest.raises(InvalidField):
            client.ensure("server", "s", {"description": 7})
        client.delete("server", "s")
    lines = [line for line in https.logged() if line.get("audit") and line["kind"] == "server" and line["key"] == "s"
             and line["caller"] == "cert:awx"]
    assert [(line["what"], line["result"]) for line in lines] == [
        ("ensure", "succeeded"), ("ensure", "failed"), ("remove", "succeeded")]
    assert lines[0]["request_id"] == made["request_id"]
    assert USER_DATA not in json.dumps(lines) and USER_DATA not in https.log.read_text()


def test_who_is_refused_is_in_the_audit_log(https: LabAgent, keys: Path) -> None:
    with remote(https, keys, "viewer") as client, pytest.raises(Forbidden):
        client.delete("flavor", "guarded")
    (line,) = [one for one in https.logged() if one.get("audit") and one.get("caller") == "cert:viewer"
               and one["result"] == "refused" and "guarded" in json.dumps(one)]
    assert line["request_id"].startswith("req-")


def test_plain_http_is_refused(https: LabAgent) -> None:
    url = https.url  # type: ignore[attr-defined]
    with pytest.raises(InvalidField, match="endpoint"):
        Client(endpoint=url.replace("https", "http"))
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as plain:
        plain.sendall(b"GET /v1 HTTP/1.1\r\nHost: agent\r\n\r\n")
        assert b"200" not in plain.recv(4096)


@pytest.mark.parametrize(("route", "body", "field"), [
    ("flavor/bad", '{"vcpus": 0, "ram": 64}', "vcpus"), ("flavor/bad", '{"vcpus": 1, "ram": 64, "x": 1}', "x"),
    ("flavor/bad", '{"vcpus": "one", "ram": 64}', "vcpus"), (f"flavor/{'n' * 256}", '{"vcpus": 1, "ram": 64}', "name"),
    ("flavor/bad", "{", None), ("flavor/bad", '"text"', None),
])
def test_bad_input_is_told_with_field_and_rule(https: LabAgent, route: str, body: str, field: str | None) -> None:
    done = subprocess.run(
        ["curl", "-sS", "--unix-socket", https.socket, "-X", "PUT", "--data-raw", body, "-w", "\n%{http_code}",
         f"http://agent/v1/{route}"], check=True, text=True, stdout=subprocess.PIPE)
    content, _line, status = done.stdout.rpartition("\n")
    error = json.loads(content)["error"]
    assert status == "400" and error["message"] and error["request_id"].startswith("req-")
    if field:
        assert error["details"]["field"] == field and error["details"]["rule"]
    assert "Traceback" not in done.stdout and "bad" not in https.names("flavor")


def test_a_module_over_https(https: LabAgent, keys: Path) -> None:
    words = [".venv/bin/ansible", "localhost", "-m", "magnetar.compute.flavor", "-a", "name=far vcpus=1 ram=64 "
             f"endpoint={https.url} ca_cert={keys}/ca.pem client_cert={keys}/awx.pem "  # type: ignore[attr-defined]
             f"client_key={keys}/awx.key"]
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(root / ".cache"), "LC_ALL": "C.UTF-8"}
    for changed in ("CHANGED", "SUCCESS"):
        done = subprocess.run(words, cwd=root, env=environment, check=True, text=True, stdout=subprocess.PIPE)
        assert changed in done.stdout
