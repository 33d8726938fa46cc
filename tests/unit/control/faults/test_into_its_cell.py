# SPDX-License-Identifier: GPL-3.0-or-later
"""A new server goes from cell0 into its cell: a crash between the two databases, and what users ask for meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from magnetar_control.conductor import audit
from magnetar_control.store import servers
from magnetar_control.store.database import Database
from tests.unit.control.cloud import Cloud

LIMIT = 20.0


@pytest.fixture(scope="module")
def cloud(databases):
    with Cloud(hosts=1, databases=databases) as made:
        made.admin.image()
        yield made


def made(cloud, name):
    """Ask for a server; returns its uuid at once."""
    reply = cloud.admin.post("/v2.1/servers", {"server": {
        "name": name, "flavorRef": "1", "imageRef": cloud.admin.image(), "networks": "none"}}, "2.60")
    assert reply.status == 202, reply
    return reply.json["server"]["id"]


def gone(cloud, id):
    """Wait until there is no such server, and nothing left of it."""
    deadline = time.monotonic() + LIMIT
    while cloud.admin.get(f"/v2.1/servers/{id}").status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert audit.check(cloud.parts.store, cloud.parts.agents, cloud.services, pause=0.1) == []


def test_a_crash_before_cell0_has_forgotten_it(cloud, monkeypatch):
    """It is in both; the cell's counts, and cell0's conductor does not begin again."""
    died = []

    @contextlib.contextmanager
    def write(database):
        with usual(database) as connection:
            yield connection
        if database.name != "cell0" and len(arrived) > len(died):
            died.append(arrived[-1])
            raise ConnectionError("the conductor died before it could forget")

    def arrive(*args):
        found = inner(*args)
        arrived.append(found)
        return found

    arrived, usual, inner = [], Database.write, servers.arrive
    monkeypatch.setattr(Database, "write", write)
    monkeypatch.setattr(servers, "arrive", arrive)
    monkeypatch.setattr("magnetar_control.conductor.conductor.AGAIN", 2.0)
    monkeypatch.setattr("magnetar_control.store.actions.LEASE", 1.0)
    id = made(cloud, "quickly")
    assert cloud.admin.settled(id, 40)["status"] == "ACTIVE" and died
    cloud.admin.delete(f"/v2.1/servers/{id}")
    gone(cloud, id)


@pytest.fixture
def going(cloud, monkeypatch):
    """A server that is between the two until the test lets it go; and whoever asks something of it."""
    there, go, arrive = threading.Event(), threading.Event(), servers.arrive

    def slow(*args):
        there.set()
        assert go.wait(LIMIT)
        return arrive(*args)

    monkeypatch.setattr(servers, "arrive", slow)
    id = made(cloud, "going")
    assert there.wait(LIMIT)
    with ThreadPoolExecutor(8) as pool:
        def asked(*calls):
            asking = [pool.submit(*call) for call in calls]
            time.sleep(0.3)  # until they wait for what the conductor holds
            go.set()
            return [one.result().status for one in asking]

        try:
            yield id, asked
        finally:
            go.set()
    cloud.admin.delete(f"/v2.1/servers/{id}")
    gone(cloud, id)


def test_what_is_changed_meanwhile_is_kept(cloud, going):
    id, asked = going
    ask, path = cloud.admin, f"/v2.1/servers/{id}"
    assert asked((ask.put, path, {"server": {"name": "renamed"}}), (ask.act, id, "lock")) == [200, 202]
    found = cloud.admin.settled(id)
    assert (found["status"], found["name"], found["locked"]) == ("ACTIVE", "renamed", True)
    listed = cloud.admin.get(f"{path}/os-instance-actions").json["instanceActions"]
    assert {one["action"] for one in listed} == {"create", "lock"}


def test_a_server_that_is_deleted_meanwhile_goes(cloud, going):
    id, asked = going
    assert asked((cloud.admin.delete, f"/v2.1/servers/{id}")) == [204]
    gone(cloud, id)
