# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that were asked for at about the same time find their hosts together: what that asks of the databases, what
cannot be together, and a crash at each transaction."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter

import pytest
from sqlalchemy import func, select

from magnetar_control.conductor.flows.flows import FLOWS
from magnetar_control.conductor.periodic import audit
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import Database
from magnetar_control.store.servers import servers
from tests.support.control.cloud import Cloud
from tests.support.control.counting import counted

LIMIT = 120.0
#: What ends in a transaction of each database, in the order in which they begin.
DATABASES = ("api", "cell0", "cell1")


@pytest.fixture(scope="module")
def cloud(databases):
    with Cloud(hosts=2, databases=databases) as made:
        made.admin.image()
        made.admin.boot("before")
        yield made


@pytest.fixture
def asked(cloud, monkeypatch):
    """Asks for servers by name and what else each is to be; when the block ends, the conductor finds them at once."""
    usual, held, looking = actions.lease_next_actions, threading.Event(), threading.Lock()

    def take(database, *given, **named):
        if database.name != "cell0":
            return usual(database, *given, **named)
        with looking:
            return actions.Batch([], more=True) if held.is_set() else usual(database, *given, **named)

    monkeypatch.setattr(actions, "lease_next_actions", take)

    @contextlib.contextmanager
    def asking(**wanted):
        with looking:  # nobody does just now who began before
            held.set()
        ids = {}
        for name, more in wanted.items():
            body = {"name": name, "flavorRef": "1", "imageRef": cloud.admin.image(), "networks": "none", **more}
            reply = cloud.admin.post("/v2.1/servers", {
                "server": body, "os:scheduler_hints": body.pop("hints", {})}, "2.74")
            assert reply.status == 202, reply
            ids[name] = reply.json["server"]["id"]
        try:
            yield ids
        finally:
            held.clear()
            cloud.parts.store.cell0.signals.notify(servers.ACTIONS_CHANGED)

    return asking


@pytest.fixture
def begun(monkeypatch):
    """How many began together each time; and what is called in place of it, with the works and the usual way."""
    usual, seen = FLOWS["together"]["create"], []

    def together(works):
        seen.append(len(works))
        return begun.within(works, usual)

    begun = type("Begun", (), {"seen": seen, "within": staticmethod(lambda works, usual: usual(works))})
    monkeypatch.setitem(FLOWS["together"], "create", together)
    return begun


