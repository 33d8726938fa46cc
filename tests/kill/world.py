# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of processes that can be killed: API, conductors, agents of fake hosts, on SQLite or PostgreSQL.

On SQLite it is ``magnetar serve`` and one conductor more; on PostgreSQL ``magnetar api`` and two conductors. What the
control plane keeps (on SQLite its databases, too), and the documents of the agents, may be on a small disk of their
own, which can be filled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psycopg
import yaml
from sqlalchemy import insert

from magnetar_agent.fake.journal import Journal
from magnetar_agent.fake.state import hung_file
from magnetar_control.serve import Parts
from magnetar_control.settings_file import make_settings
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import flavors
from magnetar_control.store.hosts import hosts
from tests.support.control.cloud import Caller, Cloud
from tests.support.ports import free_port
from tools import postgres

#: MiB of the small disk; whether it can be mounted.
SMALL, ROOT = 256, os.getuid() == 0
#: Runs ``magnetar``, with an audit every five seconds, so that nobody waits four minutes for what is left to it.
MAGNETAR = ("import sys; from magnetar_control.conductor.periodic import periodic; "
            "from magnetar_core.commands import main; "
            "periodic.TASKS = tuple(one._replace(every=min(one.every, 5.0)) if one.name == 'audit' else one "
            "for one in periodic.TASKS); sys.exit(main(sys.argv[1:]))")


