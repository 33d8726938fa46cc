# SPDX-License-Identifier: GPL-3.0-or-later
"""Administrators fence and unfence hosts over /v1; a conductor does the work."""

import threading

import pytest

from magnetar_control.conductor.periodic.fencing_requests import FencingRequests
from magnetar_control.fencing import fence_agents
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import fencing_requests as table
from magnetar_control.store.engine.tables import fencings as fencings_table
from magnetar_control.store.hosts import fencing_requests, fencings
from magnetar_control.store.hosts.fencing_requests import EXPIRES
from tests.support.control.cloud import Cloud
from tests.support.control.modules import examples
from tests.support.control.servers import ensure, verbs
from tests.support.fence_agent import FakeFenceAgent
from tests.support.waiting import eventually
from tests.unit.control.v1.play import play, prepared


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    return FakeFenceAgent(tmp_path_factory.mktemp("fence"))


@pytest.fixture(scope="module")
def cloud(agent):
    with Cloud(hosts=2, fence_tries=1, **agent.settings("kvm1")) as made:
        yield made


@pytest.fixture(autouse=True)
def unfenced(cloud, agent, monkeypatch):
    """All hosts are unfenced afterwards."""
    monkeypatch.setattr(fence_agents, "PAUSE", 0.01)
    agent.behave("ok")
    (agent.folder / "asked").unlink(missing_ok=True)
    yield
    agent.behave("ok")
    for host in ("kvm1", "kvm2"):
        assert fence(cloud, host, "unfenced").status == 200


def fence(cloud, host, state, *, wait=60, **more):
    return ensure(cloud.admin, f"host_fence/{host}", {"state": state, **more}, wait=wait)


def service(cloud, host):
    found = cloud.admin.get(f"/v1/compute_service/{host}").json
    return found["status"], found["forced_down"]


def request_of(cloud, host):
    with cloud.parts.store.api.read() as connection:
        return fencing_requests.fetch_fencing_request(connection, host)


def set_columns(cloud, rows, host, **values):
    with cloud.parts.store.api.write() as connection:
        connection.execute(rows.update().where(rows.c.host == host).values(**values))


def test_fence_and_unfence(cloud, agent):
    would = ensure(cloud.admin, "host_fence/kvm1", {"state": "fenced"}, dry_run=True)
    assert would.json["changed"] and verbs(would) == ["record", "fence"] and agent.actions("kvm1") == []
    done = fence(cloud, "kvm1", "fenced")
    assert done.json["changed"] and done.json["diff"] == would.json["diff"] == [
        {"path": "state", "old": "unfenced", "new": "fenced"}]
    shown = done.json["resource"]
    assert (shown["state"], shown["agent"], shown["requested_by"]) == ("fenced", "fence_fake", "admin@admin")
    assert agent.power("kvm1") == "off" and service(cloud, "kvm1") == ("disabled", True)
    runs = len(agent.asked)
    assert not fence(cloud, "kvm1", "fenced").json["changed"] and len(agent.asked) == runs
    assert cloud.admin.get("/v1/host_fence?state=fenced").status == 200
    assert [one["name"] for one in cloud.admin.get("/v1/host_fence").json["host_fences"]] == ["kvm1"]
    refused = ensure(cloud.admin, "compute_service/kvm1", {"forced_down": False})
    assert refused.status == 400 and "is fenced" in str(refused.json)
    undone = fence(cloud, "kvm1", "unfenced")
    assert verbs(undone) == ["record", "unfence"] and agent.power("kvm1") == "on"
    assert service(cloud, "kvm1") == ("enabled", False)
    assert not fence(cloud, "kvm1", "unfenced").json["changed"]


def test_a_host_that_was_switched_off_by_hand(cloud, agent):
    refused = fence(cloud, "kvm2", "fenced")
    assert refused.status == 400 and "has no power device" in str(refused.json)
    assert service(cloud, "kvm2") == ("enabled", False)
    done = fence(cloud, "kvm2", "fenced", confirmed=True)
    assert done.json["resource"]["agent"] == "by hand" and service(cloud, "kvm2") == ("disabled", True)
    assert agent.asked == []
    gone = cloud.admin.delete("/v1/host_fence/kvm2?wait=60")
    assert gone.json["changed"] and verbs(gone) == ["unfence"] and service(cloud, "kvm2") == ("enabled", False)
    assert not cloud.admin.delete("/v1/host_fence/kvm2?wait=60").json["changed"]


def test_a_device_that_fails(cloud, agent):
    agent.behave("on for ever")
    failed = fence(cloud, "kvm1", "fenced")
    assert failed.json["error"]["code"] == "fencing-failed" and "is still on" in failed.json["error"]["message"]
    assert cloud.admin.get("/v1/host_fence/kvm1").json["state"] == "failed"
    assert service(cloud, "kvm1") == ("enabled", False)
    assert not fence(cloud, "kvm1", "unfenced").json["changed"]
    agent.behave("ok")
    assert fence(cloud, "kvm1", "fenced").json["changed"]


@pytest.mark.parametrize(("host", "want", "status"), [
    ("kvm9", {"state": "fenced"}, 404), ("kvm1", {}, 400), ("kvm1", {"state": "off"}, 400),
    ("kvm1", {"state": "fenced", "confirmed": "yes"}, 400), ("kvm1", {"state": "fenced", "power": "on"}, 400)])
