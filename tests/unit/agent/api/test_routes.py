# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP face over a real unix socket: answers, errors, lists, waiting, operations and streams."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request

from magnetar_agent.api import serve
from magnetar_agent.api.app import REQUEST_ID, AgentApplication, decode_path, handle_unknown_route
from magnetar_agent.api.streams import tail_console_log
from magnetar_agent.reconcile import reconcile
from magnetar_agent.reconcile.documents import CLOUD, Documents
from magnetar_control.agents import Agents
from magnetar_core.errors import HypervisorError, InvalidRequest, NotFound
from magnetar_core.http.client import Client as Core
from tests.support.agent.serving import Client, Unix, served
from tests.support.agent.volume import image
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases" / "http" / "errors.yml").read_text())
SMALL = {"vcpus": 1, "ram": 64}


@pytest.fixture
def client(host: Any, tmp_path: Path) -> Iterator[Client]:
    """A client of the host's agent."""
    where = tmp_path / "agent.sock"
    with served(host.agent, serve.unix_socket(where, "no-such-group")):
        found = Client(Unix(where))
        yield found
        found.connection.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['method']} {case['path']} {case['code']}")
def test_failures(client: Client, case: dict[str, Any]) -> None:
    content = case["raw"] if "raw" in case else json.dumps(case["body"]) if "body" in case else None
    status, answer = client.raw(case["method"], case["path"], content)
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (case["status"], case["code"])
    assert case["says"] in error["message"]
    assert error["request_id"] == client.headers["x-request-id"]
    assert client.call("GET", "/v1/flavor") == (200, {"flavors": []})


def test_servers_of_a_cloud_are_known(client: Client, host: Any, tmp_path: Path) -> None:
    """Whoever asks as a cloud does marks what is made, also after a restart of the agent; drain.yml looks there."""
    with contextlib.closing(Agents().make(f"unix://{tmp_path}/agent.sock")) as cloud:
        cloud.ensure("server", "c1", {"flavor": SMALL, "image": None})
    client.call("PUT", "/v1/server/web1", {"flavor": SMALL, "image": None})
    seen = client.call("GET", "/v1/host")[1]
    assert (seen["servers"], seen["cloud_servers"]) == (2, 1)
    again = Documents(host.agent.host.settings.state_dir)
    assert {one.name: CLOUD in one.state for one in again.list("server")} == {"c1": True, "web1": False}


def test_root_host_and_health(client: Client, host: Any) -> None:
    status, root = client.call("GET", "/v1")
    assert status == 200 and root["api"] == 1 and "server" in root["kinds"]
    assert client.call("GET", "/v1/host")[1]["connected"] is True
    assert client.call("GET", "/healthz") == (200, {"status": "ok", "libvirt": True})


def test_request_ids(client: Client) -> None:
    given = "req-8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    client.call("GET", "/v1", X_Request_Id=given)
    assert client.headers["x-request-id"] == given
    client.call("GET", "/v1", X_Request_Id="mine; DROP")
    assert REQUEST_ID.fullmatch(client.headers["x-request-id"])


def test_ensure_show_remove(client: Client) -> None:
    status, dry = client.call("PUT", "/v1/flavor/f?dry_run=true", SMALL)
    assert status == 200 and dry["changed"] and client.call("GET", "/v1/flavor")[1] == {"flavors": []}
    made = client.call("PUT", "/v1/flavor/f", SMALL)[1]
    assert made["changed"] and made["warnings"] == [] and made["resource"]["ram"] == 64 and made["request_id"]
    again = client.call("PUT", "/v1/flavor/f", SMALL)[1]
    assert (again["changed"], again["steps"], again["diff"]) == (False, [], [])
    assert client.call("GET", "/v1/flavor/f")[1] == made["resource"]
    assert client.call("DELETE", "/v1/flavor/f")[1]["changed"] is True
    assert client.call("DELETE", "/v1/flavor/f")[1]["changed"] is False


