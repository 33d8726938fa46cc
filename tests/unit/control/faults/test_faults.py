# SPDX-License-Identifier: GPL-3.0-or-later
"""A cell whose database is away, two conductors of one name, clocks that differ, certificates and users that end."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.flows.flows import FLOWS
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.worker.action_runner import ActionRunner
from magnetar_control.services.volume import worker as volume_work
from magnetar_control.store.actions import actions as queue
from magnetar_control.store.engine import bell, tables
from magnetar_control.store.engine import database as database_module
from magnetar_control.store.servers import servers
from tests.support.control.cloud import Cloud
from tests.support.control.faults import away
from tools import postgres as postgresql


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture
def image(cloud):
    return cloud.admin.image()


def well(cloud):
    return audit.run_with_state(cloud.parts.store, cloud.parts.agents, cloud.services, pause=0.1)[0] == []


# A cell's database is away --------------------------------------------------------------------------------------
def test_lists_say_what_is_missing(cloud, monkeypatch):
    id = cloud.admin.boot("listed")["id"]
    with away("cell1", monkeypatch):
        found = cloud.admin.get("/v2.1/servers/detail", "2.69")
        assert found.status == 200 and [(one["id"], one["status"]) for one in found.json["servers"]] == [
            (id, "UNKNOWN")]
        before = cloud.admin.get("/v2.1/servers/detail", "2.68")
        assert before.status == 200 and before.json["servers"] == []
        assert cloud.admin.get(f"/v2.1/servers/{id}", "2.68").status == 503
        shown = cloud.admin.get(f"/v2.1/servers/{id}", "2.69").json["server"]
        assert shown["status"] == "UNKNOWN" and shown["tenant_id"] == cloud.admin.project_id
        assert cloud.caller("stranger", "elsewhere").get(f"/v2.1/servers/{id}", "2.69").status == 404
    assert cloud.admin.server(id)["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def test_an_action_is_refused_and_changes_nothing(cloud, monkeypatch):
    id = cloud.admin.boot("asked")["id"]
    with away("cell1", monkeypatch):
        reply = cloud.admin.act(id, "os-stop")
        assert reply.status == 503 and "Try again" in str(reply.json) and reply.headers["retry-after"], reply
        assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 503
    assert cloud.admin.settled(id)["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def test_a_create_waits_for_the_cell(cloud, image, monkeypatch):
    with away("cell1", monkeypatch):
        reply = cloud.admin.post("/v2.1/servers", {"server": {
            "name": "patient", "flavorRef": "1", "imageRef": image, "networks": "auto"}}, "2.60")
        assert reply.status == 202, reply
        id = reply.json["server"]["id"]
        time.sleep(0.1)
    assert cloud.admin.settled(id)["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None
    assert well(cloud)


# Unexpected failures --------------------------------------------------------------------------------------------
def test_a_flow_that_fails_unexpectedly_is_tried_again_and_ends(cloud, monkeypatch):
    tries = []

    def broken(work):
        tries.append(work.action.attempts)
        raise RuntimeError("a mistake of ours")

    monkeypatch.setitem(FLOWS["cell"], "os-stop", broken)
    monkeypatch.setattr("magnetar_control.conductor.worker.action_runner.AGAIN", 0.0)
    monkeypatch.setattr("magnetar_control.conductor.worker.action_runner.TRIES", 3)
    id = cloud.admin.boot("unlucky")["id"]
    assert cloud.admin.act(id, "os-stop").status == 202
    found = cloud.admin.settled(id)
    assert tries == [1, 2, 3] and found["status"] == "ERROR" and "a mistake of ours" in found["fault"]["details"]
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def test_what_was_cut_off_has_an_end(cloud, monkeypatch):
    """A conductor dies at an event; the next attempt says that it has ended."""
    class Died(BaseException):
        pass

    stop, over = FLOWS["cell"]["os-stop"], threading.Event()

    def dies_once(work):
        if work.action.attempts == 1:
            with work.event():
                over.set()
                raise Died
        stop(work)

    monkeypatch.setitem(FLOWS["cell"], "os-stop", dies_once)
    id = cloud.admin.boot("cut off", networks="none")["id"]
    assert cloud.admin.act(id, "os-stop").status == 202
    assert over.wait(60)
    conductor = cloud.parts.working
    while conductor.running_actions.actions:
        time.sleep(0.01)
    with conductor.database.write() as connection:
        connection.execute(update(tables.actions).where(tables.actions.c.state == "running").values(
            lease_until=conductor.database.clock(-1)))
        conductor.database.notify(connection, servers.ACTIONS_CHANGED)
    assert cloud.admin.settled(id)["status"] == "SHUTOFF"
    path = f"/v2.1/servers/{id}/os-instance-actions"
    [one] = [one for one in cloud.admin.get(path).json["instanceActions"] if one["action"] == "stop"]
    events = cloud.admin.get(f"{path}/{one['request_id']}", "2.84").json["instanceAction"]["events"]
    assert [(event["result"], bool(event["finish_time"])) for event in events] == [("Success", True), ("Error", True)]
    assert "interrupted" in events[1]["details"]
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def test_what_was_taken_and_never_heard_of_runs_out(postgres):
    """The answer to ``take`` was lost: a conductor that beats for other work does not keep it."""
    with postgres.write() as connection:
        for server in "ab":
            servers.insert_action_row(connection, server, "os-stop", "req-1", "u", "p")
    known, lost = queue.lease_next_actions(postgres, "one", 2, {}).rows
    with postgres.write() as connection:
        connection.execute(update(tables.actions).values(lease_until=postgres.clock(-1)))
    queue.renew_action_leases(postgres, "one", {known.id})
    assert [row.id for row in queue.lease_next_actions(postgres, "two", 2, {}).rows] == [lost.id]


# Two conductors of one name -------------------------------------------------------------------------------------
def test_two_conductors_of_one_name_share_the_work(cloud, image):
    other = cloud.parts.conductor(cloud.services)
    assert other.name == cloud.parts.working.name and other.holder != cloud.parts.working.holder
    runner = ActionRunner(other, FLOWS)
    runner.start(HostWatch(other).run)
    try:
        ids = [cloud.admin.post("/v2.1/servers", {"server": {
            "name": f"many{n}", "flavorRef": "1", "imageRef": image, "networks": "none"}}, "2.60").json["server"]["id"]
            for n in range(8)]
        assert {cloud.admin.settled(id)["status"] for id in ids} == {"ACTIVE"}
        with cloud.parts.working.database.read() as connection:
            rows = connection.execute(select(tables.actions).where(tables.actions.c.server_id.in_(ids))).all()
        assert {row.holder for row in rows} <= {other.holder, cloud.parts.working.holder}
        listed = cloud.admin.get("/v2.1/os-services?binary=nova-conductor").json["services"]
        assert [one["state"] for one in listed] == ["up"]
        for id in ids:
            cloud.admin.delete(f"/v2.1/servers/{id}")
        assert [cloud.admin.settled(id) for id in ids] == [None] * 8
    finally:
        runner.stop()
    assert well(cloud)


def test_what_a_conductor_takes_while_it_ends_is_left_to_others(cloud):
    """Its workers take nothing more then; the thread that hands out ends as it should."""
    other = ActionRunner(cloud.parts.conductor(cloud.services), FLOWS)
    other._pool.shutdown()
    taken = [SimpleNamespace(id=number, action="create", attempts=1) for number in (1, 2)]
    for database in (other.conductor.database, other.conductor.store.cell0):
        other._submit(database, taken)


# Clocks that differ ---------------------------------------------------------------------------------------------
def shifted(seconds):
    """``now`` of a machine whose clock is off."""
    def now():
        moment = datetime.fromisoformat(database_module.utc_now()) + timedelta(seconds=seconds)
        return moment.isoformat(timespec="microseconds")
    return now


@pytest.mark.parametrize("seconds", [-60, 60])
def test_a_lease_is_safe_from_a_machine_whose_clock_is_off(postgres, monkeypatch, seconds):
    with postgres.write() as connection:
        servers.insert_action_row(connection, "s", "os-stop", "req-1", "u", "p")
    taken = queue.lease_next_actions(postgres, "right", 1, {}).rows
    monkeypatch.setattr(queue, "utc_now", shifted(seconds))
    assert taken and queue.lease_next_actions(postgres, "off", 1, {}).rows == []
    with postgres.write() as connection:
        queue.requeue_action_row(connection, taken[0].id, "right", postgres.clock(30.0))
    assert queue.lease_next_actions(postgres, "off", 1, {}).rows == []
    with postgres.write() as connection:
        servers.insert_action_row(connection, "t", "os-stop", "req-2", "u", "p")
    (mine,) = queue.lease_next_actions(postgres, "off", 1, {}).rows
    assert mine.server_id == "t" and queue.lease_next_actions(postgres, "right", 1, {}).rows == []


#: Threads of a conductor, by the beginning of their names; those that ask for it or for the API.
CONDUCTORS, ASKING = ("watch ", "run", "beat", "take ", "work"), "ask "


@pytest.fixture(scope="module")
def on_postgresql(cluster):
    """A cloud whose databases have a clock of their own."""
    names = ("database_url", "cell0_database_url", "cell_database_url")
    with psycopg.connect(host=str(cluster), user=postgresql.USER, dbname="postgres", autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE DATABASE clocks_{name}")
    with Cloud(hosts=1, databases={name: postgresql.postgres_url(cluster, f"clocks_{name}") for name in names},
               heartbeat=0.5) as made:
        yield made


def clocks_off(monkeypatch, seconds, conductors):
    """The clock of the conductor's threads, or of all others, is off."""
    class Off(datetime):
        @classmethod
        def now(cls, tz=None):
            name = threading.current_thread().name
            off = name.startswith(ASKING) or name.startswith(CONDUCTORS) is conductors
            return datetime.now(tz) + timedelta(seconds=seconds if off else 0)

    monkeypatch.setattr(database_module, "datetime", Off)


