# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor that stood still for longer than its lease: what another has done since, or is doing, is left alone."""

from __future__ import annotations

import copy
import threading
import time

import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.flows import server_create
from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.steps import schedule
from magnetar_control.conductor.worker.work import HostDown
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.tables import actions
from tests.support.control.cloud import Cloud
from tests.unit.control.moves.dying import take

LIMIT = 120.0
LONG_AGO = "2000-01-01T00:00:00.000000"


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=2) as made:
        made.admin.image()
        yield made


def asked(cloud, name):
    """The uuid of a new server, at once."""
    return cloud.admin.post("/v2.1/servers", {"server": {
        "name": name, "flavorRef": "1", "networks": "none", "imageRef": cloud.admin.image()}},
        "2.60").json["server"]["id"]


def gone(cloud, id):
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None


def change(cloud, database, number, **values):
    with database.write() as connection:
        connection.execute(update(actions).where(actions.c.id == number).values(**values))


def test_it_does_not_begin_its_own_work_again(cloud, monkeypatch):
    """Its lease is over, it takes the action before it beats: that is the same holder, and the same work."""
    id, database = cloud.admin.boot("still", networks="none")["id"], cloud.parts.working.database
    real, works, go = CELL["os-stop"], [], threading.Event()

    def attempt(work):
        works.append(work)
        change(cloud, database, work.action.id, lease_until=LONG_AGO)
        assert go.wait(LIMIT)
        return real(work)

    monkeypatch.setitem(CELL, "os-stop", attempt)
    assert cloud.admin.act(id, "os-stop").status == 202
    deadline, attempts = time.monotonic() + LIMIT, 1
    while attempts < 2:
        assert time.monotonic() < deadline
        if works:  # it may have beaten before it looked for work
            change(cloud, database, works[0].action.id, lease_until=LONG_AGO)
        time.sleep(0.05)
        with database.read() as connection:
            attempts = connection.execute(select(actions.c.attempts).where(
                actions.c.server_id == id, actions.c.action == "os-stop")).scalar_one()
    go.set()
    assert cloud.admin.settled(id)["status"] == "SHUTOFF" and len(works) == 1
    gone(cloud, id)


def test_a_build_that_failed_meanwhile_removes_nothing(cloud, monkeypatch):
    real, hosts = server_create.make_server, []

    def make(work, host, nics):
        if hosts:
            return real(work, host, nics)
        hosts.append(host)
        other = copy.copy(work.conductor)
        other.holder = "other:1"
        CELL["create"](take(cloud, work.action.id, other))
        raise HostDown("the connection was cut meanwhile")

    monkeypatch.setattr(server_create, "make_server", make)
    id = asked(cloud, "built")
    found = cloud.admin.settled(id)
    assert (found["status"], found["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", hosts[0])
    deadline = time.monotonic() + LIMIT
    while cloud.parts.working.running_actions.actions:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = cloud.admin.settled(id)
    assert (found["status"], found["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", hosts[0])
    with cloud.parts.agents.client(cloud.hosts[hosts[0]]) as client:
        assert client.get("server", id)["power_state"] == "running"
    gone(cloud, id)


def test_it_claims_no_host(cloud, monkeypatch):
    real, claimed = schedule._place, []

    def place(work, spec):
        if claimed:
            return real(work, spec)
        change(cloud, work.database, work.action.id, holder="other:1")
        work._began -= 60
        try:
            return real(work, spec)
        finally:
            with cloud.parts.api_database.read() as connection:
                claimed.append(list(allocations.fetch_server_claims(connection, work.id)))
            change(cloud, work.database, work.action.id, lease_until=LONG_AGO)

    monkeypatch.setattr(schedule, "_place", place)
    id = asked(cloud, "once")
    assert cloud.admin.settled(id)["status"] == "ACTIVE" and claimed == [[]]
    with cloud.parts.api_database.read() as connection:
        assert len(allocations.fetch_server_claims(connection, id)) == 1
    gone(cloud, id)