def test_names_with_slashes_and_letters(client: Client) -> None:
    for name, quoted in (("a/b", "a%2Fb"), ("ä b", "%C3%A4%20b"), ("50%2F", "50%252F")):
        assert client.call("PUT", f"/v1/flavor/{quoted}", SMALL)[1]["resource"]["name"] == name
        assert client.call("GET", f"/v1/flavor/{quoted}")[1]["name"] == name


@pytest.mark.parametrize("status", [404, 405])
def test_what_is_unknown_has_any_query(client: Client, host: Any, status: int) -> None:
    """h11 takes ASCII only; other servers hand over any bytes."""
    scope = {"type": "http", "method": "POST", "path": "/v1/server", "query_string": b"\xff", "headers": [],
             "app": AgentApplication(host.agent).api, "state": {"request_id": "req-1"}}
    answer = asyncio.run(handle_unknown_route(Request(scope), HTTPException(status)))
    assert answer.status_code == status and b"/v1/server" in bytes(answer.body)


def test_path_of_the_front() -> None:
    assert decode_path({"path": "/v1/x/a/b", "raw_path": b"/v1/x/a%2Fb"}) == "/v1/x/a\x00b"
    with pytest.raises(InvalidRequest):
        decode_path({"path": "/v1/x/\x00", "raw_path": b"/v1/x/%00"})


def test_lists(client: Client) -> None:
    for ram, name in ((64, "b"), (32, "a"), (64, "c")):
        client.call("PUT", f"/v1/flavor/{name}", {"vcpus": 1, "ram": ram})

    def names(query: str) -> list[str]:
        status, found = client.call("GET", f"/v1/flavor{query}")
        assert status == 200, found
        return [item["name"] for item in found["flavors"]]

    assert names("") == ["a", "b", "c"]
    assert names("?ram=64") == ["b", "c"]
    assert names("?name=b") == ["b"]
    assert names("?sort=-ram,-name") == ["c", "b", "a"]
    assert names("?limit=2") == ["a", "b"]
    assert names("?marker=a&limit=1") == ["b"]
    assert client.call("GET", "/v1/flavor?fields=name,ram&name=a")[1] == {"flavors": [{"name": "a", "ram": 32}]}


def test_lists_are_filtered_by_references_and_words(client: Client, host: Any) -> None:
    small = {"vcpus": 1, "ram": 64}
    image(host, "disk")
    for name, more in (("a", {"image": "disk"}), ("b", {"power": "off"}), ("c", {"power": "paused", "image": "disk"})):
        host.server(name, flavor=small, **more)
    uuid = host.show("a")["image"]["id"]
    for query, names in ((f"image={uuid}", "ac"), ("image=disk", "ac"), ("image=other", ""), ("status=ACTIVE", "a"),
                         ("status=ACTIVE,SHUTOFF", "ab"), ("status=ACTIVE,PAUSED&image=disk", "ac"),
                         ("power=off, running", "ab"), ("config_drive=true", "abc"), ("config_drive=false", "")):
        status, found = client.call("GET", f"/v1/server?{query.replace(' ', '%20')}")
        assert (status, "".join(one["name"] for one in found["servers"])) == (200, names), query


def test_batch(client: Client) -> None:
    items = [{"key": "a", "want": SMALL}, {"key": "b", "want": {"vcpus": 0, "ram": 1}}, {"key": "c", "want": None}]
    status, answer = client.call("PUT", "/v1/flavor", items)
    results = answer["results"]
    assert status == 200 and [item["key"] for item in results] == ["a", "b", "c"]
    assert results[0]["changed"] and results[1]["error"]["code"] == "invalid-field" and not results[2]["changed"]


def test_body_limit(client: Client, host: Any) -> None:
    status, answer = client.call("PUT", "/v1/flavor", ["x" * (host.agent.host.settings.body_max_bytes + 1)])
    assert (status, answer["error"]["code"]) == (413, "too-large")


def test_deep_nesting(client: Client) -> None:
    for content in ("[" * 200_000, "[" * 101 + "]" * 101):
        status, answer = client.raw("PUT", "/v1/flavor/f", content)
        assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid-request")


