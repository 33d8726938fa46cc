# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures networks of OVN: the time until hosts have what the API was asked for, and what ports add to the time of
servers.

OVN is real: its central, and Open vSwitch and ovn-controller of each host, with the datapath *dummy*. Guests and agents
are fakes. Each host has a port of the network, so that its ovn-controller has to follow changes of the network.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from control_client import request
from control_cloud import Cloud
from control_life import LOOK, end
from figures import Figure, in_turns, spread
from host import ROOT
from ovsdbapp.backend.ovs_idl import connection

sys.path.insert(0, str(ROOT))  # where the central and the hosts are
from tests.support.chassis import LabChassis
from tests.support.northbound import LabCentral, missing

__all__ = ["OvnCloud", "missing", "ovn"]

HOSTS = 4
#: Servers that are created at once, and the number of rounds.
MANY, TIMES = 200, 5
#: Number of ports in the large security group.
MEMBERS = 1000
PORTS, RULES = "/network/v2.0/ports", "/network/v2.0/security-group-rules"


class OvnCloud(Cloud):
    """A cloud with networks of OVN. `lan`: the id of a network."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, HOSTS)

    def _serve(self, stack: ExitStack) -> None:
        self.central = LabCentral(self.folder / "ovn")
        stack.callback(self.central.stop)
        self.central.start()
        self.simulated = []
        for number, name in enumerate(self.agents, 1):
            host = LabChassis(self.folder / f"ovn{number}", self.central.south, name, number)
            stack.callback(host.stop)
            host.start()
            self.simulated.append(host)
        self.more = {"ovn_northbound": self.central.url}
        super()._serve(stack)

    def _set_up(self) -> None:
        super()._set_up()
        self.north = North(self.central.url)
        self.lan = self.ask("POST", "/network/v2.0/networks", {"network": {"name": "lan"}})["network"]["id"]
        self.ask("POST", "/network/v2.0/subnets", {"subnet": {
            "network_id": self.lan, "ip_version": 4, "cidr": "10.64.0.0/16"}})
        for host in self.simulated:
            host.plug(self.new_port(), "vif1")

    def __exit__(self, *error: object) -> None:
        self.north.close()
        super().__exit__(*error)

    def new_port(self) -> str:
        """Create a port of the network, and return its id."""
        return str(self.ask("POST", PORTS, {"port": {"network_id": self.lan}})["port"]["id"])

    def server(self, *networks: str) -> dict[str, Any]:
        """Return the body of POST /servers with NICs in these *networks*."""
        body = self.want("bench")
        body["server"]["networks"] = [{"uuid": one} for one in networks] or "none"
        return body

    def made_of(self, *networks: str) -> str:
        """Create a server with NICs in these *networks*, wait until it is active, and return its id."""
        id = self.ask("POST", "/v2.1/servers", self.server(*networks))["server"]["id"]
        while self.state(id) != "ACTIVE":
            time.sleep(LOOK)
        return str(id)


class North:
    """A copy of the northbound database that is kept up to date; it also shows which changes all hosts have applied."""

    def __init__(self, url: str) -> None:
        tables = ("NB_Global", "Logical_Switch_Port", "ACL")
        self.connection = connection.Connection(
            connection.OvsdbIdl.from_server(url, "OVN_Northbound", helper_tables=tables), 30)
        self.connection.start()

    def close(self) -> None:
        """Close the connection."""
        self.connection.stop(timeout=30)

    def wait_until(self, condition: Callable[[Mapping[str, Any]], bool]) -> float:
        """Wait until the function *condition* accepts the tables of the database, and all hosts have applied that
        state. Return the time (``perf_counter``) at which the database had it.
        """
        deadline, asked, had = time.monotonic() + 60, None, 0.0
        while time.monotonic() < deadline:
            with self.connection.lock:
                tables = self.connection.idl.tables
                now = next(iter(tables["NB_Global"].rows.values()))
                if asked is None and condition(tables):
                    asked, had = now.nb_cfg, time.perf_counter()
                if asked is not None and now.hv_cfg >= asked:
                    return had
            time.sleep(0.001)
        raise SystemExit("the hosts of OVN did not follow within a minute")


def has_port(id: str, tables: Mapping[str, Any]) -> bool:
    """Return whether the tables have a port named *id*."""
    return any(row.name == id for row in tables["Logical_Switch_Port"].rows.values())


def acls(tables: Mapping[str, Any]) -> int:
    """Return the number of ACLs in the tables."""
    return len(tables["ACL"].rows)


def ovn(cloud: OvnCloud, rounds: int) -> list[Figure]:
    """Measure all figures of OVN; those of the large group come last."""
    cloud.made_of(cloud.lan)
    return [_port(cloud, rounds), _server(cloud, rounds), _many(cloud), *_group(cloud, rounds), *_memory(cloud)]


def _port(cloud: OvnCloud, rounds: int) -> Figure:
    """Measure the creation of a port until all hosts have it; the floor is ovn-nbctl."""
    switch = f"mag-{cloud.lan}"

    def ours() -> float:
        began = time.perf_counter()
        cloud.north.wait_until(partial(has_port, cloud.new_port()))
        return (time.perf_counter() - began) * 1000

    def theirs() -> float:
        began = time.perf_counter()
        cloud.central.nb("--wait=hv", "lsp-add", switch, f"floor{began}")
        return (time.perf_counter() - began) * 1000

    taken = in_turns(rounds, {"port": ours, "ovn-nbctl": theirs})
    return Figure(f"a port, until all of {HOSTS} hosts have it", statistics.median(taken["port"]),
                  floor=statistics.median(taken["ovn-nbctl"]), floor_name="ovn-nbctl --wait=hv lsp-add", limit=150,
                  spread=spread(taken["port"]))


def _server(cloud: OvnCloud, rounds: int) -> Figure:
    """Measure the creation of a server with a port; the floor is a server without one."""

    def life(*networks: str) -> float:
        began = time.perf_counter()
        id = cloud.made_of(*networks)
        taken = (time.perf_counter() - began) * 1000
        end(cloud, id)
        return taken

    taken = in_turns(rounds, {"with": partial(life, cloud.lan), "without": life})
    with_, without = (statistics.median(taken[name]) for name in ("with", "without"))
    return Figure("what a port adds to a new server, until ACTIVE", with_ - without, limit=25,
                  notes=(f"{with_:.0f} ms with, {without:.0f} ms without; it starts when all hosts have followed",))


def _many(cloud: OvnCloud) -> Figure:
    """Measure the creation of many servers with ports at once; the floor is the same number without ports."""
    def life(*networks: str) -> float:
        body = cloud.server(*networks)
        asked = cloud.load([request("POST", "/v2.1/servers", cloud.token, body)], 8, MANY)
        while cloud.busy():
            time.sleep(0.02)
        taken: float = time.perf_counter() - asked["began"]
        found = cloud.ask("GET", "/v2.1/servers/detail")["servers"]
        states = {one["status"] for one in found}
        if states != {"ACTIVE"}:
            raise SystemExit(f"not all servers are active: {states}")
        for one in found:
            cloud.ask("DELETE", f"/v2.1/servers/{one['id']}")
        while cloud.busy():
            time.sleep(0.02)
        return taken

    taken = in_turns(TIMES, {"without": life, "with": partial(life, cloud.lan)})
    return Figure(f"{MANY} servers with a port at once, until all are ACTIVE", statistics.median(taken["with"]), "s",
                  floor=statistics.median(taken["without"]), floor_name="without ports", ratio=2,
                  spread=spread(taken["with"]))


def _group(cloud: OvnCloud, rounds: int) -> list[Figure]:
    """Measure a new rule and a new member of a security group with many members, until all hosts have it."""
    body = {"port": {"network_id": cloud.lan}}
    cloud.load([request("POST", PORTS, cloud.token, body)], 8, MEMBERS)
    cloud.north.wait_until(partial(has_port, cloud.new_port()))
    group = cloud.ask("GET", f"{PORTS}?network_id={cloud.lan}&limit=1")["ports"][0]["security_groups"][0]
    rules, members = [], []
    north: dict[str, list[float]] = {"rule": [], "member": []}
    for at in range(rounds):
        began = time.perf_counter()
        north["member"].append(cloud.north.wait_until(partial(has_port, cloud.new_port())) - began)
        members.append(time.perf_counter() - began)
        before, began = _acls_now(cloud), time.perf_counter()
        cloud.ask("POST", RULES, {"security_group_rule": {
            "security_group_id": group, "direction": "ingress", "protocol": "tcp", "port_range_min": 1000 + at,
            "port_range_max": 1000 + at, "remote_group_id": group}})
        north["rule"].append(cloud.north.wait_until(
            lambda tables, before=before: acls(tables) > before) - began)  # type: ignore[misc]
        rules.append(time.perf_counter() - began)
    return [Figure(f"a group of {MEMBERS} members has a {one} more, until all hosts have it", statistics.median(taken),
                   "s", limit=1, spread=spread(taken),
                   notes=(f"the northbound database has it after {statistics.median(north[one]) * 1000:.0f} ms",))
            for one, taken in (("rule", rules), ("member", members))]


def _acls_now(cloud: OvnCloud) -> int:
    with cloud.north.connection.lock:
        return acls(cloud.north.connection.idl.tables)


def _memory(cloud: OvnCloud) -> list[Figure]:
    """Measure the resident memory of OVN's processes with all these ports."""
    central, host = cloud.central.rss(), cloud.simulated[0].rss()
    said = [", ".join(f"{name} {size:.0f}" for name, size in one.items()) for one in (central, host)]
    version = subprocess.check_output(["ovn-nbctl", "--version"], text=True).split()[1]
    return [Figure("central of OVN, resident memory", sum(central.values()), "MiB",
                   notes=(f"{said[0]} (OVN {version})",)),
            Figure("a host's OVN, resident memory", sum(host.values()), "MiB", notes=(said[1],))]
