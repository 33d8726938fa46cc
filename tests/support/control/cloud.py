# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole control plane in this process, with fake hosts, and an HTTP client for it.

``with Cloud(hosts=2) as cloud:`` starts agents with the fake hypervisor (a process each), and API, conductor and
services on a loopback port. ``cloud.admin`` is a ``Caller``; ``cloud.caller("user", "project", "member")`` makes
another. With ``links=True`` the agents also serve HTTPS, with certificates, and can migrate servers to each other.
*folders*: the shares that all hosts have (without links). *trees*: by host, where its agent's packages are imported
from in place of this checkout (a PYTHONPATH), such as the tree of an earlier release.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import uvicorn

from magnetar_control import serve
from magnetar_control.settings_file import make_settings
from magnetar_control.web.protocol import uvicorn_http_options
from magnetar_core.http.connections import Connections
from tests.support.http_server import started
from tests.support.ports import free_port

#: Runs an agent whose imaginary host has the name of the first argument: hosts of one name are one host to the agents.
AGENT = ("import functools, socket, sys; from magnetar_agent import fake; name = sys.argv.pop(1); "
         "fake.FakeHypervisor = functools.partial(fake.FakeHypervisor, name=name); socket.gethostname = lambda: name; "
         "from magnetar_agent.cli import main; sys.exit(main(sys.argv[1:]))")