def test_waiting_and_operations(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    ensure = reconcile.ensure_resource
    monkeypatch.setattr(reconcile, "ensure_resource", lambda *args: (go.wait(120), ensure(*args))[1])
    status, answer = client.call("PUT", "/v1/flavor/f?wait=0.05", SMALL)
    where = client.headers["location"]
    assert status == 202 and where == f"/v1/operations/{answer['operation']['id']}"
    assert client.call("GET", where)[1]["status"] == "running"
    assert client.call("GET", "/v1/operations?status=running")[1]["operations"][0]["key"] == "f"
    go.set()
    ended = client.call("GET", f"{where}?wait=5")[1]
    assert ended["status"] == "succeeded" and ended["result"]["changed"] is True
    status, refused = client.call("DELETE", where)
    assert (status, refused["error"]["code"]) == (409, "conflict")


def test_cancel(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: Any) -> Any:
        while True:
            args[-1].raise_if_cancelled()
            time.sleep(0.01)

    monkeypatch.setattr(reconcile, "ensure_resource", slow)
    where = "/v1/operations/" + client.call("PUT", "/v1/flavor/f?wait=0", SMALL)[1]["operation"]["id"]
    assert client.call("DELETE", where)[0] == 202
    ended = client.call("GET", f"{where}?wait=5")[1]
    assert (ended["status"], ended["error"]["code"]) == ("cancelled", "cancelled")


def test_unexpected_failures_show_no_trace(client: Client, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a secret detail")

    calls: list[Any] = [("ensure_resource", "PUT", "/v1/flavor/f", SMALL), ("list_resources", "GET", "/v1/flavor", ...)]
    for name, method, where, body in calls:
        monkeypatch.setattr(reconcile, name, broken)
        status, answer = client.call(method, where, body)
        assert (status, answer["error"]["code"]) == (500, "internal")
        assert "secret" not in json.dumps(answer)
    deadline = time.monotonic() + 120  # the log line of the second follows its answer
    while caplog.text.count("RuntimeError: a secret detail") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert caplog.text.count("RuntimeError: a secret detail") == 2


def test_audit_has_one_line_per_change_and_no_secrets(client: Client, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "magnetar.audit")
    client.call("PUT", "/v1/flavor/f?dry_run=true", SMALL)
    client.call("PUT", "/v1/server/s", {"flavor": SMALL, "image": None, "user_data": "c2VjcmV0"})
    lines = [record for record in caplog.records if record.name == "magnetar.audit"]
    assert [(line.what, line.kind, line.key, line.result, line.changed) for line in lines] == [
        ("ensure", "server", "s", "succeeded", True)]
    assert lines[0].caller == "root" or lines[0].caller
    assert "c2VjcmV0" not in str(vars(lines[0]))


def test_no_log_and_no_operation_has_a_secret(client: Client, caplog: Any) -> None:
    """Neither one that is taken nor one that is refused."""
    caplog.set_level(logging.DEBUG)
    key, many = "0123456789abcdef" * 4, [{"key": "d", "want": {"size": 1, "format": "luks", "key": "hunter2"}}]
    server = {"flavor": SMALL, "image": None, "admin_pass": "hunter2"}
    assert client.call("PUT", "/v1/volume/a", {"size": 1, "format": "luks", "key": key})[0] == 200
    assert client.call("PUT", "/v1/server/s", server)[0] == 200
    for where, want in (("volume/b", {"size": 1, "format": "luks", "key": "hunter2" + key[:57]}),
                        ("volume/c", {"size": 1, "key": key}), ("server/t", {**server, "admin_pass": ["hunter2"]}),
                        ("server/t", {**server, "user_data": "hunter2 ?"})):
        status, answer = client.call("PUT", f"/v1/{where}", want)
        assert status == 400 and key not in str(answer) and "hunter2" not in str(answer), answer
    assert "hunter2" not in str(client.call("PUT", "/v1/volume", many))
    told = str([vars(record) for record in caplog.records]) + str(client.call("GET", "/v1/operations"))
    assert "hunter2" not in told and key not in told


def test_hypervisor_failure(client: Client, host: Any) -> None:
    host.fake.fail_next("define", HypervisorError("libvirt says no"))
    status, answer = client.call("PUT", "/v1/server/s", {"flavor": SMALL, "image": None})
    assert (status, answer["error"]["code"], answer["error"]["message"]) == (500, "hypervisor-error", "libvirt says no")


def test_upload(client: Client) -> None:
    content = os.urandom(3 * 2**20)
    want = {"source": {"upload": True}, "disk_format": "raw",
            "checksum": "sha256:" + hashlib.sha256(content).hexdigest()}
    assert client.call("PUT", "/v1/image/i", want)[1]["resource"]["status"] == "queued"
    status, answer = client.raw("PUT", "/v1/image/i/data", content)
    assert status == 200, answer
    assert json.loads(answer)["resource"]["status"] == "active"
    assert client.call("GET", "/v1/image/i")[1]["size"] == len(content)


def test_download(client: Client) -> None:
    content = os.urandom(2**20 + 512)
    client.call("PUT", "/v1/image/i", {"source": {"upload": True}, "disk_format": "raw"})
    assert client.raw("GET", "/v1/image/i/data")[0] == 409
    client.raw("PUT", "/v1/image/i/data", content)
    assert client.raw("GET", "/v1/image/i/data") == (200, content)
    assert client.headers["content-length"] == str(len(content))
    assert client.raw("GET", "/v1/image/none/data")[0] == 404
    assert client.raw("GET", "/v1/image/i/data?offset=1")[0] == 400


def test_a_client_receives_content(client: Client, tmp_path: Path) -> None:
    content = os.urandom(3 * 2**20 + 7 * 512)
    client.call("PUT", "/v1/image/i", {"source": {"upload": True}, "disk_format": "raw"})
    client.raw("PUT", "/v1/image/i/data", content)
    with Core(f"unix:{tmp_path}/agent.sock") as core:
        pieces, size = core.receive("image", "i")
        assert (b"".join(pieces), size) == (content, len(content))
        with pytest.raises(NotFound):
            core.receive("image", "none")


def test_upload_that_breaks_off(client: Client, tmp_path: Path) -> None:
    client.call("PUT", "/v1/image/i", {"source": {"upload": True}})
    broken = Unix(tmp_path / "agent.sock")
    broken.putrequest("PUT", "/v1/image/i/data")
    broken.putheader("Content-Length", "1000000")
    broken.endheaders(b"x" * 1000)
    broken.close()
    deadline = time.monotonic() + 120
    while not (found := client.call("GET", "/v1/operations?name=upload")[1]["operations"]) or \
            found[0]["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found[0]["status"] == "failed" and "broke off" in found[0]["error"]["message"]
    assert client.call("GET", "/v1/image/i")[1]["status"] in ("queued", "error")


def test_console(client: Client, host: Any) -> None:
    made = client.call("PUT", "/v1/server/s", {"flavor": SMALL, "image": None})[1]["resource"]
    log = Path(made["console_log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"one\ntwo\nthree\n")
    assert client.raw("GET", "/v1/server/s/console") == (200, b"one\ntwo\nthree\n")
    assert client.raw("GET", "/v1/server/s/console?lines=1")[1] == b"three\n"
    assert client.raw("GET", "/v1/server/s/console?bytes=5")[1] == b"hree\n"
    log.write_bytes(b"one\rtwo\r\nthree")
    assert client.raw("GET", "/v1/server/s/console?lines=2")[1] == b"one\rtwo\r\nthree"
    log.write_bytes(b"one\ntwo\nthree\n")
    older = log.with_name("console.log.0")
    older.touch(0o600)
    older.write_bytes(b"zero\n")
    assert client.raw("GET", "/v1/server/s/console?lines=9")[1] == b"zero\none\ntwo\nthree\n"
    log.unlink()
    log.symlink_to("/etc/passwd")
    assert client.raw("GET", "/v1/server/s/console?lines=9") == (200, b"zero\n")
    assert client.raw("GET", "/v1/server/%2E%2E%2Fx/console")[0] == 404


def test_figures(client: Client) -> None:
    client.call("PUT", "/v1/server/s", {"flavor": SMALL, "image": None})
    status, told = client.call("GET", "/v1/server/s/diagnostics")
    assert (status, told["power_state"], told["memory"]["maximum"]) == (200, "running", 64 * 1024)
    assert client.call("GET", "/v1/server/t/diagnostics")[0] == 404
    assert client.call("GET", "/v1/server/s/diagnostics?a=b")[0] == 400
    status, told = client.call("GET", "/v1/host/uptime")
    assert status == 200 and set(told) == {"time", "uptime", "users", "load_average"}
    status, load = client.call("GET", "/v1/host/load")
    assert status == 200 and load["cpus"] >= 1 and load["memory_mb"] > load["memory_mb_used"] > 0
    [server] = load["servers"]
    assert (server["cpus_used"], server["memory_mb_used"]) == (None, 32)
    assert client.call("GET", "/v1/host/load?a=b")[0] == 400


def test_reach(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this host reaches another one."""
    monkeypatch.setattr("magnetar_agent.api.app.is_host_reached",
                        lambda address, port: (address, port) == ("kvm2", 6553))
    assert client.call("GET", "/v1/host/reach?address=kvm2&port=6553") == (200, {"reached": True})
    assert client.call("GET", "/v1/host/reach?address=kvm3&port=6553") == (200, {"reached": False})
    monkeypatch.undo()
    for query, field in (("", "address"), ("address=kvm2", "port"), ("address=kvm2&port=x", "port"),
                         ("address=kvm2&port=0", "port"), ("address=kvm2&port=65536", "port"),
                         ("address=&port=1", "address"), ("address=kvm2&port=1&a=b", "a")):
        status, told = client.call("GET", f"/v1/host/reach?{query}")
        assert status == 400 and told["error"]["details"]["field"] == field, (query, told)


def test_tail_of_nothing(tmp_path: Path) -> None:
    assert tail_console_log(tmp_path / "console.log", 10, None) == b""
    (tmp_path / "console.log").write_bytes(b"\xff\xfe")
    assert tail_console_log(tmp_path / "console.log", 10, 0) == b""
    assert tail_console_log(tmp_path / "console.log", 10, None).decode()


def test_metrics(client: Client) -> None:
    client.call("PUT", "/v1/server/s", {"flavor": SMALL, "image": None})
    text = client.raw("GET", "/metrics")[1].decode()
    assert re.search(r'magnetar_requests_total\{method="PUT",route="/v1/server/\{key\}",status="200"\} 1.0', text)
    assert 'magnetar_servers{state="running"} 1.0' in text
    assert "magnetar_libvirt_up 1.0" in text
    ended = 'magnetar_operations_total{name="ensure",status="succeeded"} 1.0'
    eventually(lambda: ended in client.raw("GET", "/metrics")[1].decode())  # counted after its answer


def test_clients_name_no_metrics(client: Client) -> None:
    """Each name would be kept for good: methods, paths and events are counted by those that there are."""
    for name in ("PROPFIND", "X-MINE"):
        client.raw(name, "/v1/server")
        client.raw(name, f"/v1/{name}")
        client.call("POST", "/v1/server/s/events", {"event": name})
    text = client.raw("GET", "/metrics")[1].decode()
    assert 'magnetar_requests_total{method="other"' in text
    assert "PROPFIND" not in text and "X-MINE" not in text


def test_docs(client: Client) -> None:
    document = client.call("GET", "/openapi.json")[1]
    shapes = document["components"]["schemas"]
    assert "/v1/server/{key}" in document["paths"] and "user_data" in shapes["ServerWanted"]["properties"]
    assert "user_data" not in shapes["Server"]["properties"]
    status, page = client.raw("GET", "/docs")
    assert status == 200 and b"/v1/image/{key}/data" in page and b"<script" not in page and b"http://" not in page
