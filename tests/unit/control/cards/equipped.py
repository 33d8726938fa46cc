# SPDX-License-Identifier: GPL-3.0-or-later
"""Clouds of hosts with cards, and words for what tests do with their ports. The sysfs of the hosts is made up, their
libvirt a fake, and so is OVN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import yaml

from magnetar_control import serve
from magnetar_control.conductor.periodic.audit import findings_of_checks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from tests.support.control.audited import read_state
from tests.support.waiting import eventually
from tests.unit.agent.cards.made_up import card, netdev, plugged, switched
from tests.unit.control.moves.clouds import at
from tests.unit.control.moves.inside import Inside

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/virtual_functions.yml").read_text(encoding="utf-8"))
NAME = "type-VF:physnet0"
CARDS = "type-PF:physnet0"
#: How servers are asked to move while they run.
LIVE = {"block_migration": True, "disk_over_commit": False}
C = TypeVar("C", bound="WithCards")


def functions(folder: Path, name: str) -> dict[str, Any]:
    """Settings of a host: kvm1 has two virtual functions, kvm2 one and a vDPA device, kvm3 a card without any; kvm1
    and kvm3 a SmartNIC with one."""
    sysfs = folder / f"{name}-sys"
    card(sysfs, f"{name[-1]}1", {"kvm1": 2, "kvm2": 1, "kvm3": 0}[name])
    netdev(sysfs, f"0000:{name[-1]}1:00.0", "ens1", "3c:fd:fe:00:00:01")
    if name == "kvm2":
        switched(sysfs, "91", 1)
    else:
        card(sysfs, f"a{name[-1]}", 1)
        netdev(sysfs, f"0000:a{name[-1]}:00.0", "ens9", f"0c:42:a1:00:00:0{name[-1]}")
    return {"sysfs": sysfs, "resource_provider_bandwidths": ["physnet0:10000:10000"], "pci_device_spec": [
        {"address": "0000:91:*", "physical_network": None},
        {"address": "0000:a?:02.*", "physical_network": None, "remote_managed": True},
        {"address": "0000:11:02.1", "physical_network": "physnet0", "trusted": True},
        {"vendor_id": "8086", "physical_network": "physnet0"}]}


class WithCards(Inside):
    """Hosts with cards, and the ``networks`` of ports by name."""

    networks: dict[str, str]


class Equipped(WithCards):
    """Hosts with virtual functions."""

    def agent_of(self, name: str) -> dict[str, Any]:
        return functions(self.folder, name)


@contextmanager
def serving(kind: type[C], hosts: int) -> Iterator[C]:
    """A cloud of so many hosts, with two flavors, an image and networks."""
    with patch.object(serve, "engine_of", lambda _settings: FakeEngine()), kind(
            hosts=hosts, host_down_after=600.0, allow_resize_to_same_host=True) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        for name, ram in (("small", 64), ("large", 128)):
            made.admin.flavor(name, ram=ram)
        made.admin.image()
        made.networks = _networks(made)
        yield made


def _networks(cloud: WithCards) -> dict[str, str]:
    """Networks by name."""
    made = {}
    for name, more in CASES["networks"].items():
        made[name] = cloud.admin.post("/network/v2.0/networks", {"network": {"name": name, **more}}).json["network"][
            "id"]
        subnet = {"network_id": made[name], "cidr": f"10.{len(made)}.0.0/24", "ip_version": 4}
        assert cloud.admin.post("/network/v2.0/subnets", {"subnet": subnet}).status == 201
    return made


class Functions:
    """Servers and ports that go with the test."""

    def __init__(self, cloud: WithCards) -> None:
        self.cloud, self.servers, self.made = cloud, list[str](), list[str]()

    def port(self, network: str = "plain", **more: Any) -> str:
        """A port that is a virtual function."""
        body = {"network_id": self.cloud.networks[network], "binding:vnic_type": "direct", **more}
        reply = self.cloud.admin.post("/network/v2.0/ports", {"port": body})
        assert reply.status == 201, reply
        self.made.append(reply.json["port"]["id"])
        return self.made[-1]

    def make(self, *ports: str, host: str = "", status: str = "ACTIVE") -> str:
        """A server with these ports."""
        made = self.cloud.admin.boot(
            f"vf{len(self.servers)}", "2.74", flavorRef="small", networks=[{"port": one} for one in ports],
            **({"host": host} if host else {}))
        self.servers.append(made["id"])
        assert made["status"] == status, made.get("fault")
        return str(made["id"])

    def shown(self, port: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cloud.admin.get(f"/network/v2.0/ports/{port}").json["port"]
        return found

    def has(self, id: str) -> tuple[str, dict[str, str]]:
        """Its host, and the NICs of its domain there; what is claimed of hosts is what it has."""
        found = at(self.cloud, id)
        claimed = held(self.cloud)
        (host,) = (name for name, one in found.items() if one["power_state"] != "missing") if len(found) == 1 else (
            claimed[id][0][0],)
        nics = plugged(self.cloud.kvm[host], found[host]["name"])
        assert (host, {NAME: len(nics)} if nics else {}) in claimed[id]
        return host, nics


def found_nothing(cloud: WithCards) -> bool:
    """Whether the audit finds nothing."""
    return findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents, cloud.services)) == []


def held(cloud: Any) -> dict[str, list[tuple[str, dict[str, int]]]]:
    """Server to hosts and what it and its migrations claim of the devices there."""
    found: dict[str, list[tuple[str, dict[str, int]]]] = {}
    with cloud.parts.api_database.read() as connection:
        for row in connection.exec_driver_sql("SELECT server_id, name, devices FROM allocations JOIN hosts ON "
                                              "hosts.id = allocations.host_id"):
            found.setdefault(row.server_id, []).append((row.name, json.loads(row.devices)))
    return found


def have_told(cloud: Equipped) -> None:
    """Wait until the conductor knows what is free."""
    hosts = cloud.parts.working.states.hosts
    wanted = [*((name, NAME, count) for name, count in free(cloud).items()), ("kvm3", CARDS, 1)]
    eventually(lambda: all(name in hosts and hosts[name].pci.reported.get(word, {}).get("free") == count
                      for name, word, count in wanted))


def free(cloud: Equipped) -> dict[str, int]:
    """How many virtual functions hosts say that are free."""
    return {name: found[NAME]["free"] for name, kvm in cloud.kvm.items()
            if NAME in (found := kvm.side().host["pci_devices"])}


def policy(admin: Any, *rules: tuple[str, dict[str, Any]]) -> str:
    """A QoS policy with rules."""
    id: str = admin.post("/network/v2.0/qos/policies", {"policy": {"name": "fast"}}).json["policy"]["id"]
    for kind, rule in rules:
        reply = admin.post(f"/network/v2.0/qos/policies/{id}/{kind}_rules", {f"{kind}_rule": rule})
        assert reply.status == 201, reply
    return id


def bandwidth_of(cloud: Any, id: str) -> list[dict[str, int]]:
    """What a server claims of bandwidth."""
    with cloud.parts.api_database.read() as connection:
        return [json.loads(row.resources) for row in connection.exec_driver_sql(
            f"SELECT resources FROM allocations WHERE server_id = '{id}'")]