class Reply:
    """An answer: status, headers (names in lower case), and JSON or bytes."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status, self.content = status, content
        self.headers = {name.lower(): value for name, value in headers.items()}

    @property
    def json(self) -> Any:
        return json.loads(self.content) if self.content else None

    def __repr__(self) -> str:
        return f"<{self.status} {self.content[:300]!r}>"


class Caller:
    """A user with a token. Calls return a ``Reply``; paths begin at the API's root (``/v2.1/servers``)."""

    def __init__(self, port: int, token: str | None = None, project_id: str = "", user_id: str = "") -> None:
        self.port, self.token, self.project_id, self.user_id = port, token, project_id, user_id

    def call(self, method: str, path: str, body: Any = None, version: str | None = None,
             headers: Mapping[str, str] | None = None) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Content-Type": "application/json", **({"X-Auth-Token": self.token} if self.token else {}),
                **({"OpenStack-API-Version": f"compute {version}"} if version else {}), **(headers or {})}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, sent)
        answer = connection.getresponse()
        reply = Reply(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()
        return reply

    def get(self, path: str, version: str | None = None) -> Reply:
        return self.call("GET", path, None, version)

    def post(self, path: str, body: Any = None, version: str | None = None) -> Reply:
        return self.call("POST", path, body, version)

    def put(self, path: str, body: Any = None, version: str | None = None) -> Reply:
        return self.call("PUT", path, body, version)

    def delete(self, path: str, version: str | None = None) -> Reply:
        return self.call("DELETE", path, None, version)

    def act(self, id: str, action: str, args: Any = None, version: str | None = None) -> Reply:
        """Request a server action."""
        return self.post(f"/v2.1/servers/{id}/action", {action: args}, version)

    def server(self, id: str, version: str = "2.100") -> dict[str, Any]:
        """Return the server's document."""
        found: dict[str, Any] = self.get(f"/v2.1/servers/{id}", version).json["server"]
        return found

    def settled(self, id: str, limit: float = 120.0) -> dict[str, Any] | None:
        """Wait until the server has no task_state, and return it; ``None`` when it is gone."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            reply = self.get(f"/v2.1/servers/{id}", "2.100")
            if reply.status == 404:
                return None
            server: dict[str, Any] = reply.json["server"]
            if server["OS-EXT-STS:task_state"] is None and server["status"] != "BUILD":
                return server
            time.sleep(0.01)
        raise AssertionError(f"server {id} is still {server['status']}, {server['OS-EXT-STS:task_state']}")

    def boot(self, name: str = "web1", version: str = "2.60", **more: Any) -> dict[str, Any]:
        """Create a server of the first flavor and image, wait until its work has ended, and return it."""
        body = {"name": name, "flavorRef": "1", "networks": "auto", **more}
        if "imageRef" not in body and not body.get("block_device_mapping_v2"):
            body["imageRef"] = self.image()
        reply = self.post("/v2.1/servers", {"server": body}, version)
        assert reply.status == 202, reply
        found = self.settled(reply.json["server"]["id"])
        assert found
        return found

    def flavor(self, name: str, specs: Mapping[str, str] = {}, *, vcpus: int = 1, ram: int = 64) -> str:
        """Create a flavor with this id and name, 1 GiB of disk and these extra *specs*; return its id."""
        body = {"id": name, "name": name, "ram": ram, "vcpus": vcpus, "disk": 1}
        made = self.post("/v2.1/flavors", {"flavor": body})
        assert made.status == 200, made
        if specs:
            reply = self.post(f"/v2.1/flavors/{name}/os-extra_specs", {"extra_specs": dict(specs)})
            assert reply.status == 200, reply
        return name

    def image(self, name: str = "cirros", content: bytes = b"\0" * 65536, **more: Any) -> str:
        """Return the uuid of the image *name*; create the image when it does not exist."""
        found = self.get(f"/image/v2/images?name={name}").json["images"]
        if found:
            return str(found[0]["id"])
        made = self.post("/image/v2/images", {"name": name, "disk_format": "raw", "container_format": "bare",
                                              "visibility": "shared", **more}).json
        reply = self.call("PUT", f"/image/v2/images/{made['id']}/file", content,
                          headers={"Content-Type": "application/octet-stream"})
        assert reply.status == 204, reply
        return str(made["id"])


class Cloud:
    """A running control plane with fake hosts; see the module."""

    #: The program of an agent in place of ``AGENT``; its first argument is the host's name.
    agent_program: str | None = None

    def __init__(self, hosts: int = 2, databases: Mapping[str, str] | None = None, links: bool = False,
                 folders: Mapping[str, str] | None = None, agent: Mapping[str, Any] | None = None,
                 trees: Mapping[str, Path] | None = None, **settings: Any) -> None:
        self.count, self.settings, self.databases = hosts, settings, dict(databases or {})
        self.links, self.shares, self.agent_settings = links, dict(folders or {}), dict(agent or {})
        self.trees = dict(trees or {})
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cloud")))
        names = [f"kvm{number + 1}" for number in range(self.count)]
        self.hosts = {name: f"unix:{self.folder}/{name}/agent.sock" for name in names}
        self._stack.callback(self._end_agents)
        if self.links:
            self._link()
        for name in self.hosts:
            self.start_agent(name)
        for name in self.hosts:
            self.wait_agent(name)
        self._start_control({"state_dir": str(self.folder / "control"), "novnc_dir": str(self.folder / "novnc"),
                             "spice_dir": str(self.folder / "spice"),
                             "hosts": self.hosts, "reserved_host_memory_mb": 0,
                             "heartbeat": 1.0, "quota_instances": -1, "quota_cores": -1, "quota_ram": -1,
                             **self.databases, **self.settings})

    def _start_control(self, settings_document: Mapping[str, Any]) -> None:
        """Start API, conductor and services, with a flavor, and wait until the hosts are up."""
        settings = make_settings(settings_document)
        self.parts = self._stack.enter_context(contextlib.closing(serve.Parts(settings)))
        self.parts.upgrade()
        self.services = self.parts.services()
        self.parts.bootstrap()
        self.parts.start_network_worker()
        self.parts.work(self.services)
        self.server = self.parts.server(self.services)
        self.port = self._stack.enter_context(listening(self.server))
        self.password = self.parts.bootstrapped or ""
        self.admin = self.login("admin", self.password, "admin")
        self._first_flavor()
        self._hosts_up()

    def _link(self) -> None:
        """Create certificates, ports and settings for agents that connect to each other."""
        from tests.support.agent.pki import Pki

        pki = self.pki = Pki(self.folder / "pki")
        certificate, key = pki.issue("conductor")
        self.settings = {"agent_ca_cert": str(pki.ca), "agent_client_cert": str(certificate),
                         "agent_client_key": str(key), **self.settings}
        for name in self.hosts:
            port, (certificate, key) = free_port(), pki.issue(name)
            self.hosts[name] = f"https://127.0.0.1:{port}"
            (self.folder / name).mkdir()
            (self.folder / name / "agent.yml").write_text(json.dumps({
                "listen": f"127.0.0.1:{port}", "tls_cert": str(certificate), "tls_key": str(key),
                "tls_client_ca": str(pki.ca), "client_certs": {"conductor": "operate"}, **self.agent_settings}))

    def start_agent(self, name: str) -> None:
        """Start the agent of a host."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        words = [sys.executable, "-c", self.agent_program or AGENT, name, "agent", "--fake", "--state-dir",
                 folder / "state", "--socket", folder / "agent.sock"]
        if self.links:
            words += ["--config", folder / "agent.yml"]
        more = {**({"shares": self.shares} if self.shares else {}), **({} if self.links else self.agent_settings)}
        if more:
            (folder / "more.yml").write_text(json.dumps(more))
            words += ["--config", folder / "more.yml"]
        tree = {"PYTHONPATH": str(self.trees[name])} if name in self.trees else {}
        with (folder / "log").open("ab") as log:
            self.agents[name] = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **tree})

    def wait_agent(self, name: str) -> None:
        """Wait until the agent's socket exists."""
        deadline = time.monotonic() + 120
        while not (self.folder / name / "agent.sock").exists():
            assert time.monotonic() < deadline, (self.folder / name / "log").read_text()
            time.sleep(0.02)

    def kill_agent(self, name: str) -> None:
        """Kill the agent of a host with SIGKILL."""
        process = self.agents.pop(name)
        process.kill()
        process.wait()
        (self.folder / name / "agent.sock").unlink(missing_ok=True)

    def _end_agents(self) -> None:
        for process in self.agents.values():
            process.kill()
        for process in self.agents.values():
            process.wait()

    def _hosts_up(self) -> None:
        from magnetar_control.store.hosts import hosts

        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with self.parts.api_database.read() as connection:
                rows = hosts.fetch_host_rows(connection)
            if len(rows) == self.count and all(row.memory_mb_limit for row in rows) and all(
                    self.parts.working.is_up(row.name) for row in rows):
                return
            time.sleep(0.02)
        raise AssertionError("the hosts did not come up")

    def _first_flavor(self) -> None:
        from sqlalchemy import insert

        from magnetar_control.store.engine.database import utc_now
        from magnetar_control.store.engine.tables import flavors

        with self.parts.api_database.write() as connection:
            connection.execute(insert(flavors).values(id="1", name="tiny", vcpus=1, ram=64, created_at=utc_now()))

    def login(self, user: str, password: str, project: str | None) -> Caller:
        """Return a caller who has logged in with a password."""
        scope = {"scope": {"project": {"name": project, "domain": {"id": "default"}}}} if project else {}
        reply = Caller(self.port).post("/identity/v3/auth/tokens", {"auth": {"identity": {
            "methods": ["password"], "password": {"user": {"name": user, "domain": {"id": "default"},
                                                           "password": password}}}, **scope}})
        assert reply.status == 201, reply
        token = reply.json["token"]
        return Caller(self.port, reply.headers["x-subject-token"], token.get("project", {}).get("id", ""),
                      token["user"]["id"])

    def caller(self, user: str, project: str, role: str = "member") -> Caller:
        """Return a caller: *user* with *role* in *project*. User and project are created when they do not exist."""
        admin, password = self.admin, uuid.uuid4().hex

        def made(noun: str, **body: Any) -> str:
            found = admin.get(f"/identity/v3/{noun}s?name={body['name']}").json[f"{noun}s"]
            return str(found[0]["id"] if found else admin.post(f"/identity/v3/{noun}s", {noun: body}).json[noun]["id"])

        project_id = made("project", name=project)
        user_id = made("user", name=user, password=password)
        admin.call("PATCH", f"/identity/v3/users/{user_id}", {"user": {"password": password}})
        role_id = admin.get(f"/identity/v3/roles?name={role}").json["roles"][0]["id"]
        admin.put(f"/identity/v3/projects/{project_id}/users/{user_id}/roles/{role_id}")
        return self.login(user, password, project)


@contextlib.contextmanager
def listening(server: Any, places: Connections | None = None, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve an ASGI application on a loopback port within the context."""
    with started(uvicorn.Server(uvicorn.Config(server, host="127.0.0.1", port=0, log_level="warning", lifespan="off",
                                               access_log=False,
                                               **uvicorn_http_options(places or Connections(0), tls)))) as found:
        yield found.servers[0].sockets[0].getsockname()[1]