def settled(cloud, ids):
    """The servers when nothing is done to them any more, by name; then they are removed, and nothing is left."""
    found = {name: cloud.admin.settled(id, LIMIT) for name, id in ids.items()}
    with cloud.parts.api_database.read() as connection:
        for name, id in ids.items():
            assert len(allocations.fetch_server_claims(connection, id)) == (found[name]["status"] == "ACTIVE"), name
    for id in ids.values():
        cloud.admin.delete(f"/v2.1/servers/{id}")
    deadline = time.monotonic() + LIMIT
    while any(cloud.admin.get(f"/v2.1/servers/{id}").status != 404 for id in ids.values()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert audit.run_with_state(cloud.parts.store, cloud.parts.agents, cloud.services, pause=0.1)[0] == []
    with cloud.parts.store.cell0.read() as connection:
        assert connection.execute(select(func.count()).select_from(tables.actions).where(
            tables.actions.c.state.in_(("queued", "running")))).scalar() == 0
    return found


def statuses(found):
    return Counter(server["status"] for server in found.values())


def databases_of(cloud):
    store = cloud.parts.store
    [cell] = [database for one, database in store.databases() if one.name == "cell1"]
    return {"api": store.api, "cell0": store.cell0, "cell1": cell}


def test_many_take_as_many_statements_as_few(cloud, asked, begun):
    def counting(works, usual):
        with counted(here=True, **databases_of(cloud)) as seen:
            left = usual(works)
        took.append(Counter(name for name, _statement in seen))
        return left

    begun.within, took = counting, []
    for names in ("abc", "defghi"):
        with asked(**{name: {} for name in names}) as ids:
            pass
        found = settled(cloud, ids)
        assert statuses(found) == {"ACTIVE": len(names)}
        assert {one["OS-EXT-SRV-ATTR:host"] for one in found.values()} == {"kvm1", "kvm2"}  # they are spread
    assert begun.seen == [3, 6]
    assert took[0] == took[1] == {"api": 4, "cell0": 2, "cell1": 7}


def test_what_was_asked_meanwhile_goes_along(cloud, asked, begun):
    with asked(first={}, locked={}, renamed={}, gone={}) as ids:
        assert cloud.admin.act(ids["locked"], "lock").status == 202
        assert cloud.admin.put(f"/v2.1/servers/{ids['renamed']}", {"server": {"name": "new"}}).status == 200
        assert cloud.admin.delete(f"/v2.1/servers/{ids['gone']}").status == 204
    assert cloud.admin.settled(ids.pop("gone"), LIMIT) is None
    found = settled(cloud, ids)
    assert statuses(found) == {"ACTIVE": 3} and begun.seen == [3]
    assert found["locked"]["locked"] and found["renamed"]["name"] == "new"


def test_one_that_no_host_takes_keeps_no_other(cloud, asked, begun):
    flavor = cloud.admin.post("/v2.1/flavors", {"flavor": {
        "name": "huge", "vcpus": 1, "ram": 2**30, "disk": 0}}).json["flavor"]["id"]
    with asked(one={}, huge={"flavorRef": flavor}, other={}) as ids:
        pass
    found = settled(cloud, ids)
    assert begun.seen == [3]
    assert {name: one["status"] for name, one in found.items()} == {"one": "ACTIVE", "huge": "ERROR", "other": "ACTIVE"}
    assert "No valid host" in found["huge"]["fault"]["message"]


def test_those_with_hints_follow_one_another(cloud, asked, begun):
    """Which host is another one than a first server's is known when that has one."""
    with asked(first={}, second={}) as ids:
        pass
    assert [cloud.admin.settled(id, LIMIT)["status"] for id in ids.values()] == ["ACTIVE"] * 2
    with asked(third={}, apart={"hints": {"different_host": ids["first"]}},
               also={"hints": {"different_host": ids["first"]}}) as more:
        pass
    found = settled(cloud, {**ids, **more})
    hosts = {name: one["OS-EXT-SRV-ATTR:host"] for name, one in found.items()}
    assert statuses(found) == {"ACTIVE": 5} and hosts["apart"] == hosts["also"] != hosts["first"]
    assert begun.seen == [2, 3]


def test_a_host_that_others_filled_meanwhile(cloud, asked, begun, monkeypatch):
    refused, usual = [], allocations.claim_for_servers

    def refuse(connection, claims):
        assert usual(connection, claims)
        refused.append(len(claims))
        return False

    monkeypatch.setattr(allocations, "claim_for_servers", refuse)
    with asked(one={}, two={}, three={}) as ids:
        pass
    assert statuses(settled(cloud, ids)) == {"ACTIVE": 3} and refused == begun.seen == [3]


def test_no_more_begin_at_a_host_than_it_bears(cloud, asked, begun, monkeypatch):
    usual, rooms = actions.free_action_slots, []

    def room(database, connection, places, kind, limits):
        rooms.append(sorted(usual(database, connection, places, kind, {"build": 1}).items()))
        return Counter(dict(rooms[-1]))

    monkeypatch.setattr(actions, "free_action_slots", room)
    with asked(**{f"s{at}": {} for at in range(6)}) as ids:
        pass
    assert statuses(settled(cloud, ids)) == {"ACTIVE": 6}
    assert begun.seen == [6] and rooms == [[("kvm1", 1), ("kvm2", 1)]]


@pytest.mark.parametrize("moment", ["before", "rolled back", "committed"])
@pytest.mark.parametrize("name", DATABASES)
def test_a_crash_at_each_transaction(cloud, asked, begun, monkeypatch, name, moment):
    usual, died, here = Database.write, [], threading.local()

    @contextlib.contextmanager
    def write(database):
        dies = getattr(here, "together", False) and database.name == name and not died
        if dies:
            died.append(moment)
        if dies and moment == "before":
            raise ConnectionError("the database is away")
        with usual(database) as connection:
            yield connection
            if dies and moment == "rolled back":
                raise ConnectionError("the database is away")
        if dies:
            raise ConnectionError("the database is away")

    def within(works, usual_way):
        here.together = True
        try:
            return usual_way(works)
        finally:
            here.together = False

    begun.within = within
    monkeypatch.setattr(Database, "write", write)
    monkeypatch.setattr("magnetar_control.conductor.worker.action_runner.AGAIN", 0.2)
    monkeypatch.setattr("magnetar_control.store.actions.actions.LEASE", 1.0)
    with asked(one={}, two={}, three={}) as ids:
        pass
    found = settled(cloud, ids)
    assert statuses(found) == {"ACTIVE": 3} and died == [moment] and begun.seen == [3]
