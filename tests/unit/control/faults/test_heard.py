# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of a guest: followed, but for what an action does, and what comes late."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from types import SimpleNamespace

import pytest

from magnetar_control.agents import Agents
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.hosts.watch_loop import WatchLoop
from magnetar_control.store.hosts.host_leases import Renewal
from magnetar_control.store.servers import servers
from magnetar_core.power import power_number
from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture
def id(cloud):
    """Of a running server with which nobody has to do any more."""
    id = cloud.admin.boot("heard")["id"]
    held = cloud.parts.working.running_actions.actions
    eventually(lambda: all(work.id != id for work in list(held.values())))  # it was active before that was over
    yield id
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


@pytest.fixture
def work(cloud, id):
    """An action of the server, in the conductor's hands."""
    conductor = cloud.parts.working
    conductor.running_actions.actions["cell1", -1] = SimpleNamespace(id=id, last_report=None)
    yield lambda: conductor.running_actions.actions.pop(("cell1", -1))
    conductor.running_actions.actions.pop(("cell1", -1), None)


class Host:
    """The agent's watch as a conductor has it, with a guest that is in truth as *word* says."""

    def __init__(self, cloud, id, word="running"):
        self.watch, self.id, self.word, self.asked = HostWatch(cloud.parts.working), id, word, 0

    def get(self, noun, id):
        assert (noun, id) == ("server", self.id)
        self.asked += 1
        return {"id": id, "power_state": self.word}

    def tells(self, *words):
        for word in words:
            self.watch._on_event("kvm1", self, "server", {"id": self.id, "name": "heard", "power_state": word})


def state(cloud, id):
    with cloud.parts.working.database.read() as connection:
        row = servers.fetch_server_row(connection, id)
    return row.vm_state, row.power_state


def test_a_guest_that_powers_itself_off_is_shut_off(cloud, id):
    Host(cloud, id, "off").tells("off")
    assert state(cloud, id) == ("stopped", power_number("off"))


def test_what_is_heard_late_is_not_believed(cloud, id):
    """An action's answer may come before what was told on the way to it."""
    host = Host(cloud, id)
    host.tells("off", "running")
    assert state(cloud, id) == ("active", power_number("running")) and host.asked == 1


def test_nothing_is_asked_while_an_action_is_in_hand(cloud, id, work, monkeypatch):
    host = Host(cloud, id, "off")
    with monkeypatch.context() as patched:
        patched.setattr(host.watch, "_changed_servers", lambda *_given: pytest.fail("a query"))
        host.tells("off", "running", "off")
    assert not host.asked and state(cloud, id) == ("active", power_number("running"))
    work()
    host.tells("off")
    assert state(cloud, id) == ("stopped", power_number("off"))


def test_what_is_heard_at_the_end_of_an_action_is_believed_after_it(cloud, id, monkeypatch):
    """A guest that powers itself off in the moment between being active and the end of what made it so."""
    conductor, seen = cloud.parts.working, []
    ended = conductor.ended

    def off(action, result):
        with conductor.agents.client(conductor.endpoint("kvm1")) as client:
            client.ensure("server", id, {"power": "off"})
        eventually(lambda: any(work.last_report and work.last_report[1]["power_state"] == "off" for work in
                               list(conductor.running_actions.actions.values())))
        seen.append(state(cloud, id))
        ended(action, result)

    with monkeypatch.context() as patched:
        patched.setattr(conductor, "ended", off)
        cloud.admin.act(id, "reboot", {"type": "HARD"})
        eventually(lambda: state(cloud, id) == ("stopped", power_number("off")))
    assert seen == [("active", power_number("running"))]


def test_a_password_that_a_guest_has_left_is_kept_and_what_was_cleared_does_not_come_back(cloud, id, monkeypatch):
    """A host that was away when it was cleared tells of it again, and is told."""
    watch, asked = HostWatch(cloud.parts.working), []

    def told(password):
        watch._on_event("kvm1", SimpleNamespace(), "server", {"id": id, "power_state": "running", "password": password})

    def shown():
        return cloud.admin.get(f"/v2.1/servers/{id}/os-server-password").json["password"]

    @contextlib.contextmanager
    def client(name):
        yield SimpleNamespace(event=lambda *words, **_more: asked.append((name, *words)))

    monkeypatch.setattr(cloud.parts.working, "client", client)
    assert shown() == ""
    told("sealed-1")
    assert shown() == "sealed-1" and not asked
    cloud.admin.delete(f"/v2.1/servers/{id}/os-server-password")
    assert shown() == ""
    told("sealed-1")
    assert shown() == "" and asked == [("kvm1", "server", id, "clear_password", {})]
    told("sealed-2")
    assert shown() == "sealed-2" and len(asked) == 1
    # The protocol of the modules says the same.
    key = f"/v1/server/{id}"
    assert cloud.admin.get(key).json["guest_password"] == "sealed-2"
    done = cloud.admin.post(f"{key}/events?wait=20", {"event": "clear_password", "args": {}})
    assert done.status == 200 and cloud.admin.get(key).json["guest_password"] == shown() == ""


def test_a_host_without_libvirt_has_what_it_told_last(tmp_path, monkeypatch):
    """Not what it told when it was connected to, which is older."""
    monkeypatch.setattr("magnetar_control.conductor.hosts.watch_loop.PAUSE", 0.01)
    saved, stopped = [], threading.Event()
    beats = [{"connected": True, "vcpus": 8, "mdevs": "none free"}, {"connected": False, "vcpus": None, "mdevs": None}]
    agent = [b"HTTP/1.1 200 OK\r\ncontent-length: 52\r\n\r\n"
             b'{"connected": true, "vcpus": 8, "mdevs": "all free"}',
             b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (
                 len(frame), frame) for beat in beats for frame in [
                     b"event: heartbeat\ndata: " + json.dumps({"host": beat}).encode() + b"\n\n"])]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "agent.sock"))
        listening.listen()
        threading.Thread(target=answer_each, args=(listening, agent), daemon=True).start()
        row = SimpleNamespace(endpoint=f"unix:{tmp_path}/agent.sock", info={})
        conductor = SimpleNamespace(
            agents=Agents(), settings=SimpleNamespace(heartbeat=1.0), begin_settling=lambda: None,
            states=SimpleNamespace(rows={"kvm1": row}, rules=SimpleNamespace(reads_reports=False),
                                   up=lambda *_args, **_more: None))
        loop = WatchLoop(conductor, lambda *_event: None, lambda _name, host: saved.append(host["mdevs"]),
                         lambda *_host: False)
        monkeypatch.setattr(loop.heartbeats, "_write", lambda heard, *_more: loop.soon(
            loop._written, Renewal(frozenset(heard), frozenset(), frozenset())))
        monkeypatch.setattr(loop.heartbeats, "report_problem", lambda *_problem: stopped.set())
        loop.add(["kvm1"])
        eventually(lambda: len(saved) == 3)
        loop.close()
    assert saved == ["all free", "none free", "none free"] and not stopped.is_set()


def answer_each(listening, answers):
    """Send the *answers* to the requests of one client, one after the other."""
    client, _address = listening.accept()
    for answer in answers:
        client.recv(65536)
        client.sendall(answer)
    client.recv(65536)