def seen_at(cloud):
    with cloud.parts.working.database.read() as connection:
        return connection.execute(select(tables.host_states.c.seen_at)).scalar_one()


@pytest.mark.parametrize("conductors", [False, True], ids=["api", "conductor"])
@pytest.mark.parametrize("seconds", [-60, 60])
def test_hosts_are_up_whatever_the_clocks_say(on_postgresql, monkeypatch, seconds, conductors):
    cloud = on_postgresql
    cloud.admin.image()
    clocks_off(monkeypatch, seconds, conductors)
    for _heartbeat in range(2):  # the first may have been on its way
        before, deadline = seen_at(cloud), time.monotonic() + 120
        while seen_at(cloud) == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert all(host.up for host in cloud.parts.hosts.all(fresh=True).values())
    services = cloud.admin.get("/v2.1/os-services").json["services"]
    assert {(one["binary"], one["state"]) for one in services} == {("nova-compute", "up"), ("nova-conductor", "up")}
    other = cloud.parts.conductor(cloud.services)
    looking = threading.Thread(target=HostWatch(other)._round, name="run")
    looking.start()
    looking.join()
    assert other.is_up("kvm1") and cloud.parts.working.is_up("kvm1")
    server = cloud.admin.boot("timely", networks="none")
    assert server["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{server['id']}")
    assert cloud.admin.settled(server["id"]) is None


