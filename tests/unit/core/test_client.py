# SPDX-License-Identifier: GPL-3.0-or-later
"""The client against a server that answers from a script: retries, waiting, errors, uploads."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from magnetar_core.errors import (
    Cancelled,
    HypervisorDown,
    InvalidField,
    MagnetarError,
    NotFound,
    TimedOut,
    TooManyRequests,
    Unauthenticated,
    Unreachable,
)
from magnetar_core.http import client as client_module
from magnetar_core.http.client import Client

DROP = object()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "unix"

    def log_message(self, *_args):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, body, dict(self.headers)))
        status, answer = self.server.script.pop(0) if self.server.script else (200, {"changed": False})
        if isinstance(status, float):  # seconds until the answer
            time.sleep(status)
            status, answer = answer
        if answer is DROP:
            self.close_connection = True
            return
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_DELETE = do_POST = answer


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture
def server(tmp_path):
    found = Server(str(tmp_path / "s"), Handler)
    found.script, found.seen = [], []
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join(5)


@pytest.fixture
def client(server):
    with Client(f"unix://{server.server_address}", timeout=5) as found:
        yield found


def failure(code, message="no"):
    return {"error": {"code": code, "message": message, "details": {"a": 1}, "request_id": "req-1"}}


def operation(status, **more):
    return {"id": "op", "status": status, "progress": {"done": 1, "total": 2, "unit": "bytes", "phase": "copy"}, **more}


def test_ensure_says_what_is_asked(server, client):
    client.ensure("server", "a/b c", {"name": "x"}, on_immutable="ignore", merge=["tags"], dry_run=True,
                  request_id="req-x")
    method, path, body, headers = server.seen[0]
    assert method == "PUT" and path.startswith("/v1/server/a%2Fb%20c?")
    assert "on_immutable=ignore" in path and "merge=tags" in path and "dry_run=true" in path and "wait=5.0" in path
    assert json.loads(body) == {"name": "x"} and headers["X-Request-Id"] == "req-x"


def test_the_connection_is_kept(server, client):
    ports = set()
    for _time in range(3):
        client.get("flavor", "x")
        ports.add(id(client._connection))
    assert len(ports) == 1


def test_a_dropped_connection_is_opened_again(server, client):
    client.get("flavor", "x")
    server.script[:] = [(200, DROP), (200, {"name": "x"})]
    assert client.get("flavor", "x") == {"name": "x"}


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_are_no_answers(status, server, client):
    server.script[:] = [(status, b"")]
    with pytest.raises(MagnetarError, match=f"HTTP {status} with something that is not Magnetar's"):
        client.ensure("flavor", "x", {})


def test_an_empty_key_is_not_the_list(server, client):
    for call in (lambda: client.ensure("flavor", "", {}), lambda: client.delete("flavor", ""),
                 lambda: client.get("flavor", ""), lambda: client.event("server", "", "reboot")):
        with pytest.raises(InvalidField, match="name: must not be empty: it says which"):
            call()
    assert server.seen == []


def test_503_is_asked_again(server, client):
    server.script[:] = [(503, failure("hypervisor-down"))] * 2 + [(200, {"changed": True})]
    assert client.ensure("server", "x", {})["changed"]
    assert len({headers["X-Request-Id"] for *_rest, headers in server.seen}) == 1, "one id for all attempts"


def test_503_ends(server, client, monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_FOR", 0.3)
    server.script[:] = [(503, failure("hypervisor-down"))] * 9
    with pytest.raises(HypervisorDown):
        client.get("server", "x")


BUSY = (429, {"error": {"code": "too-many-requests", "message": "later", "details": {"headers": {
    "Retry-After": "0"}}}})


def test_a_cloud_that_does_enough_for_the_project_is_asked_again_when_it_says(server, client, monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_FOR", 0.0)
    server.script = [BUSY, BUSY, (200, {"changed": True})]
    assert client.ensure("server", "web1", {})["changed"] and len(server.seen) == 3
    far = dict(BUSY[1]["error"], details={"headers": {"Retry-After": "60"}})
    server.script = [(429, {"error": far})]
    with pytest.raises(TooManyRequests, match="later") as refused:
        client.ensure("server", "web1", {})  # there is no time for that
    assert refused.value.retry_after == 60 and len(server.seen) == 4


def test_an_agent_that_went_away_during_a_long_wait_is_asked_again(server, client, monkeypatch):
    """The time counts from the failure on: the agent may have worked for minutes before it was restarted."""
    monkeypatch.setattr(client_module, "RETRY_FOR", 0.3)
    server.script[:] = [(0.5, (503, failure("hypervisor-down"))), (200, {"changed": True})]
    assert client.ensure("server", "x", {})["changed"]


@pytest.mark.parametrize("status, code, cls", [
    (404, "not-found", NotFound), (401, "unauthenticated", Unauthenticated), (500, "internal", MagnetarError)])
def test_errors_are_not_asked_again(status, code, cls, server, client):
    server.script[:] = [(status, failure(code, "why"))]
    with pytest.raises(cls) as caught:
        client.get("server", "x")
    assert len(server.seen) == 1 and caught.value.message == "why"
    assert caught.value.details == {"a": 1} and caught.value.request_id == "req-1"


def test_something_else_answers(server, client):
    server.script[:] = [(502, b"<html>Bad gateway</html>")]
    with pytest.raises(MagnetarError, match="HTTP 502"):
        client.get("server", "x")


def test_an_operation_is_followed(server, client):
    seen = []
    server.script[:] = [
        (202, {"operation": operation("running"), "request_id": "req-1"}), (200, operation("running")),
        (200, operation("succeeded", result={"changed": True, "resource": {"id": "1"}}))]
    answer = client.ensure("server", "x", {}, progress=seen.append)
    assert answer["changed"] and answer["resource"] == {"id": "1"} and len(seen) == 3
    assert server.seen[1][1].startswith("/v1/operations/op?wait=")


def test_a_batch_in_an_operation(server, client):
    done = operation("succeeded", result=[{"key": "a"}])
    server.script[:] = [(202, {"operation": operation("running")}), (200, done)]
    assert client.ensure_many("server", [{"key": "a", "want": {}}])["results"] == [{"key": "a"}]


@pytest.mark.parametrize("ended, cls", [
    (operation("failed", error={"code": "not-found", "message": "gone"}), NotFound),
    (operation("cancelled"), Cancelled)])
def test_an_operation_ends_badly(ended, cls, server, client):
    server.script[:] = [(202, {"operation": operation("running")}), (200, ended)]
    with pytest.raises(cls):
        client.ensure("server", "x", {})


def test_a_forgotten_operation_is_asked_anew(server, client):
    server.script[:] = [(202, {"operation": operation("running")}), (404, failure("not-found")),
                        (200, {"changed": True})]
    assert client.ensure("server", "x", {})["changed"]
    assert [method for method, *_rest in server.seen] == ["PUT", "GET", "PUT"]


def test_time_is_up(server, client):
    server.script[:] = [(202, {"operation": operation("running")})] + [(200, operation("running"))] * 99
    with pytest.raises(TimedOut, match=r"Operation op is still running \(copy\) at 1 of 2 bytes.*Run the task again"):
        client.ensure("server", "x", {}, timeout=0.3)


def test_no_waiting(server, client):
    server.script[:] = [(202, {"operation": operation("running"), "request_id": "req-1"})]
    assert client.ensure("server", "x", {}, wait=False)["operation"]["id"] == "op"
    assert len(server.seen) == 1


def test_an_event_keeps_its_id(server, client):
    server.script[:] = [(503, failure("hypervisor-down")), (200, {"done": True})]
    client.event("server", "x", "reboot", {"type": "soft"})
    ids = {json.loads(body)["request_id"] for _method, _path, body, _headers in server.seen}
    assert len(server.seen) == 2 and len(ids) == 1


def test_an_upload_that_is_one_too_many_comes_again_from_its_beginning(server, client, tmp_path):
    (tmp_path / "disk").write_bytes(b"content")
    full = {"error": dict(BUSY[1]["error"], code="unavailable")}
    server.script = [BUSY, (503, full), (200, {"changed": True})]
    assert client.upload("image", "debian", tmp_path / "disk")["changed"]
    assert [body for _method, _path, body, _headers in server.seen] == [b"content"] * 3


def test_upload(server, client, tmp_path):
    path, seen = tmp_path / "f", []
    path.write_bytes(b"x" * 3_000_000)
    server.script[:] = [(200, {"changed": True})]
    client.upload("image", "x", path, progress=seen.append)
    assert len(server.seen[0][2]) == 3_000_000 and server.seen[0][1].startswith("/v1/image/x/data")
    assert seen[-1] == {"phase": "upload", "done": 3_000_000, "total": 3_000_000, "unit": "bytes"}
    with pytest.raises(InvalidField, match="filename"):
        client.upload("image", "x", tmp_path / "missing")


@pytest.mark.parametrize("endpoint", [
    "http://localhost", "ftp://x", "unix://relative", "https://", "https://h:99999", "https://h/path", "/run/x.sock"])
def test_endpoints_that_are_refused(endpoint):
    with pytest.raises(InvalidField, match="endpoint"):
        Client(endpoint)


def test_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_FOR", 0.3)
    with pytest.raises(Unreachable, match="no such socket.*systemctl status magnetar-agent"):
        Client(f"unix://{tmp_path}/none").info()
    with pytest.raises(Unreachable, match="refused"):
        Client("https://127.0.0.1:1", connect_timeout=1).info()
    with pytest.raises(InvalidField, match="ca_cert"):
        Client("https://127.0.0.1:1", ca_cert="/missing").info()


def test_import_is_light():
    code = ("import sys; before = set(sys.modules); import magnetar_core.http.client; "
            "print(' '.join(sorted(set(sys.modules) - before)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(p for p in sys.path if p)})
    assert not {"ssl", "http.client", "email", "ansible"} & set(done.stdout.split())
    assert Path(client_module.__file__).name == "client.py"
