# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulator: many hosts in one process, each as a real agent shows itself, and their faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_core.errors import MagnetarError, Unreachable
from magnetar_core.flows.migrate import Migrate, Side
from magnetar_core.http.client import Client
from tests.support.agent.simulation import RunningSimulation, run_hosts
from tests.support.ports import free_port
from tests.support.waiting import eventually

SERVER = {"flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulation]:
    with run_hosts(tmp_path_factory.mktemp("simulation"), vcpus=8, memory=4096, disk=50) as running:
        yield running


def watch_until(client: Client, event: str, **fields: Any) -> dict[str, Any]:
    """The first *event* with these *fields*."""
    for name, document in client.watch(interval=0.5, timeout=60):
        if name == event and all(document.get(key) == value for key, value in fields.items()):
            return document
    raise AssertionError("the agent has ended the stream")


def test_each_host_is_its_own(simulated: RunningSimulation) -> None:
    assert len(simulated.settings["hosts"]) == 20
    first, second = (simulated.client(name).get("host") for name in ("kvm0001", "kvm0002"))
    assert (first["name"], second["name"]) == ("kvm0001", "kvm0002")
    assert first["address"] != second["address"] and first["id"] != second["id"]
    assert (first["vcpus"], first["memory_mb"], first["disk_gb"]) == (8, 4096, 50)
    simulated.client("kvm0001").ensure("server", "web1", SERVER)
    assert [server["name"] for server in simulated.client("kvm0001").list("server")] == ["web1"]
    assert simulated.client("kvm0002").list("server") == []
    assert simulated.client("kvm0001").delete("server", "web1")["changed"]


def test_watchers_get_events_and_heartbeats(simulated: RunningSimulation) -> None:
    client = simulated.client("kvm0003")
    stream = client.watch(interval=0.5, timeout=60)
    assert [next(stream)[0] for _number in range(3)] == ["hello", "servers", "heartbeat"]
    maker = threading.Thread(target=simulated.client("kvm0003").ensure, args=("server", "web2", SERVER))
    maker.start()
    assert next(document for event, document in stream if event == "server" and document["status"] == "ACTIVE")
    beat = next(document for event, document in stream if event == "heartbeat" and document["host"]["servers"] == 1)
    assert beat["host"]["disk_gb_free"] == 49
    maker.join(60)
    simulated.client("kvm0003").delete("server", "web2")
    assert next(document for event, document in stream if event == "server" and document.get("removed"))


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_server_moves(simulated: RunningSimulation, kind: str) -> None:
    source, target = Side(simulated.client("kvm0004"), "127.0.0.1"), Side(simulated.client("kvm0005"), "127.0.0.1")
    made = source.client.ensure("server", f"{kind}1", SERVER)["resource"]
    for _step in Migrate(source, target, f"{kind}1", {"type": kind}).steps():
        pass
    assert source.find(f"{kind}1") is None
    moved = target.find(f"{kind}1")
    assert moved and (moved["id"], moved["status"]) == (made["id"], "ACTIVE")
    target.client.delete("server", f"{kind}1")


def test_a_dead_host_boots(simulated: RunningSimulation) -> None:
    client = simulated.client("kvm0006")
    client.ensure("server", "web3", SERVER)
    boot = watch_until(client, "hello")["boot_id"]
    assert simulated.ask("PUT", "/condition", {"condition": "dead", "hosts": ["kvm0006"]})[1]["dead"] == 1
    client.close()
    client.timeout = 1
    with pytest.raises(Unreachable):
        client.info()
    assert simulated.client("kvm0007").info()["host"] == "kvm0007"
    assert simulated.ask("PUT", "/condition", {"condition": "up"})[1]["hosts"] == ["kvm0006"]
    client = simulated.client("kvm0006")
    assert watch_until(client, "hello")["boot_id"] != boot
    eventually(lambda: client.get("server", "web3")["power_state"] in ("off", "running"))


def test_a_silent_host_answers_later(simulated: RunningSimulation) -> None:
    simulated.ask("PUT", "/condition", {"condition": "silent", "hosts": ["kvm0008"], "seconds": 2})
    client = simulated.client("kvm0008")
    client.patience = 0.3
    with pytest.raises(MagnetarError):
        next(client.watch(interval=0.5, timeout=0.5))
    client.patience = None
    assert client.info()["host"] == "kvm0008"
    assert simulated.ask("GET", "/")[1]["conditions"]["silent"] == 0


def test_a_share_of_the_hosts(simulated: RunningSimulation) -> None:
    changed = simulated.ask("PUT", "/condition", {"condition": "slow", "share": 0.25, "delay": 0.1})[1]
    assert len(changed["hosts"]) == changed["slow"] == 5
    assert simulated.client(changed["hosts"][0]).info()["host"] == changed["hosts"][0]
    assert simulated.ask("PUT", "/condition", {"condition": "up"})[1]["up"] == 20


def test_a_host_under_another_name(simulated: RunningSimulation) -> None:
    client = simulated.client("kvm0009")
    before = watch_until(client, "hello")
    assert simulated.ask("PUT", "/names", {"kvm0009": "stranger"}) == (200, {"hosts": ["kvm0009"]})
    after = watch_until(client, "hello")
    assert (after["host"], after["id"]) == ("stranger", before["id"])
    assert watch_until(client, "heartbeat")["host"]["name"] == client.get("host")["link_name"] == "stranger"
    assert simulated.ask("PUT", "/names", {"kvm0009": "kvm0009"})[0] == 200


@pytest.mark.parametrize(("path", "body", "word"), [
    ("/condition", {"condition": "odd"}, "condition"), ("/condition", {"condition": "dead", "share": 2}, "share"),
    ("/condition", {"condition": "dead", "hosts": ["none"]}, "hosts"), ("/condition", [], "body"),
    ("/condition", {"condition": "dead", "host": "kvm0001"}, "host"), ("/names", {"kvm0001": "kvm0002"}, "kvm0001"),
    ("/names", {"kvm0001": ""}, "kvm0001")])
def test_bad_requests_change_nothing(simulated: RunningSimulation, path: str, body: Any, word: str) -> None:
    before = simulated.ask("GET", "/")
    status, document = simulated.ask("PUT", path, body)
    assert status == 400 and word in document["error"]["message"]
    assert simulated.ask("GET", "/") == before


def test_over_tls(tmp_path: Path) -> None:
    with run_hosts(tmp_path / "state", 2, free_port()) as running:
        assert [running.client(name).info()["host"] for name in running.settings["hosts"]] == ["kvm0001", "kvm0002"]
        with pytest.raises(MagnetarError):
            Client(running.settings["hosts"]["kvm0001"], ca_cert=running.settings["agent_ca_cert"], timeout=5).info()
    assert not list((tmp_path / "state" / "hosts").iterdir())


def test_starts_take_their_time_and_nothing_stays(tmp_path: Path) -> None:
    threads = threading.active_count()
    with run_hosts(tmp_path / "state", 2, boot_seconds=0.5) as running:
        client = running.client("kvm0001")
        answer = client.ensure("server", "web1", SERVER, timeout=60)
        assert answer["resource"]["status"] == "ACTIVE"
        client.close()
    assert not list((tmp_path / "state" / "hosts").iterdir())
    assert not list((tmp_path / "state" / "sockets").iterdir())
    eventually(lambda: threading.active_count() <= threads)