@pytest.mark.parametrize("seconds", [-60, 60])
def test_a_volume_that_is_made_is_left_to_who_makes_it(postgres, monkeypatch, seconds):
    from magnetar_control.services.volume import EmbeddedVolumes

    def made():
        return EmbeddedVolumes(postgres, list, None, lambda _host, _image: None).worker

    right, off, working, goes = made(), made(), threading.Event(), threading.Event()

    def making(_worker, _row):
        working.set()
        goes.wait(120)
        return {"status": "available"}

    monkeypatch.setattr(volume_work, "TASKS", {("volumes", "create"): making})
    with postgres.write() as connection:
        connection.execute(tables.API.tables["volumes"].insert().values(
            id="v", project_id="p", user_id="u", size=1, status="creating", task="create", host="kvm1",
            volume_type="default", availability_zone="nova", created_at=database_module.utc_now()))
    thread = threading.Thread(target=right.step)
    thread.start()
    assert working.wait(120)
    monkeypatch.setattr(volume_work, "utc_now", shifted(seconds))
    assert off.step() is False
    goes.set()
    thread.join()


# A signal that is lost ------------------------------------------------------------------------------------------
def test_work_is_done_though_no_bell_rings(on_postgresql, monkeypatch):
    """Whoever waits looks again: in cell0, which gives the server to its cell, and in the cell."""
    cloud, silent = on_postgresql, []
    cloud.admin.image()
    monkeypatch.setattr(bell.ChangeSignals, "notify", lambda _signals, name: silent.append(name))
    monkeypatch.setattr(bell.Notifier, "send", lambda _notifier, names: silent.extend(names))
    usual = queue.lease_next_actions
    looks = []
    monkeypatch.setattr(queue, "lease_next_actions", lambda *given: looks.append(time.monotonic()) or usual(*given))
    server = cloud.admin.boot("unheard", networks="none")
    assert server["status"] == "ACTIVE" and servers.ACTIONS_CHANGED in silent
    began = time.monotonic()
    assert cloud.admin.act(server["id"], "os-stop").status == 202
    assert cloud.admin.settled(server["id"])["status"] == "SHUTOFF"
    assert [at for at in looks if began <= at <= began + database_module.RECHECK_INTERVAL["postgresql"] + 2.0]
    cloud.admin.delete(f"/v2.1/servers/{server['id']}")
    assert cloud.admin.settled(server["id"]) is None