class World(Cloud):
    """``with World("sqlite"):``; ``parts`` looks at the same databases from this process and does no work. *small*: its
    disk is so small that it can be filled; for that one has to be ``ROOT``."""

    def __init__(self, engine: str, hosts: int = 3, small: bool = False, **settings: Any) -> None:
        super().__init__(hosts, links=True, **settings)
        self.engine, self.mounted = engine, small
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.roles = {"api": "serve", "conductor": "conductor"} if engine == "sqlite" else {
            "api": "api", "conductor1": "conductor", "conductor2": "conductor"}
        self._changing = threading.Lock()
        #: Held by whoever says of a host that it has failed: one host at a time is.
        self.failed = threading.Lock()
        self._stopped: list[threading.Timer] = []

    def _start(self) -> None:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kill")))
        self.disk = self.folder / "small"
        self.disk.mkdir()
        if self.mounted:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}m,mode=0711", "tmpfs", self.disk], check=True)
            self._stack.callback(subprocess.run, ["umount", "-l", self.disk], check=True)
        self._stack.callback(self._end_processes)
        self._start_hosts()
        self.port = free_port()
        given = {"state_dir": str(self.disk / "control"), "hosts": self.hosts, "reserved_host_memory_mb": 0,
                 "heartbeat": 1.0, "quota_instances": -1, "quota_cores": -1, "quota_ram": -1, "quota_volumes": -1,
                 "quota_gigabytes": -1, "quota_snapshots": -1, "quota_ports": -1, "quota_images": -1,
                 "image_reserve_mb": 0, "action_timeout": 60.0,
                 "listen": f"127.0.0.1:{self.port}", **self._databases(), **self.settings}
        (self.folder / "control.yml").write_text(json.dumps(given))
        self.start("api")
        self.until_open()
        for name in self.roles:
            if name != "api":
                self.start(name)
        self.parts = Parts(make_settings(given))
        self._stack.callback(self.parts.close)
        self.services = self.parts.services()
        secret = yaml.safe_load((self.disk / "control" / "clouds.yaml").read_text())
        self.password = next(iter(secret["clouds"].values()))["auth"]["password"]
        self.admin = self.login("admin", self.password, "admin")
        self._first_flavor()
        self._all_up()

    def _start_hosts(self) -> None:
        names = [f"kvm{number + 1}" for number in range(self.count)]
        self.hosts = {name: f"unix:{self.folder}/{name}/agent.sock" for name in names}
        self._stack.callback(self._end_agents)
        self._link()
        for name in self.hosts:
            (self.disk / name).mkdir()
            (self.folder / name / "state").mkdir()
            (self.folder / name / "state" / "documents").symlink_to(self.disk / name)
            self.start_agent(name)

    def _databases(self) -> dict[str, str]:
        if self.engine == "sqlite":
            return {}
        # A process has up to 32 connections to each database, and a listener.
        self.cluster = self._stack.enter_context(postgres.postgres_cluster((*postgres.QUICK, "max_connections=400")))
        with self.operator() as connection:
            for name in ("api", "cell0", "cell1"):
                connection.execute(f"CREATE DATABASE {name}")
        return {"database_url": postgres.postgres_url(self.cluster, "api"),
                "cell0_database_url": postgres.postgres_url(self.cluster, "cell0"),
                "cell_database_url": postgres.postgres_url(self.cluster, "cell1")}

    def operator(self) -> Any:
        """A connection of PostgreSQL's operator."""
        return psycopg.connect(host=str(self.cluster), user=postgres.USER, dbname="postgres", autocommit=True)

    # Processes

    def start(self, name: str) -> None:
        """Start a process of the control plane."""
        words = [sys.executable, "-c", MAGNETAR, self.roles[name], "--config", self.folder / "control.yml"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ})

    def kill(self, name: str, pause: float) -> None:
        """``kill -9`` a process or an agent; it is started again after *pause* seconds."""
        with self._changing:
            if name in self.hosts:
                self.kill_agent(name)
                time.sleep(pause)
                self.start_agent(name)
                return
            process = self.processes.pop(name)
            process.kill()
            process.wait()
            time.sleep(pause)
            self.start(name)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """That of a role or an agent."""
        return self.agents[name] if name in self.agents else self.processes[name]

    def domains(self, name: str) -> set[str] | None:
        """The uuids of the domains of an imagined host; ``None`` where they are not known."""
        things = Journal(self.folder / name / "state" / "fake-hypervisor.jsonl").read()
        return {thing.removeprefix("domain ") for thing in things if thing.startswith("domain ")}

    def stop(self, name: str, seconds: float) -> None:
        """A process or an agent stands still (SIGSTOP); it goes on after so many seconds, for which nobody waits."""
        with self._changing:
            process = self.process(name)
            process.send_signal(signal.SIGSTOP)
            self._later(seconds, functools.partial(process.send_signal, signal.SIGCONT))

    def hang(self, name: str, seconds: float, draw: random.Random) -> None:
        """The QEMUs of some guests of a host, perhaps of all, do not answer for so many seconds, for which nobody
        waits."""
        guests = self.guests(name)
        for uuid in draw.sample(guests, draw.randint(1, len(guests))) if guests else ():
            self._later(seconds, self.hang_guest(name, uuid))

    def _later(self, seconds: float, go_on: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, go_on)
        timer.start()
        self._stopped.append(timer)

    def guests(self, name: str) -> list[str]:
        """The uuids of the guests of a host, in order."""
        return sorted(self.domains(name) or ())

    def hang_guest(self, name: str, uuid: str) -> Callable[[], None]:
        """Let a guest's QEMU hang; return what lets it go on."""
        file = hung_file(self.folder / name / "state", uuid)
        file.touch()
        return functools.partial(file.unlink, missing_ok=True)

    def resume(self) -> None:
        """Have all go on that stands still."""
        for timer in self._stopped:
            timer.join()
        self._stopped.clear()

    def fill(self, seconds: float) -> None:
        """The small disk is full for a while."""
        ballast = self.disk / "ballast"
        with ballast.open("wb") as file:
            step = SMALL << 20
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                except OSError:
                    step //= 2
        time.sleep(seconds)
        ballast.unlink()

    def freeze(self, seconds: float) -> None:
        """All of PostgreSQL stands still for a while; its machine's kernel goes on."""
        first = int((self.cluster / "d" / "postmaster.pid").read_text().split()[0])
        pids = [first, *children(first)]
        try:
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            time.sleep(seconds)
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def cut(self, seconds: float = 1.0) -> None:
        """All connections to the databases are lost; or, of SQLite's files, somebody else keeps them for a while."""
        if self.engine == "postgres":
            with self.operator() as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                                   "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
            return
        with contextlib.ExitStack() as held:
            for file in ("api", "cell0", "cell1"):
                connection = held.enter_context(contextlib.closing(sqlite3.connect(
                    self.disk / "control" / f"{file}.db", timeout=30, isolation_level=None)))
                connection.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)

    def until_open(self, limit: float = 180.0) -> None:
        """Wait until the API answers."""
        deadline = time.monotonic() + limit
        while True:
            try:
                if Caller(self.port).get("/").status < 500:
                    return
            except (OSError, HTTPException):
                pass
            assert time.monotonic() < deadline, self.said("api")
            time.sleep(0.05)

    def said(self, name: str, last: int = 6000) -> str:
        """The end of a process's log."""
        return (self.folder / f"{name}.log").read_text()[-last:]

    def repairs(self) -> Counter[str]:
        """What the audit has put right, by its words without ids."""
        return Counter(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "…", said["message"].removeprefix("repaired: "))
                       for said in self._logged('"repaired: '))

    def traces(self) -> Counter[str]:
        """What the control plane's processes did not expect: message and the last line of each trace, counted."""
        return Counter(f"{said['message'][:60]}: {said['trace'].strip().splitlines()[-1][:200]}"
                       for said in self._logged('"trace": '))

    def _logged(self, words: str) -> Iterator[dict[str, Any]]:
        """The lines with these *words* that the control plane's processes have logged; a kill cuts some off."""
        for name in self.roles:
            for line in (self.folder / f"{name}.log").read_text().splitlines():
                if words in line:
                    with contextlib.suppress(ValueError):
                        yield json.loads(line)

    def _all_up(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            with self.parts.api_database.read() as connection:
                rows = hosts.fetch_host_rows(connection)
            reply = self.admin.get("/v2.1/os-services?binary=nova-compute")
            if len(rows) == self.count and all(row.memory_mb_limit for row in rows) and reply.status == 200 and all(
                    one["state"] == "up" for one in reply.json["services"]):
                return
            time.sleep(0.1)
        raise AssertionError("the hosts did not come up")

    def _end_processes(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


def second_flavor(world: World) -> None:
    """For resizes."""
    with world.parts.api_database.write() as connection:
        connection.execute(insert(flavors).values(id="2", name="small", vcpus=2, ram=128, created_at=utc_now()))


def children(parent: int) -> list[int]:
    """The processes that *parent* has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