def test_wrong_requests(cloud, agent, host, want, status):
    for dry_run in (True, False):
        refused = ensure(cloud.admin, f"host_fence/{host}", want, dry_run=dry_run)
        assert refused.status == status, refused
    assert agent.asked == []


def test_only_for_administrators(cloud, agent):
    member = cloud.caller("rob", "demo")
    assert ensure(member, "host_fence/kvm1", {"state": "fenced"}).status == 403
    assert member.get("/v1/host_fence").status == 403 and agent.asked == []


def test_opposite_requests_do_not_overtake_each_other(cloud, agent):
    agent.behave("slow")
    begun = fence(cloud, "kvm1", "fenced", wait=0)
    assert begun.status == 202
    eventually(lambda: request_of(cloud, "kvm1") is not None and request_of(cloud, "kvm1").ended_at is None)
    with cloud.parts.store.api.write() as connection:
        joined = fencing_requests.begin_fencing_request(connection, "kvm1", "x", fence=True, confirmed=False)
    assert joined == request_of(cloud, "kvm1").id
    with pytest.raises(fencing_requests.Conflict, match="admin@admin has requested"), \
            cloud.parts.store.api.write() as connection:
        fencing_requests.begin_fencing_request(connection, "kvm1", "x", fence=False, confirmed=False)
    path = f"/v1/operations/{begun.json['operation']['id']}"
    eventually(lambda: cloud.admin.get(path).json["status"] == "succeeded", pause=0.2)


def test_a_request_that_came_too_late_cuts_no_power(cloud, agent, monkeypatch):
    """As after a time without conductors: the conductor that starts then ends it, and so does a client that waits."""
    monkeypatch.setattr(FencingRequests, "serve", lambda _self, _request: None)
    begun = fence(cloud, "kvm1", "fenced", wait=0)
    eventually(lambda: request_of(cloud, "kvm1").ended_at is None)
    set_columns(cloud, table, "kvm1", requested_at=utc_now(-EXPIRES - 1))
    path = f"/v1/operations/{begun.json['operation']['id']}"
    eventually(lambda: cloud.admin.get(path).json["status"] == "failed", pause=0.2)
    assert "Start a conductor of the host's cell" in cloud.admin.get(path).json["error"]["message"]
    monkeypatch.undo()
    set_columns(cloud, table, "kvm1", ended_at=None, error=None)
    eventually(lambda: request_of(cloud, "kvm1").ended_at is not None)
    assert request_of(cloud, "kvm1").error_code == "fencing-failed" and agent.asked == []


def test_a_conductor_dies_at_work(cloud, agent, monkeypatch):
    """The next one serves the request when the attempt of the dead one is over, and what is done is not done again."""
    for state in ("fenced", "unfenced"):
        assert fence(cloud, "kvm1", state).status == 200
    set_columns(cloud, fencings_table, "kvm1", busy_until=utc_now(3))
    with cloud.parts.store.api.read() as connection:
        assert fencings.fetch_fencing_row(connection, "kvm1").busy
    assert fence(cloud, "kvm1", "fenced").json["changed"]
    assert fence(cloud, "kvm1", "unfenced").json["changed"]
    runs = len(agent.asked)
    set_columns(cloud, table, "kvm1", ended_at=None)  # it died before it could write that it was done
    eventually(lambda: request_of(cloud, "kvm1").ended_at is not None)
    assert request_of(cloud, "kvm1").error is None and len(agent.asked) == runs


def test_hosts_do_not_wait_for_each_other(cloud, agent, monkeypatch):
    release, real = threading.Event(), FencingRequests.serve

    def serve(self, request):
        if request.host == "kvm1":
            release.wait(60)
        real(self, request)

    monkeypatch.setattr(FencingRequests, "serve", serve)
    begun = fence(cloud, "kvm1", "fenced", wait=0)
    assert fence(cloud, "kvm2", "fenced", confirmed=True).json["changed"]
    assert request_of(cloud, "kvm1").ended_at is None
    release.set()
    path = f"/v1/operations/{begun.json['operation']['id']}"
    eventually(lambda: cloud.admin.get(path).json["status"] == "succeeded", pause=0.2)


@pytest.mark.slow
def test_by_the_module(cloud, agent, tmp_path):
    folder = prepared(tmp_path, cloud, "mycloud")
    task = {"host_fence": {"name": "kvm1", "state": "fenced"}}
    (would,) = play(folder, [task], {"cloud": "mycloud"}, "--check", "--diff")
    assert would["changed"] and would["diff"]["after"] == {"state": "fenced"} and agent.asked == []
    done, again = play(folder, [task, task], {"cloud": "mycloud"})
    assert done["changed"] and not again["changed"] and done["host_fence"]["state"] == "fenced"
    tasks = examples("host_fence")
    results = play(folder, [*tasks, {"host_fence_info": {}}], {"cloud": "mycloud"})
    assert [result["changed"] for result in results] == [False, True, True, False]
    states = {one["name"]: one["state"] for one in results[-1]["host_fences"]}
    assert states == {"kvm1": "unfenced", "kvm2": "fenced"}
