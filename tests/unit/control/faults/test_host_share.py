# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that says nothing takes its share of a conductor's workers, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import select

from magnetar_control.store.engine.tables import actions
from magnetar_core.http import client
from tests.support.control.cloud import Cloud, Reply
from tests.support.control.servers import ensure
from tests.support.silence import HOST, hanging
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner

WORKERS, SHARE, MANY = 4, 2, 6
OFF = {"power": "off"}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Two hosts, which do not count as down soon; half of the workers are for one of them, and half of the operations
    for one project."""
    with Cloud(hosts=2, heartbeat=0.5, host_down_after=600.0, workers=WORKERS, host_share=0.5, operations=2,
               project_share=0.5) as made:
        made.admin.image()
        yield made


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conductors wait for a host as long as it takes."""
    monkeypatch.setattr(client, "ANSWER_MARGIN", 600.0)


def create(cloud: Cloud, host: str) -> str:
    """Ask for a server on a host; its uuid."""
    reply = cloud.admin.post("/v2.1/servers", {"server": {
        "name": "web", "flavorRef": "1", "networks": "none", "imageRef": cloud.admin.image(), "host": host}}, "2.74")
    assert reply.status == 202, reply
    return str(reply.json["server"]["id"])


def busy(cloud: Cloud) -> int:
    """How many actions the conductor has in hand."""
    assert cloud.parts.working
    return len(cloud.parts.working.running_actions.actions)


def waiting(cloud: Cloud) -> int:
    """How many actions are queued or in hand."""
    assert cloud.parts.working
    with cloud.parts.working.database.read() as connection:
        return len(connection.execute(select(actions.c.id).where(actions.c.state.in_(("queued", "running")))).all())


@pytest.mark.parametrize("what", ["os-stop", "create"])
def test_others_pass_those_that_wait_for_a_silent_host(cloud: Cloud, what: str) -> None:
    def ask(host: str, server: str) -> str:
        if what == "create":
            return create(cloud, host)
        reply: Reply = cloud.admin.act(server, what)
        assert reply.status == 202, reply
        return server

    there = [create(cloud, HOST) for _number in range(MANY)] if what != "create" else [""] * MANY
    elsewhere = create(cloud, "kvm2") if what != "create" else ""
    assert all(cloud.admin.settled(id) for id in (*there, elsewhere) if id)
    with hanging(cloud):
        asked = [ask(HOST, server) for server in there]
        eventually(lambda: busy(cloud) >= SHARE)
        assert cloud.admin.settled(ask("kvm2", elsewhere), 60)
        assert busy(cloud) <= SHARE
        assert cloud.admin.get("/healthz").status == 200
        assert all(one["OS-EXT-STS:task_state"] for one in map(cloud.admin.server, asked))
    assert all(cloud.admin.settled(id) for id in asked)
    eventually(lambda: busy(cloud) == 0)
    assert cloud.parts.working and not cloud.parts.working.leased_actions.now().held


@pytest.mark.parametrize("what", ["attach_volume", "migrate"])
def test_others_pass_those_that_wait_for_another_host_than_their_servers(cloud: Cloud, what: str) -> None:
    owner = Owner(cloud)
    servers = [create(cloud, "kvm2") for _number in range(MANY)]
    other = create(cloud, "kvm2")
    volumes = [owner.volume(host=HOST) for _server in servers] if what == "attach_volume" else []
    assert all(cloud.admin.settled(id) for id in (*servers, other))
    with hanging(cloud):
        for at, server in enumerate(servers):
            reply = owner.attach(server, volumes[at]) if volumes else cloud.admin.act(server, what, None, "2.56")
            assert reply.status in (200, 202), reply
        eventually(lambda: busy(cloud) >= 1)
        assert cloud.admin.act(other, "os-stop").status == 202
        found = cloud.admin.settled(other)
        assert found and found["status"] == "SHUTOFF"
    eventually(lambda: busy(cloud) == 0 and not waiting(cloud))
    assert cloud.parts.working and not cloud.parts.working.leased_actions.now().held
    owner.clear()


@pytest.mark.parametrize("batch", [False, True], ids=["each", "batch"])
def test_operations_that_wait_for_a_silent_host_keep_none_from_going_on(cloud: Cloud, batch: bool) -> None:
    """Not of the same project either, and however few may be at work at once."""
    there, elsewhere = [create(cloud, HOST) for _number in range(MANY)], create(cloud, "kvm2")
    assert all(cloud.admin.settled(id) for id in (*there, elsewhere))
    operations: list[str] = []
    with hanging(cloud):
        if batch:
            asked = [cloud.admin.call("PUT", "/v1/server?wait=0", [{"key": id, "want": OFF} for id in there])]
        else:
            asked = [ensure(cloud.admin, f"server/{id}", OFF, wait=0) for id in there]
        assert {one.status for one in asked} == {202}, asked
        operations = [one.json["operation"]["id"] for one in asked]
        eventually(lambda: all(one["OS-EXT-STS:task_state"] for one in map(cloud.admin.server, there)))
        done = ensure(cloud.admin, f"server/{elsewhere}", OFF, wait=60)
        assert done.status == 200 and done.json["changed"], done
        assert {cloud.admin.get(f"/v1/operations/{id}").json["status"] for id in operations} == {"running"}
    for id in operations:
        ended = cloud.admin.get(f"/v1/operations/{id}?wait=60").json
        assert ended["status"] == "succeeded" and ended["result"], ended
        if batch:
            assert all(one["changed"] for one in ended["result"]["results"]), ended


def test_a_host_that_is_down_has_a_quarter() -> None:
    from magnetar_control.conductor.worker.leased_actions import LeasedActions

    up: Callable[[str], bool] = lambda host: host == "kvm1"  # noqa: E731
    shares = LeasedActions(8, up)
    assert (shares.most("kvm1"), shares.most("kvm2"), LeasedActions(1, up).most("kvm2")) == (8, 2, 1)
    for number in range(2):
        assert shares.begin(("cell1", number), "kvm2")
    assert not shares.begin(("cell1", 0), "kvm2"), "it is in hand already"
    assert shares.now().full() == ["kvm2"] and shares.now().left("kvm1") == 8
    shares.end(("cell1", 0))
    assert shares.now().full() == [] and shares.now().left("kvm2") == 1
    with shares.choosing(), shares.choosing(0.01) as mine:
        assert not mine


def test_who_asks_another_host_counts_there_while_he_does() -> None:
    from magnetar_control.conductor.worker.leased_actions import HostBusy, LeasedActions

    shares = LeasedActions(4, lambda _host: True)
    for number in range(4):
        shares.begin(("cell1", number), "kvm2", "kvm1" if number == 0 else None)
    assert (shares.now().held, shares.now().others) == ({"kvm1": 1, "kvm2": 4}, {"kvm1": 1})
    with shares.asking(("cell1", 0), "kvm1"), shares.asking(("cell1", 1), "kvm1"), shares.asking(("cell1", 2), "kvm2"):
        assert shares.now().full_for_others() == ["kvm1", "kvm2"] and shares.now().full() == ["kvm2"]
        with shares.asking(("cell1", 1), "kvm1"):
            assert shares.now().others == {"kvm1": 2}, "an action counts once"
        with pytest.raises(HostBusy, match="may ask host kvm1"), shares.asking(("cell1", 2), "kvm1"):
            pass
    assert shares.now().others == {"kvm1": 1}, "from when it was taken until it ends"
    shares.end(("cell1", 0))
    assert not shares.now().others
