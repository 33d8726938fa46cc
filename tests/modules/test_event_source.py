# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source of Event-Driven Ansible, run as ansible-rulebook runs it: by its path, with a queue."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from magnetar_core.http.client import Client
from tests.support.modules.event_source import Source
from tests.support.waiting import eventually

from .conftest import ROOT, Running

pytestmark = pytest.mark.slow
SMALL = {"flavor": {"vcpus": 1, "ram": 64}, "image": None}


@contextmanager
def following(agent, tmp_path, **args):
    source = Source(endpoint=agent.endpoint, interval=1, cursor_file=str(tmp_path / "cursor.json"), **args).start()
    try:
        yield source
    finally:
        source.stop()


def settled(tmp_path, **wanted):
    """Wait until the cursor has these states of servers, by name."""
    deadline = time.monotonic() + 60
    path = tmp_path / "cursor.json"
    while True:
        servers = json.loads(path.read_text())["servers"] if path.exists() else {}
        found = {server["name"]: server["power_state"] for server in servers.values()}
        if found == wanted:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_what_happens_is_passed_on(agent, tmp_path):
    with following(agent, tmp_path, servers=["web*"]) as source, Client(agent.endpoint) as client:
        source.wait("connected")
        web = client.ensure("server", "web1", SMALL)["resource"]
        client.ensure("server", "db1", SMALL)
        client.event("server", "web1", "reboot", {"type": "hard"})
        source.wait("domain")
        running = [event for event in source.wait("server") if event["server"]["power_state"] == "running"]
        assert running or source.wait("server", 2)
        agent.hypervisor.crash(web["id"])
        deadline = time.monotonic() + 60
        while not (crashed := [one for one in source.wait("server") if one["server"]["power_state"] == "crashed"]):
            assert time.monotonic() < deadline
        assert crashed[0]["before"]["power_state"] == "running" and crashed[0]["host"] == agent.agent.host.name
        assert source.wait("operation")[0]["operation"]["key"] == "web1"
    names = {event["server"]["name"] for event in source.events if event["type"] in ("server", "domain")}
    assert names == {"web1"} and "gap" not in {event["type"] for event in source.events}


def test_nothing_is_lost_over_a_restart(agent, tmp_path):
    with Client(agent.endpoint) as client:
        for name in ("web1", "web2", "web3"):
            client.ensure("server", name, SMALL)
        with following(agent, tmp_path) as source:
            source.wait("connected")
            settled(tmp_path, web1="running", web2="running", web3="running")
        assert [event["type"] for event in source.events] == ["connected"]
        client.ensure("server", "web1", {"power": "off"})
        client.delete("server", "web2")
        client.ensure("server", "web4", SMALL)
        with following(agent, tmp_path) as source:
            source.wait("operation", 3, replayed=True)
            settled(tmp_path, web1="off", web3="running", web4="running")
        assert [event["type"] for event in source.events][:2] == ["connected", "gap"]
        assert "domain events of that time are missing" in source.wait("gap")[0]["reason"]
        replayed = {event["server"]["name"]: (event["server"]["power_state"], event["server"]["removed"])
                    for event in source.wait("server", 3, replayed=True)}
        assert replayed == {"web1": ("off", False), "web2": ("running", True), "web4": ("running", False)}
        assert {event["operation"]["key"] for event in source.wait("operation")} == {"web1", "web2", "web4"}
        with following(agent, tmp_path) as source:
            source.wait("gap")
            time.sleep(1.5)
        assert [event["type"] for event in source.events] == ["connected", "gap"]
        assert (tmp_path / "cursor.json").stat().st_mode & 0o777 == 0o600


def test_an_agent_that_is_away(tmp_path):
    """A short restart is no outage; a long one is passed on, once, and the end of it."""
    (tmp_path / "agent").mkdir()
    running = Running(tmp_path / "agent")
    running.start()
    with Client(running.endpoint) as client:
        client.ensure("server", "web1", SMALL)
    with following(running, tmp_path, unreachable_after=2, retry=1) as source:
        source.wait("connected")
        running.stop()
        source.wait("unreachable")
        running = Running(tmp_path / "agent")
        with Client(running.endpoint) as client:
            running.start()
            source.wait("connected", 2)
            source.wait("gap")
            client.ensure("server", "web1", {"power": "off"})
        source.wait("operation")
        running.stop()
        running = Running(tmp_path / "agent")
        running.start()
        source.wait("gap", 2)
    assert len(source.wait("unreachable")) == 1
    running.stop()


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "cannot be used"), ("[]", "cannot be used"), ('{"version": 2}', "cannot be used"),
    (json.dumps({"version": 1, "host": "other", "time": "2026-01-01T00:00:00Z", "servers": {}, "operations": []}),
     "of another host, other"),
    (json.dumps({"version": 1, "host": "other", "time": "yesterday", "servers": {}, "operations": []}),
     "cannot be used")])
def test_cursors_that_say_nothing(agent, tmp_path, content, reason):
    (tmp_path / "cursor.json").write_text(content)
    with following(agent, tmp_path) as source:
        assert reason in source.wait("gap")[0]["reason"]
        source.wait("connected")
    eventually(lambda: json.loads((tmp_path / "cursor.json").read_text())["version"] == 1,
               passing=(ValueError, TypeError, AssertionError))


def test_operations_that_the_agent_has_forgotten(agent, tmp_path, monkeypatch):
    with Client(agent.endpoint) as client:
        client.ensure("server", "web1", SMALL)
        with following(agent, tmp_path) as source:
            source.wait("connected")
            settled(tmp_path, web1="running")
    cursor = json.loads((tmp_path / "cursor.json").read_text())
    (tmp_path / "cursor.json").write_text(json.dumps({**cursor, "time": "2020-01-01T00:00:00Z"}))
    operations = agent.agent.host.operations
    one = operations.list()[0]
    monkeypatch.setattr(type(operations), "list", lambda _self: [one] * 1000)
    with following(agent, tmp_path) as source:
        assert "does not know all operations" in source.wait("gap")[0]["reason"]


@pytest.mark.parametrize(("args", "words"), [
    ({"endpoints": "x"}, "endpoints is not an argument"), ({"endpoint": 7}, "endpoint must be a text"),
    ({"endpoint": "ftp://x"}, "endpoint: must be unix:///path"), ({"events": ["reboot"]}, "events must be a list"),
    ({"events": []}, "events must be a list"), ({"servers": "web1"}, "servers must be a list"),
    ({"interval": 0}, "interval must be a number of seconds from 1 to 60"), ({"retry": True}, "retry must be"),
    ({"validate_certs": "no"}, "validate_certs must be true or false")])
def test_wrong_arguments(args, words):
    source = Source(**args).start()
    source._thread.join(60)
    assert isinstance(source.error, ValueError) and words in str(source.error)


def test_the_rulebooks_name_what_there_is():
    for path in (ROOT / "extensions/eda/rulebooks").glob("*.yml"):
        for ruleset in yaml.safe_load(path.read_text()):
            for source in ruleset["sources"]:
                assert "magnetar.compute.events" in source or "ansible.eda.webhook" in source
            for rule in ruleset["rules"]:
                for action in rule.get("actions", [rule.get("action")]):
                    playbook = (action.get("run_playbook") or {}).get("name")
                    if playbook:
                        assert (ROOT / "playbooks" / f"{playbook.rpartition('.')[2]}.yml").exists() or (
                            path.parent / Path(playbook).name).exists()
