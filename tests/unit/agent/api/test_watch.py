# SPDX-License-Identifier: GPL-3.0-or-later
"""GET /v1/watch: what a watcher is told, in which order, and what becomes of slow ones."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.api import serve
from magnetar_agent.api.app import AgentApplication
from magnetar_agent.api.watch import Watcher
from magnetar_core.errors import HypervisorDown, InvalidField, Unreachable
from magnetar_core.http.client import Client
from magnetar_core.kinds import Host as HostKind
from tests.support.agent.serving import served
from tests.unit.agent.conftest import Host

Events = Iterator[tuple[str, dict[str, Any]]]


@pytest.fixture
def application(host: Host, tmp_path: Path) -> Iterator[AgentApplication]:
    """The agent behind its socket."""
    with served(host.agent, serve.unix_socket(tmp_path / "agent.sock", "no-such-group")) as found:
        yield found


@pytest.fixture
def client(application: AgentApplication, tmp_path: Path) -> Iterator[Client]:
    """A client of it."""
    assert application
    with Client(f"unix://{tmp_path / 'agent.sock'}") as found:
        yield found


def until(events: Events, name: str, **holds: Any) -> dict[str, Any]:
    """The next event of this name in which *holds* is so; heartbeats do not make it wait for ever."""
    deadline = time.monotonic() + 60
    for event, data in events:
        if event == name and holds.items() <= data.items():
            return data
        assert time.monotonic() < deadline, (name, holds)
    raise AssertionError(f"the stream has ended without {name} {holds}")


def test_a_watcher_is_told_how_it_is_and_what_happens(client: Client, host: Host) -> None:
    id = host.server("old").resource["id"]
    events = client.watch(interval=0.5, timeout=30)
    told = [next(events) for _number in range(3)]
    assert [name for name, _data in told] == ["hello", "servers", "heartbeat"]
    hello, servers, beat = (data for _name, data in told)
    assert hello["api"] == 1 and hello["host"] == host.agent.host.name and hello["boot_id"] and hello["id"]
    assert servers["servers"] == [{"id": id, "name": "old", "power_state": "running", "status": "ACTIVE",
                                   "status_reason": ""}]
    assert set(beat["host"]) == {field.name for field in HostKind.fields} - {"orphans"}
    assert (beat["host"]["connected"], beat["host"]["running"], beat["operations"]) == (True, 1, 0)
    host.fake.guest_powers_off(id)
    assert until(events, "domain", id=id)["reason"] == "guest"
    off = until(events, "server", id=id, status="SHUTOFF")
    assert off["name"] == "old" and off["power_state"] == "off" and off["at"]
    while "shut itself down" not in off["status_reason"]:
        off = until(events, "server", id=id)
    client.ensure("server", "old", {"description": "changed"})
    assert until(events, "server", id=id)["status"] == "SHUTOFF"
    client.delete("server", "old")
    assert until(events, "server", id=id, removed=True)["at"]
    assert next(data for name, data in events if name == "heartbeat")["host"]["servers"] == 0
    events.close()


def test_a_server_that_is_made_is_built_then_active(
        client: Client, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not yet SHUTOFF when it is defined and waits for its start."""
    start, seen = host.fake.start, threading.Event()

    def waits(*given: Any) -> None:
        assert seen.wait(120)
        start(*given)

    monkeypatch.setattr(host.fake, "start", waits)
    events = client.watch()
    next(events)
    with ThreadPoolExecutor(1) as pool, Client(f"unix://{tmp_path / 'agent.sock'}") as other:
        making = pool.submit(other.ensure, "server", "new", {"flavor": {"vcpus": 1, "ram": 64}, "image": None})
        try:
            states = [until(events, "server", power_state="off")["status"]]
        finally:
            seen.set()
        made = making.result()
    while "ACTIVE" not in states:
        states.append(until(events, "server", id=made["resource"]["id"])["status"])
    assert states[0] == "BUILD"
    ended = until(events, "operation", key="new")
    assert (ended["status"], ended["kind"], ended["error"]) == ("succeeded", "server", None)
    assert ended["request_id"] == made["request_id"] and ended["id"]
    events.close()


