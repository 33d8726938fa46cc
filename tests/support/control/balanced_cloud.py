# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud as a site has it: two APIs behind a balancer, and two cells, each with a conductor and a database of its own.
Every process has the release of its entry in ``trees``, and is replaced as systemd does: SIGTERM, then a new one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import select

from magnetar_control.store.actions.actions import is_open_action
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import actions
from tests.support.balancer import Balancer
from tests.support.ports import free_port
from tests.support.waiting import eventually

from .cloud import AGENT
from .spread import RUN, Spread

#: Hosts by cell. The database of cell1 and those of the API are on PostgreSQL, that of cell2 is a file of SQLite.
CELLS = {"cell1": ("kvm1", "kvm2"), "cell2": ("kvm3", "kvm4", "kvm5")}
APIS = ("api1", "api2")
#: ``api_stop_delay`` of APIs of this release: the balancer looks at their health five times a second.
STOP_DELAY = 5.0
#: Writes each event of a domain into a file next to the agent's state.
RECORDED = """
import sys
from magnetar_agent.fake import FakeHypervisor
before = FakeHypervisor._happened
def happened(self, event, path=sys.argv[sys.argv.index("--state-dir") + 1] + ".events"):
    with open(path, "a") as file:
        print(event.uuid, event.what, file=file)
    before(self, event)
FakeHypervisor._happened = happened
"""


class BalancedCloud(Spread):
    """*tree*: the PYTHONPATH of all processes, until ``replace`` and ``replace_agent`` give one another."""

    agent_program = RECORDED + AGENT

    def __init__(self, cluster: Path, tree: Path, **settings: Any) -> None:
        names = [*APIS, *CELLS, *(host for hosts in CELLS.values() for host in hosts)]
        super().__init__(cluster, CELLS, links=True, trees=dict.fromkeys(names, tree),
                         **{"heartbeat": 5.0, "host_down_after": 60.0, **settings})
        self.first = tree
        self.ports = {name: free_port() for name in APIS}

    def url(self, name: str) -> str:
        return f"sqlite:///{self.folder}/cell2.db" if name == "cell2" else super().url(name)

    def _start(self) -> None:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cloud")))
        self._databases("api", "cell0", "cell1")
        self._stack.callback(self._end_agents)
        self._stack.callback(self._end_processes)
        self.hosts = {name: "" for names in self.cells.values() for name in names}
        self._link()
        for name in self.hosts:
            self.start_agent(name)
        self.balancer = self._stack.enter_context(Balancer(self.ports))
        self.port, self.health = self.balancer.port, {name: free_port() for name in self.cells}
        self.start_api("api1")
        self._until(lambda: self.balancer.up["api1"], "the first API answers")
        self.start_api("api2")
        for name in self.hosts:
            self.wait_agent(name)
        for name, names in self.cells.items():
            self.magnetar("api1", "cell", "create", name, "--database-url", "-", stdin=self.url(name))
            self.conduct(name, names)
        clouds = yaml.safe_load((self.folder / "api1/state/clouds.yaml").read_text())
        self.password = str(clouds["clouds"]["magnetar"]["auth"]["password"])
        self.admin = self.login("admin", self.password, "admin")
        for id, ram in (("1", 64), ("2", 128)):
            flavor = {"name": f"tiny{id}", "vcpus": 1, "ram": ram, "disk": 0, "id": id}
            assert self.admin.post("/v2.1/flavors", {"flavor": flavor}).status == 200
        self._until(lambda: all(self.balancer.up.values()), "both APIs answer")
        for name in self.cells:
            self._until(lambda name=name: self.conducts(name), f"the conductor of {name} sees all hosts")

    def start_api(self, name: str) -> None:
        """Start an API. Both have the same content of images, as on a file system that their machines share."""
        delay = {} if self.trees[name] == self.first else {"api_stop_delay": STOP_DELAY}  # 0.1.0 does not know it
        self.start(name, "api", listen=f"127.0.0.1:{self.ports[name]}", image_dir=str(self.folder / "images"),
                   keys_dir=str(self.folder / "keys"), public_url=f"http://127.0.0.1:{self.port}", **delay)

    def conducts(self, name: str) -> bool:
        """Return whether the conductor of a cell works, and sees every host that is up."""
        told = self.healthz(self.health[name])
        return bool(told.get("conductor", {}).get("works")) and told["hosts"]["up"] == len(self.agents)

    def replace(self, name: str, tree: Path, drain: bool = False) -> None:
        """End the API or conductor *name* with SIGTERM, and start it with other packages. *drain*: first tell the
        balancer that the API ends."""
        if drain:
            self.balancer.drain(name)
        self.end(name)
        self.trees[name] = tree
        if name in APIS:
            self.start_api(name)
            self.balancer.enable(name)
            self._until(lambda: self.balancer.up[name], f"{name} answers")
        else:
            self.conduct(name, self.cells[name])
            self._until(lambda: self.conducts(name), f"the conductor of {name} works")

    def end_agent(self, name: str) -> None:
        """End the agent of a host with SIGTERM."""
        process = self.agents.pop(name)
        process.terminate()
        assert process.wait(60) == 0, self._agent_log(name)

    def replace_agent(self, name: str, tree: Path) -> None:
        """End the agent of a host with SIGTERM if it runs, and start it with other packages."""
        if name in self.agents:
            self.end_agent(name)
        self.trees[name] = tree
        self.start_agent(name)
        self.wait_agent(name)

    def _agent_log(self, name: str) -> str:
        return (self.folder / name / "log").read_text()[-3000:]

    def command(self, *words: str, tree: Path) -> subprocess.Popen[str]:
        """Start a command of ``magnetar`` of a release with the settings of the first API."""
        self.trees["command"] = tree
        return subprocess.Popen([sys.executable, "-c", RUN, *words, "--config", self.folder / "api1/control.yml"],
                                env=self.environment("command"), text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def run(self, *words: str, tree: Path) -> tuple[int, str]:
        """Run such a command; return its status and what it printed."""
        process = self.command(*words, tree=tree)
        printed, _none = process.communicate()
        return process.returncode, printed

    def domain_events(self, servers: Sequence[str]) -> dict[str, Counter[str]]:
        """Return how often what happened to the domains of *servers*, on all hosts."""
        events: dict[str, Counter[str]] = {id: Counter() for id in servers}
        for name in self.hosts:
            path = self.folder / name / "state.events"
            for line in path.read_text().splitlines() if path.exists() else ():
                id, what = line.split()
                if id in events:
                    events[id][what] += 1
        return events

    def open_actions(self) -> list[str]:
        """Return the actions of servers that have not ended, in all databases of servers."""
        found = []
        for name in ("cell0", *self.cells):
            database = Database(self.url(name))
            with database.read() as connection:
                rows = connection.execute(select(actions).where(is_open_action())).all()
            database.close()
            found += [f"{name}: {row.action} of {row.server_id}" for row in rows]
        return found

    def await_host(self, name: str) -> None:
        """Wait until a host is up."""

        def is_up() -> bool:
            services = self.admin.get("/v2.1/os-services?binary=nova-compute").json["services"]
            return name in {service["host"] for service in services if service["state"] == "up"}

        eventually(is_up, f"{name} is up", pause=0.2)

    def use_host(self, name: str, use: bool) -> None:
        """Enable or disable a host for new servers."""
        services = self.admin.get(f"/v2.1/os-services?binary=nova-compute&host={name}", "2.53").json["services"]
        reply = self.admin.put(f"/v2.1/os-services/{services[0]['id']}", {
            "status": "enabled" if use else "disabled"}, "2.53")
        assert reply.status == 200, reply
