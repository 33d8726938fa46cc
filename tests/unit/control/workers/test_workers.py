# SPDX-License-Identifier: GPL-3.0-or-later
"""Several API processes on one port: clients notice nothing of it, nor of one that dies."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from magnetar_control.services.identity.login_failures import failure_keys
from magnetar_control.services.identity.tables import login_failures
from magnetar_control.store.engine.database import Database
from tests.support.control.cloud import Caller, Reply
from tests.support.ports import free_port
from tests.support.waiting import eventually

#: A public key of SSH.
KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)).decode()
RUN = "import sys; from magnetar_core.commands import main; sys.exit(main(sys.argv[1:]))"


class Service:
    """``magnetar api`` with two API processes, as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.health = folder, free_port(), free_port()
        self.write_settings()
        self.process = self.start()
        eventually(self.answers, passing=(OSError,))
        self.admin = self.login()

    def write_settings(self, **more: object) -> None:
        (self.folder / "api.yml").write_text(json.dumps({
            "state_dir": str(self.folder / "state"), "listen": f"127.0.0.1:{self.port}", "api_workers": 2,
            "health_listen": f"127.0.0.1:{self.health}", **more}))

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-c", RUN, "api", "--config", str(self.folder / "api.yml")],
                                    stdout=log, stderr=log)

    def answers(self) -> bool:
        return Caller(self.port).get("/healthz").status == 200

    def login(self) -> Caller:
        text = (self.folder / "state" / "clouds.yaml").read_text()
        reply = self.try_login("admin", re.findall(r"password: (\S+)", text)[0].strip("'\""))
        assert reply.status == 201, reply
        return Caller(self.port, reply.headers["x-subject-token"])

    def try_login(self, user: str, password: str) -> Reply:
        domain = {"id": "default"}
        return Caller(self.port).post("/identity/v3/auth/tokens", {"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": user, "domain": domain, "password": password}}},
            "scope": {"project": {"name": "admin", "domain": domain}}}})

    def workers(self) -> list[int]:
        """The ids of the API processes."""
        return [int(id) for id in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
                ] or [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat")
                      if _parent(path) == self.process.pid]

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(120)


def _parent(path: Path) -> int:
    try:
        return int(path.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.process.terminate()
            try:
                service.process.wait(120)
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait()


def ready(service: Service) -> bool:
    """Whether both processes serve."""
    return all(f'process_cpu_seconds_total{{worker="{name}"}}' in service.metrics() for name in ("1", "2", "main"))


def answered_by(service: Service) -> dict[str, float]:
    """How many requests for the version list each API process has answered."""
    return {worker: float(count) for worker, count in re.findall(
        r'magnetar_requests_total\{method="GET",route="",service="",status="200",worker="(\d)"\} ([\d.]+)',
        service.metrics())}


def test_both_answer_on_one_port_and_each_tells_of_all(service: Service) -> None:
    eventually(lambda: ready(service))

    def both() -> bool:
        assert Caller(service.port).get("/").status == 200
        return set(answered_by(service)) == {"1", "2"}

    eventually(both)
    text = service.admin.get("/metrics").content.decode()
    assert text.count("# HELP magnetar_requests_total") == 1 and 'worker="main"' in text
    assert set(re.findall(r'magnetar_consoles\{worker="(\w+)"\}', text)) == {"1", "2"}
    assert text.count("magnetar_database_up 1.0") == 1


def test_what_one_has_been_told_holds_for_the_others(service: Service) -> None:
    """The wait after failed logins is in the store."""
    database = Database(f"sqlite:///{service.folder}/state/api.db")
    with database.write() as connection:
        connection.execute(insert(login_failures), {"key": failure_keys("nobody", "127.0.0.1")[0], "failures": 30,
                                                    "last_at": time.time()})
    database.close()
    before = answered_by(service)
    for _time in range(16):
        assert service.try_login("nobody", "wrong").status == 429
        assert Caller(service.port).get("/").status == 200
    assert before != answered_by(service)


def test_an_operation_is_found_whoever_has_it(service: Service) -> None:
    def begun() -> str | None:
        name = f"key{time.monotonic_ns()}"
        reply = service.admin.put(f"/v1/keypair/{name}?wait=0", {"public_key": KEY})
        assert reply.status in (200, 202), reply
        return reply.json["operation"]["id"] if reply.status == 202 else None

    ids = {eventually(begun) for _time in range(4)}
    for _time in range(8):
        for id in ids:
            assert service.admin.get(f"/v1/operations/{id}?wait=1").json["id"] == id
        assert ids <= {operation["id"] for operation in service.admin.get("/v1/operations").json["operations"]}
    assert service.admin.get("/v1/operations/none").status == 404


def test_nobody_else_gets_the_pages_of_the_processes(service: Service) -> None:
    for headers in ({}, {"X-Magnetar-Worker": "wrong"}, {"X-Magnetar-Worker": "\xff"}):
        assert service.admin.call("GET", "/worker/metrics", headers=headers).status == 404


def test_one_that_is_killed_is_replaced_and_clients_go_on(service: Service) -> None:
    killed, *others = service.workers()
    os.kill(killed, signal.SIGKILL)
    for _time in range(12):
        assert service.answers()
    workers = eventually(lambda: len(found := service.workers()) == 2 and found)
    assert killed not in workers and set(others) <= set(workers)
    assert "has ended with status -9; a new one starts" in service.log()
    eventually(lambda: ready(service))


def test_settings_are_read_again_without_a_refused_request(service: Service) -> None:
    eventually(lambda: ready(service))
    before = service.workers()
    (service.folder / "api.yml").write_text("max_limit: many")
    service.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the settings are not read again" in service.log())
    assert service.workers() == before
    service.write_settings(max_limit=7)
    service.process.send_signal(signal.SIGHUP)

    def replaced() -> bool:
        assert service.answers()
        return not set(before) & set(service.workers())

    eventually(replaced)
    assert service.admin.get("/v2.1/flavors?limit=8").status in (200, 400)


def test_a_port_that_is_in_use_is_refused(service: Service) -> None:
    ended = subprocess.run([sys.executable, "-c", RUN, "api", "--workers", "3", "--config",
                            str(service.folder / "api.yml")], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1 and "cannot be listened on" in ended.stderr


@pytest.mark.parametrize("count", ["0", "65"])
def test_a_wrong_number_is_refused(service: Service, count: str) -> None:
    ended = subprocess.run([sys.executable, "-c", RUN, "api", "--workers", count, "--config",
                            str(service.folder / "api.yml")], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1 and "api_workers must be from 1 to 64" in ended.stderr


def test_all_end_together(service: Service) -> None:
    workers = service.workers()
    assert service.end() == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert service.log().count("Finished server process") >= 2


def test_none_is_left_when_the_process_that_keeps_them_is_killed(service: Service) -> None:
    service.process = service.start()
    workers = eventually(lambda: len(found := service.workers()) == 2 and found)
    service.process.kill()
    service.process.wait()
    eventually(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
