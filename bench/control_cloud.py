# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud for measurements: ``magnetar serve`` in a process of its own, agents with fake hosts, any database."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg
import yaml
from control_client import Wire, request
from sqlalchemy import func, insert, select

from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import actions, flavors, server_mappings, servers
from magnetar_core.http.client import Client

CLIENT = Path(__file__).with_name("control_client.py")
#: Runs an agent whose imaginary host has the name of the first argument.
AGENT = ("import functools, socket, sys; from magnetar_agent import fake; name = sys.argv.pop(1); "
         "fake.FakeHypervisor = functools.partial(fake.FakeHypervisor, name=name); socket.gethostname = lambda: name; "
         "from magnetar_agent.cli import main; sys.exit(main(sys.argv[1:]))")
#: Runs the command ``magnetar``.
MAGNETAR = (sys.executable, "-c", "import sys; from magnetar_core.commands import main; sys.exit(main())")
#: Seconds after which the server may have closed a connection that nobody used.
IDLE = 2.0
FREE_PORT = ("import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
#: Number of flavors in lists of flavors.
FLAVORS = 10
#: Settings to the names of databases; nobody uses the last one.
NAMES = {"database_url": "api", "cell0_database_url": "cell0", "cell_database_url": "cell1", "spare": "spare"}
NO_LIMITS = dict.fromkeys(("quota_instances", "quota_cores", "quota_ram", "quota_ports"), -1)


class Cloud:
    """A running cloud. *kind*: ``sqlite`` or ``postgresql``. *workers*: number of API processes. ``project`` creates
    projects with many servers."""

    #: The content and format of the servers' image, and the flavor's size.
    image_content, image_format = b"\0" * 65536, "raw"
    size: Mapping[str, int] = {"vcpus": 1, "ram": 64}
    #: Further settings of the control plane.
    more: Mapping[str, Any] = {}

    def __init__(self, kind: str, hosts: int = 2, workers: int = 1) -> None:
        self.kind, self.count, self.workers, self.drawn = kind, hosts, workers, 0
        #: Project id by the token that ``project`` has returned.
        self.projects: dict[str, str] = {}
        #: Project name by token.
        self.named: dict[str, str] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
            self.urls = stack.enter_context(databases(self.kind, self.folder))
            self.agents = self._agents(stack)
            self._await(lambda: all(path.exists() for path in self.agents.values()), "the agents")
            self._serve(stack)
            self._set_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        for database in (self.cell0, self.cell, self.api):
            database.close()
        self._stack.close()

    def _agents(self, stack: contextlib.ExitStack) -> dict[str, Path]:
        """Start the agents of the hosts, which *stack* ends; return their sockets by host name."""
        agents = {f"kvm{at + 1}": self.folder / f"kvm{at + 1}" / "agent.sock" for at in range(self.count)}
        for name, path in agents.items():
            stack.enter_context(self._process(name, [sys.executable, "-c", AGENT, name, "agent", "--fake",
                                                     "--state-dir", path.parent, "--socket", path]))
        return agents

    def _serve(self, stack: contextlib.ExitStack) -> None:
        self.port = int(subprocess.check_output([sys.executable, "-c", FREE_PORT]))
        state = self.folder / "control"
        settings = self.folder / "control.yml"
        settings.write_text(yaml.safe_dump({
            "state_dir": str(state), "listen": f"127.0.0.1:{self.port}", **NO_LIMITS,
            "hosts": {name: f"unix:{path}" for name, path in self.agents.items()}, "reserved_host_memory_mb": 0,
            "cpu_allocation_ratio": 1000.0, "ram_allocation_ratio": 100.0, "api_workers": self.workers, **self.more, **{
                name: url for name, url in self.urls.items() if name != "spare"}}))
        self.process = stack.enter_context(self._process("serve", [*MAGNETAR, "serve", "--config", settings]))
        self._await(self._answers, "magnetar serve")
        self.password = re.findall(r"password: (\S+)", (state / "clouds.yaml").read_text())[0].strip("'\"")

    @contextlib.contextmanager
    def _process(self, name: str, words: Sequence[Any]) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{name}.log").open("wb") as log, subprocess.Popen(
                list(map(str, words)), stdout=log, stderr=log) as process:
            self.processes[name] = process
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _await(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + 180
        while not done():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise SystemExit(f"{what} did not come up:\n{logs}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return Wire(self.port).ask("GET", "/healthz").status == 200
        except OSError:
            return False

    def _set_up(self) -> None:
        self.api, self.cell0, self.cell = (
            Database(self.urls.get(setting) or f"sqlite:///{self.folder}/control/{name}.db", name)
            for setting, name in NAMES.items() if name != "spare")
        with self.api.write() as connection:
            connection.execute(insert(flavors), [
                {**self.size, "id": str(at), "name": f"size{at}", "created_at": utc_now()} for at in range(FLAVORS)])
        self.wire = Wire(self.port)
        self.token = self.login("admin")
        image = self.ask("POST", "/image/v2/images", {
            "name": "bench", "disk_format": self.image_format, "visibility": "public",
            "container_format": "bare"})["id"]
        content = self.image_content
        text = request("PUT", f"/image/v2/images/{image}/file", self.token)
        wire = Wire(self.port)
        wire.send(text.replace("\r\n\r\n", f"\r\nContent-Type: application/octet-stream\r\nContent-Length: "
                                           f"{len(content)}\r\n\r\n").encode() + content)
        while not wire.read():
            pass
        self.image = image
        self._await(lambda: len([one for one in self.ask("GET", "/v2.1/os-services?binary=nova-compute")["services"]
                                 if one["state"] == "up"]) == self.count, "the hosts")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request as admin, and return the document of the answer. End the program when the request fails."""
        if time.perf_counter() - self.wire.began > IDLE:
            self.wire = Wire(self.port)
        reply = self.wire.ask(method, path, self.token, body)
        if reply.status >= 400:
            raise SystemExit(f"{method} {path}: {reply.held[:500]!r}")
        return reply.json

    def login(self, project: str) -> str:
        """Return a token of admin for the project named *project*."""
        domain = {"id": "default"}
        reply = Wire(self.port).ask("POST", "/identity/v3/auth/tokens", "", {"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": "admin", "domain": domain, "password": self.password}}},
            "scope": {"project": {"name": project, "domain": domain}}}})
        if reply.status != 201:
            raise SystemExit(f"login failed: {reply.held[:500]!r}")
        token = reply.headers["x-subject-token"]
        self.named[token] = project
        return token

    def want(self, name: str) -> dict[str, Any]:
        """Return the body of POST /servers for a server *name*."""
        return {"server": {"name": name, "flavorRef": "1", "imageRef": self.image, "networks": "auto"}}

    def made(self, name: str) -> str:
        """Create a server, wait until it is active, and return its id."""
        id = self.ask("POST", "/v2.1/servers", self.want(name))["server"]["id"]
        self._await(lambda: self.state(id) == "ACTIVE", "a server")
        return str(id)

    def state(self, id: str) -> str:
        """Return the status of a server. End the program when the status is ERROR."""
        found = self.ask("GET", f"/v2.1/servers/{id}")["server"]
        if found["status"] == "ERROR":
            raise SystemExit(f"a server is in error: {found.get('fault', {}).get('message')}")
        return str(found["status"])

    def project(self, count: int, like: str) -> str:
        """Create a project with *count* servers, whose rows are copies of the row of the server *like*; return a token
        for it."""
        token = self.empty_project(f"bench-{count}-{uuid.uuid4().hex[:4]}")
        project = self.projects[token]
        with self.cell.read() as connection:
            row = dict(connection.execute(select(servers).where(servers.c.id == like)).mappings().one())
        rows = [{**row, "id": str(uuid.uuid4()), "name": f"server{at}", "project_id": project,
                 "created_at": f"2026-11-21T00:{at // 60 % 60:02}:{at % 60:02}.{at:06}"} for at in range(count)]
        with self.cell.write() as connection:
            connection.execute(insert(servers), rows)
        with self.api.write() as connection:
            connection.execute(insert(server_mappings), [
                {"server_id": one["id"], "cell_id": self._cell_id(like), "project_id": project} for one in rows])
        return token

    def empty_project(self, name: str) -> str:
        """Create a project in which admin has the role admin; return a token for it."""
        project = self.ask("POST", "/identity/v3/projects", {"project": {"name": name}})["project"]["id"]
        user = self.ask("GET", "/identity/v3/users?name=admin")["users"][0]["id"]
        role = self.ask("GET", "/identity/v3/roles?name=admin")["roles"][0]["id"]
        self.ask("PUT", f"/identity/v3/projects/{project}/users/{user}/roles/{role}")
        token = self.login(name)
        self.projects[token] = str(project)
        return token

    def spare_url(self) -> str:
        """Return the URL of a database of the same engine that nothing else uses."""
        return self.urls.get("spare") or f"sqlite:///{self.folder}/spare.db"

    def has_image(self, agent: Path) -> bool:
        """Return whether the host of this *agent* has an image, which the cloud sends to the host with its first
        server."""
        with Client(f"unix:{agent}") as client:
            return any(True for _image in client.list("image"))

    def host_with_image(self) -> Path:
        """Return the socket of an agent whose host has the image already, and so everything else that a server needs.
        """
        return next(path for path in self.agents.values() if self.has_image(path))

    def _cell_id(self, server: str) -> str:
        with self.api.read() as connection:
            return str(connection.execute(select(server_mappings.c.cell_id).where(
                server_mappings.c.server_id == server)).scalar_one())

    def served_by(self) -> list[int]:
        """Return the pids of the server: its first process, and the API processes that this one starts."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if self.workers > 1 else []
        return [pid, *map(int, children)]

    def cpu(self) -> float:
        """Return the CPU seconds that the server's processes have used since their start."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self.served_by())

    def rss(self) -> float:
        """Return the resident memory of the server's processes in MiB."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.served_by()]
        return sum(int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) for text in texts) / 1024

    def load(self, requests: Sequence[str], clients: int, count: int) -> dict[str, Any]:
        """Call ``control_client.load`` with these arguments, and return its measurements. Add ``cpu``, the server's CPU
        milliseconds for each request."""
        given = json.dumps({"port": self.port, "requests": list(requests), "clients": clients, "count": count})
        before = self.cpu()
        found: dict[str, Any] = json.loads(subprocess.run([sys.executable, "-S", CLIENT], input=given, check=True,
                                                          stdout=subprocess.PIPE, text=True).stdout)
        found["cpu"] = (self.cpu() - before) * 1000 / count
        if any(int(status) >= 400 for status in found["statuses"]):
            raise SystemExit(f"{requests[0][:80]!r}: {found['statuses']}")
        return found

    def busy(self) -> int:
        """Return the number of actions on servers that are queued or running."""
        busy = 0
        for database in (self.cell0, self.cell):
            with database.read() as connection:
                busy += connection.execute(select(func.count()).select_from(actions).where(
                    actions.c.state.in_(("queued", "running")))).scalar_one()
        return busy


@contextlib.contextmanager
def databases(kind: str, _folder: Path) -> Iterator[dict[str, str]]:
    """Yield the settings of the databases. PostgreSQL runs until the context ends, with its default durability."""
    if kind == "sqlite":
        yield {}
        return
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    from tools import postgres

    with postgres.postgres_cluster(()) as folder:
        with psycopg.connect(host=str(folder), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
            for name in NAMES.values():
                connection.execute(f"CREATE DATABASE {name}")
        yield {setting: postgres.postgres_url(folder, name) for setting, name in NAMES.items()}
