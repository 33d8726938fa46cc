# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud in several processes on PostgreSQL, with fake hosts: API and conductors, as roles install them on several
machines. Each process has a folder of its own, so that none depends on files that another machine would not have.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tests.support.ports import free_port
from tools import postgres as server

from .cloud import Caller, Cloud

RUN = "import sys; from magnetar_core.commands import main; sys.exit(main(sys.argv[1:]))"


class Spread(Cloud):
    """A cloud with *cells*: the names of hosts by cell. Each cell has one conductor with the cell's name."""

    def __init__(self, cluster: Path, cells: Mapping[str, tuple[str, ...]], **settings: Any) -> None:
        super().__init__(0, **settings)
        self.cluster, self.cells = cluster, cells
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def url(self, name: str) -> str:
        """Return the URL of a database of the PostgreSQL server."""
        return server.postgres_url(self.cluster, f"spread_{name}")

    def _start(self) -> None:
        import tempfile

        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cloud")))
        self._databases("api", "cell0", *self.cells)
        self._stack.callback(self._end_agents)
        self._stack.callback(self._end_processes)
        self.hosts = {name: f"unix:{self.folder}/{name}/agent.sock" for names in self.cells.values() for name in names}
        for name in self.hosts:
            self.start_agent(name)
        for name in self.hosts:
            self.wait_agent(name)
        self.port = free_port()
        self.health = {name: free_port() for name in self.cells}
        self.start("api", "api", listen=f"127.0.0.1:{self.port}")
        self._await(self.port)
        for name, names in self.cells.items():
            self.magnetar("api", "cell", "create", name, "--database-url", "-", stdin=self.url(name))
            self.conduct(name, names)
        password = yaml.safe_load((self.folder / "api/state/clouds.yaml").read_text())["clouds"]["magnetar"]["auth"]
        self.password = str(password["password"])
        self.admin = self.login("admin", self.password, "admin")
        self.admin.post("/v2.1/flavors", {"flavor": {"name": "tiny", "vcpus": 1, "ram": 64, "disk": 0, "id": "1"}})
        self._until(lambda: self.healthz(self.port)["hosts"]["up"] == len(self.hosts), "the hosts are up")
        self._until(lambda: all(self.healthz(port).get("conductor", {}).get("sees_hosts") == len(self.hosts)
                                for port in self.health.values()), "all conductors see all hosts")

    def _databases(self, *names: str) -> None:
        with psycopg.connect(host=str(self.cluster), user=server.USER, dbname="postgres", autocommit=True) as one:
            for name in names:
                one.execute(f"DROP DATABASE IF EXISTS spread_{name} WITH (FORCE)")
                one.execute(f"CREATE DATABASE spread_{name}")

    def configure(self, name: str, **settings: Any) -> Path:
        """Write the settings file of a process, and return it."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        path = folder / "control.yml"
        path.write_text(json.dumps({
            "state_dir": str(folder / "state"), "database_url": self.url("api"), "cell0_database_url":
            self.url("cell0"), "reserved_host_memory_mb": 0, "heartbeat": 1.0, "quota_instances": -1,
            "quota_cores": -1, "quota_ram": -1, "host_down_after": 8.0, **self.settings, **settings}))
        return path

    def start(self, name: str, command: str, **settings: Any) -> None:
        """Start a process, and store it under *name*."""
        path = self.configure(name, **settings)
        with (path.parent / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen([sys.executable, "-c", RUN, command, "--config", path], stdout=log,
                                                    stderr=log, stdin=subprocess.DEVNULL, env=self.environment(name))

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process, with the PYTHONPATH of its release if it has one (*trees*)."""
        return {**os.environ, **({"PYTHONPATH": str(self.trees[name])} if name in self.trees else {})}

    def conduct(self, name: str, hosts: tuple[str, ...]) -> None:
        """Start the conductor of a cell."""
        self.start(name, "conductor", cell=name, conductor_name=name, hosts={host: self.hosts[host] for host in hosts},
                   image_url=f"http://127.0.0.1:{self.port}/image", health_listen=f"127.0.0.1:{self.health[name]}")

    def end(self, name: str, number: int = signal.SIGTERM) -> float:
        """End a process with a signal; return the seconds until it has ended."""
        process, began = self.processes.pop(name), time.monotonic()
        process.send_signal(number)
        process.wait(60)
        return time.monotonic() - began

    def magnetar(self, name: str, *words: str, stdin: str = "") -> str:
        """Return the output of a command of ``magnetar`` with the settings of a process."""
        done = subprocess.run([sys.executable, "-c", RUN, *words, "--config", self.folder / name / "control.yml"],
                              check=False, text=True, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=self.environment(name))
        assert done.returncode == 0, done.stdout
        return done.stdout

    def log(self, name: str) -> list[dict[str, Any]]:
        """Return the lines in the log of a process or an agent."""
        text = (self.folder / name / "log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def healthz(self, port: int) -> Any:
        """Return the answer of ``/healthz`` at a port."""
        with contextlib.suppress(OSError), urllib.request.urlopen(
                f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return json.loads(answer.read())
        return {"status": "away", "hosts": {"up": -1}}

    def _await(self, port: int) -> None:
        self._until(lambda: Caller(port).get("/healthz").status == 200, "the API answers")

    def _until(self, ready: Any, what: str, limit: float = 180.0) -> None:
        deadline = time.monotonic() + limit
        while True:
            with contextlib.suppress(OSError):
                if ready():
                    return
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            logs = {name: (self.folder / name / "log").read_text()[-3000:] for name in self.processes}
            assert not ended and time.monotonic() < deadline, f"{what}: ended {ended}; {logs}"
            time.sleep(0.05)

    def _end_processes(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