# Certificates and users that end --------------------------------------------------------------------------------
def test_an_agent_with_an_expired_certificate_is_down(tmp_path):
    with Cloud(hosts=2, links=True, host_down_after=4.0) as made:
        made.kill_agent("kvm2")
        made.pki.issue("kvm2", days=-1)
        made.start_agent("kvm2")
        made.wait_agent("kvm2")
        deadline, problem = time.monotonic() + 120, None
        while made.parts.working.is_up("kvm2") or "certificate has expired" not in (problem or ""):
            assert time.monotonic() < deadline, problem
            time.sleep(0.1)
            with made.parts.working.database.read() as connection:
                problem = connection.execute(select(tables.host_states.c.problem).where(
                    tables.host_states.c.host == "kvm2")).scalar()
        for name in ("one", "two"):
            assert made.admin.boot(name, networks="none")["OS-EXT-SRV-ATTR:host"] == "kvm1"


def test_a_disabled_users_token_ends_at_once(cloud):
    caller = cloud.caller("leaver", "somewhere")
    assert caller.get("/v2.1/servers").status == 200
    assert cloud.admin.call("PATCH", f"/identity/v3/users/{caller.user_id}", {"user": {"enabled": False}}).status == 200
    volumes = f"/volume/v3/{caller.project_id}/volumes"
    for path in ("/v2.1/servers", "/image/v2/images", "/network/v2.0/networks", volumes):
        assert caller.get(path).status == 401, path


# A start ------------------------------------------------------------------------------------------------------
def test_a_fresh_conductor_does_not_say_that_there_is_no_host(cloud, image, monkeypatch):
    """Its hosts look down until it has heard of them."""
    states = cloud.parts.working.states
    monkeypatch.setattr(cloud.parts.working, "_settling_since", time.monotonic())
    usual = states.up
    monkeypatch.setattr(states, "up", lambda name, up: usual(name, up=False))
    usual("kvm1", up=False)
    id = cloud.admin.post("/v2.1/servers", {"server": {
        "name": "early", "flavorRef": "1", "imageRef": image, "networks": "none"}}, "2.60").json["server"]["id"]
    time.sleep(0.1)
    assert cloud.admin.server(id)["status"] == "BUILD"
    monkeypatch.undo()
    usual("kvm1", up=True)
    assert cloud.admin.settled(id)["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None
