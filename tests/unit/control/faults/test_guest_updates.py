# SPDX-License-Identifier: GPL-3.0-or-later
"""A new name and new metadata come to the host of a guest that runs, whatever happens on the way."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select

from magnetar_control.conductor.hosts import guest_updates
from magnetar_control.conductor.hosts.guest_updates import GuestUpdateSender
from magnetar_control.store.engine.tables import servers
from magnetar_core.errors import Conflict, Unreachable
from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture
def id(cloud):
    id = cloud.admin.boot("before", metadata={"is": "old"})["id"]
    yield id
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def told(cloud, id):
    """The metadata that its host has of a server."""
    with cloud.parts.working.client("kvm1") as client:
        row = client.get("server", id)
    return row["metadata"]


def row(cloud, id):
    with cloud.parts.working.database.read() as connection:
        return connection.execute(select(servers).where(servers.c.id == id)).one()


def rename(cloud, id, name):
    assert cloud.admin.put(f"/v2.1/servers/{id}", {"server": {"name": name}}).status == 200


def describe(cloud, id, **metadata):
    assert cloud.admin.put(f"/v2.1/servers/{id}/metadata", {"metadata": metadata}).status == 200


def test_it_is_told_at_once(cloud, id):
    describe(cloud, id, **{"is": "new"})
    eventually(lambda: told(cloud, id) == {"is": "new"})
    eventually(lambda: row(cloud, id).guest_data_due is None)
    before = row(cloud, id).guest_revision
    rename(cloud, id, "after")
    eventually(lambda: row(cloud, id).guest_data_due is None)
    assert row(cloud, id).guest_revision == before + 1
    # What the guest does not ask for is nothing to tell.
    assert cloud.admin.put(f"/v2.1/servers/{id}", {"server": {"accessIPv4": "192.0.2.9"}}).status == 200
    assert row(cloud, id).guest_revision == before + 1


class Agent:
    """In place of a client: notes what it is told, and raises what *fails* says, once each."""

    def __init__(self, *fails):
        self.fails, self.heard = list(fails), []

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass

    def event(self, noun, id, event, args, request_id):
        assert (noun, event) == ("server", "tell_guest")
        if self.fails and (fails := self.fails.pop(0)):
            raise fails
        self.heard.append((id, args["revision"], args["guest_data"]["name"], args["metadata"], request_id))


@pytest.fixture
def alone(cloud, monkeypatch):
    """Only the test tells."""
    monkeypatch.setattr(GuestUpdateSender, "start_senders", lambda _self: None)
    yield GuestUpdateSender(cloud.parts.working, threading.Event())


def test_a_host_that_is_away_is_told_later_and_only_the_last(cloud, id, alone, monkeypatch):
    agent = Agent(Unreachable("It is away."))
    monkeypatch.setattr(cloud.parts.working, "client", lambda _host: agent)
    rename(cloud, id, "one")
    with pytest.raises(Unreachable):
        alone.tell("kvm1")
    rename(cloud, id, "two")
    assert alone.tell("kvm1") == 1 and alone.tell("kvm1") == 0
    assert [one[2] for one in agent.heard] == ["two"]


def test_what_changes_while_it_is_told_is_told_too(cloud, id, alone, monkeypatch):
    agent = Agent()
    monkeypatch.setattr(cloud.parts.working, "client", lambda _host: agent)
    rename(cloud, id, "one")
    noted = agent.event

    def event(*words, **more):
        noted(*words, **more)
        if len(agent.heard) == 1:
            rename(cloud, id, "two")

    agent.event = event
    assert [alone.tell("kvm1") for _time in range(3)] == [1, 1, 0]
    assert [one[2] for one in agent.heard] == ["one", "two"]
    assert agent.heard[0][1] < agent.heard[1][1] and agent.heard[0][4] != agent.heard[1][4]


def test_a_conductor_that_dies_in_between_tells_again(cloud, id, alone, monkeypatch):
    agent = Agent()
    monkeypatch.setattr(cloud.parts.working, "client", lambda _host: agent)
    rename(cloud, id, "one")
    with monkeypatch.context() as patched:
        patched.setattr(guest_updates, "update", lambda _table: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            alone.tell("kvm1")
    assert alone.tell("kvm1") == 1
    assert agent.heard[0] == agent.heard[1]


def test_a_server_that_is_refused_keeps_no_other(cloud, id, alone, monkeypatch):
    other = cloud.admin.boot("other")["id"]
    try:
        agent = Agent(Conflict("Not now."))
        monkeypatch.setattr(cloud.parts.working, "client", lambda _host: agent)
        for one in (id, other):
            rename(cloud, one, "new")
        with pytest.raises(Conflict):
            alone.tell("kvm1")
        assert len(agent.heard) == 1 and alone.tell("kvm1") == 1
        assert {one[0] for one in agent.heard} == {id, other}
    finally:
        monkeypatch.undo()
        cloud.admin.delete(f"/v2.1/servers/{other}")


def test_a_server_with_an_action_in_hand_waits(cloud, id, alone):
    rename(cloud, id, "one")
    database = cloud.parts.working.database
    for task, due in (("rebooting", 0), (None, 1)):
        with database.write() as connection:
            connection.execute(servers.update().where(servers.c.id == id).values(task_state=task))
        assert alone.tell("kvm1") == due
