# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that says nothing takes its share of a conductor's workers, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from magnetar_core import client
from tests.unit.control.attachments.asking import until
from tests.unit.control.cloud import Cloud, Reply

from .test_silent_host import HOST, hangs

WORKERS, SHARE, MANY = 4, 2, 6


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Two hosts, which do not count as down soon; half of the workers are for one of them."""
    with Cloud(hosts=2, heartbeat=0.5, host_down_after=600.0, workers=WORKERS, host_share=0.5) as made:
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
    return len(cloud.parts.working._held)


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
    assert all(cloud.admin.settled(id, 60) for id in (*there, elsewhere) if id)
    with hangs(cloud):
        asked = [ask(HOST, server) for server in there]
        until(lambda: busy(cloud) >= SHARE, 60)
        assert cloud.admin.settled(ask("kvm2", elsewhere), 60)
        assert busy(cloud) <= SHARE
        assert cloud.admin.get("/healthz").status == 200
        assert all(one["OS-EXT-STS:task_state"] for one in map(cloud.admin.server, asked))
    assert all(cloud.admin.settled(id, 60) for id in asked)
    until(lambda: busy(cloud) == 0, 60)
    assert cloud.parts.working and not cloud.parts.working.shares.now().held


def test_a_host_that_is_down_has_a_quarter() -> None:
    from magnetar_control.conductor.host_shares import HostShares

    up: Callable[[str], bool] = lambda host: host == "kvm1"  # noqa: E731
    shares = HostShares(8, up)
    assert (shares.most("kvm1"), shares.most("kvm2"), HostShares(1, up).most("kvm2")) == (8, 2, 1)
    for number in range(2):
        assert shares.begin(("cell1", number), "kvm2")
    assert not shares.begin(("cell1", 0), "kvm2"), "it is in hand already"
    assert shares.now().full() == ["kvm2"] and shares.now().left("kvm1") == 8
    shares.end(("cell1", 0))
    assert shares.now().full() == [] and shares.now().left("kvm2") == 1
    with shares.choosing(), shares.choosing(0.01) as mine:
        assert not mine