def test_who_asks_for_less_is_told_less(client: Client, host: Host) -> None:
    of_all, of_servers = client.watch(), client.watch(events=["server"])
    for events in (of_all, of_servers):
        until(events, "heartbeat")
    id = host.server("web1").resource["id"]
    host.fake.guest_powers_off(id)
    told = []
    for name, data in of_servers:
        told.append(name)
        if data.get("status") == "SHUTOFF":
            break
    assert set(told) == {"server"}
    assert until(of_all, "domain", id=id)
    for events in (of_all, of_servers):
        events.close()
    with pytest.raises(InvalidField, match="server, domain, operation"):
        next(client.watch(events=["server", "heartbeat"]))


def test_a_failed_operation_says_why(client: Client) -> None:
    events = client.watch()
    next(events)
    with pytest.raises(InvalidField):
        client.ensure("server", "new", {"flavor": "nosuch", "image": None})
    assert until(events, "operation", key="new")["error"]["code"] == "invalid-field"
    events.close()


def test_when_libvirt_is_back_all_states_are_told_anew(client: Client, host: Host) -> None:
    host.server("web1")
    host.fake.disconnect()
    events = client.watch(interval=0.5, timeout=30)
    assert [next(events)[0], next(events)[0]] == ["hello", "heartbeat"]
    assert until(events, "heartbeat")["host"]["connected"] is False
    host.fake.reconnect()
    assert until(events, "servers")["servers"][0]["status"] == "ACTIVE"
    events.close()


def test_many_watchers_cost_no_threads(client: Client, host: Host) -> None:
    watchers = [client.watch() for _number in range(20)]
    for events in watchers:
        next(events)
    before = threading.active_count()
    more = [client.watch() for _number in range(20)]
    for events in more:
        until(events, "heartbeat")
    assert threading.active_count() <= before + 5  # those of starlette's pool that looked at the host
    host.server("web1")
    for events in (*watchers, *more):
        until(events, "server", status="ACTIVE")
        events.close()


def test_a_slow_watcher_is_cut_off(client: Client, application: AgentApplication, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watcher, "BEHIND", 20)
    quick = client.watch()
    next(quick)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(5)
        slow.connect(str(tmp_path / "agent.sock"))
        slow.sendall(b"GET /v1/watch HTTP/1.1\r\nhost: agent\r\n\r\n")
        assert slow.recv(16)
        for number in range(60):  # of 64 KiB each: more than the buffers of socket and server hold
            event = {"number": number, "text": "x" * 2**16}
            application.feed._do(partial(application.feed._send, "test", event))
            until(quick, "test", number=number)
        assert sum(not watcher.over for watcher in tuple(application.feed._watchers)) == 1
        with contextlib.suppress(ConnectionError):  # what it had been sent, and then the end
            while slow.recv(2**16):
                pass
    quick.close()


def test_it_ends_with_the_agent(client: Client, application: AgentApplication) -> None:
    events = client.watch()
    next(events)
    application.feed.close()
    assert "operation" not in [name for name, _data in events]  # the stream ends, and so does the generator
    with pytest.raises(HypervisorDown):
        next(client.watch())


@pytest.mark.parametrize("interval", ["0.1", "61", "nan", "often"])
def test_the_interval_is_checked(client: Client, interval: Any) -> None:
    with pytest.raises(InvalidField, match=r"interval: must be a number of seconds from 0\.5 to 60"):
        next(client.watch(interval=interval, timeout=5))


def test_silence_is_unreachable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        client = Client(f"unix://{tmp_path / 's'}")
        with pytest.raises(Unreachable, match=r"nothing for 0\.06 s"):
            next(client.watch(interval=0.02))
    with pytest.raises(Unreachable, match="no such socket"):
        next(Client(f"unix://{tmp_path / 'none'}").watch())
