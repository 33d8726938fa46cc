# SPDX-License-Identifier: GPL-3.0-or-later
"""A new server goes from cell0 into its cell: a crash between the two databases, and what users ask for meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import func, select

from magnetar_control.conductor.periodic import audit
from magnetar_control.store.actions import actions, stopped_actions
from magnetar_control.store.engine import schema, tables
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.servers import servers
from tests.support.control.cloud import Cloud

LIMIT = 120.0


@pytest.fixture(scope="module")
def cloud(databases):
    with Cloud(hosts=1, databases=databases) as made:
        made.admin.image()
        yield made


@pytest.fixture
def database_pair(tmp_path):
    """Two files: cell0's and a cell's."""
    pair = [Database(f"sqlite:///{tmp_path}/{name}.db", name) for name in ("cell0", "cell1")]
    for one in pair:
        with one.write() as connection:
            schema.create_tables(connection, tables.CELL)
    yield pair
    for one in pair:
        one.close()


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
    assert audit.run_with_state(cloud.parts.store, cloud.parts.agents, cloud.services, pause=0.1)[0] == []


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

    arrived, usual, inner = [], Database.write, servers.insert_scheduled_servers
    monkeypatch.setattr(Database, "write", write)
    monkeypatch.setattr(servers, "insert_scheduled_servers", arrive)
    monkeypatch.setattr("magnetar_control.conductor.worker.action_runner.AGAIN", 2.0)
    monkeypatch.setattr("magnetar_control.store.actions.actions.LEASE", 1.0)
    id = made(cloud, "quickly")
    assert cloud.admin.settled(id)["status"] == "ACTIVE" and died
    cloud.admin.delete(f"/v2.1/servers/{id}")
    gone(cloud, id)


@pytest.fixture
def going(cloud, monkeypatch):
    """A server that is between the two until the test lets it go; and whoever asks something of it."""
    there, go, arrive = threading.Event(), threading.Event(), servers.insert_scheduled_servers

    def slow(*args):
        there.set()
        assert go.wait(LIMIT)
        return arrive(*args)

    monkeypatch.setattr(servers, "insert_scheduled_servers", slow)
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


def new(database, id):
    """A server in cell0 whose creation is in hand."""
    with database.write() as connection:
        servers.insert_server_rows(connection, [{"id": id, "project_id": "p", "user_id": "u", "name": "n",
                                                 "vm_state": "building",
                                                 "task_state": "scheduling", "flavor_id": "1", "flavor": "{}",
                                                 "created_at": utc_now()}], "req-1")
    assert [row.server_id for row in actions.lease_next_actions(database, "a", 1, {}).rows] == [id]


def deleted(connection, id):
    """As DELETE of the API does."""
    stopped_actions.cancel_server_actions(connection, id)
    assert servers.request_server_action(connection, servers.fetch_server_row(connection, id), "delete", "req-2", "u",
                                         "p")


def test_a_delete_that_began_before_it_left_goes_along(postgres):
    """The conductor waits for who asks; what he has written by then is not in what its statement saw at first."""
    id, left = str(uuid.uuid4()), []

    def leave():
        with postgres.write() as connection:
            left.extend(servers.remove_scheduled_servers(connection, [id]))

    new(postgres, id)
    thread = threading.Thread(target=leave)
    with postgres.write() as connection:
        deleted(connection, id)
        thread.start()
        thread.join(0.5)  # it waits
    thread.join(LIMIT)
    assert left[0].server["task_state"] == "deleting"
    assert [one["action"] for one in left[0].actions] == ["create", "delete"]
    with postgres.read() as connection:
        assert connection.execute(select(func.count()).select_from(tables.actions)).scalar() == 0


@pytest.mark.parametrize("begins", [True, False], ids=["begins", "waits"])
def test_what_was_asked_later_comes_after_the_creation(database_pair, begins):
    cell0, cell = database_pair
    ids = [str(uuid.uuid4()) for _at in range(3)]
    for id in ids:
        new(cell0, id)
    with cell0.write() as connection:
        deleted(connection, ids[1])
    with cell0.write() as source, cell.write() as connection:
        arrived = servers.insert_scheduled_servers(connection, [
            (left, "kvm1") for left in servers.remove_scheduled_servers(source, ids)], partial(
            actions.insert_running_actions, cell, connection, "b") if begins else None)
    assert {one.server.id: one.no_other_action for one in arrived} == {ids[0]: True, ids[1]: False, ids[2]: True}
    tasks = {one.server.id: one.server.task_state for one in arrived}
    assert tasks[ids[1]] == "deleting" and {tasks[ids[0]], tasks[ids[2]]} == {"spawning" if begins else "scheduling"}
    with cell.read() as connection:
        found = connection.execute(select(tables.actions).order_by(tables.actions.c.id)).all()
    state = "running" if begins else "queued"
    assert {(row.server_id, row.state, row.host) for row in found[:3]} == {(id, state, "kvm1") for id in ids}
    assert [(row.server_id, row.action, row.state) for row in found[3:]] == [(ids[1], "delete", "queued")]
    assert {one.creation.id for one in arrived} == {row.id for row in found[:3]}
    with cell0.read() as connection:
        assert connection.execute(select(func.count()).select_from(tables.servers)).scalar() == 0
    assert servers_left(cell0, ids) == []


def servers_left(database, ids):
    with database.write() as connection:
        return servers.remove_scheduled_servers(connection, ids)


def test_a_delete_after_a_crash_between_the_two_follows(database_pair):
    cell0, cell = database_pair
    id = str(uuid.uuid4())
    new(cell0, id)
    with cell0.write() as source, cell.write() as connection:
        servers.insert_scheduled_servers(connection, [(left, "kvm1")
                                                      for left in servers.remove_scheduled_servers(source, [id])])
        source.rollback()  # the crash
    assert [row.server_id for row in actions.lease_next_actions(cell, "b", 1, {}).rows] == [id]
    with cell0.write() as connection:
        deleted(connection, id)
    for _again in range(2):
        with cell0.write() as source, cell.write() as connection:
            [left] = servers.remove_scheduled_servers(source, [id])
            servers.insert_late_actions(connection, left)
            source.rollback()
    with cell.read() as connection:
        assert servers.fetch_server_row(connection, id).task_state == "deleting"
        found = connection.execute(select(tables.actions.c.action, tables.actions.c.state, tables.actions.c.cancel)
                                   .order_by(tables.actions.c.id)).all()
    assert found == [("create", "running", True), ("delete", "queued", False)]
