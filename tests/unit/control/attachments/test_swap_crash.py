# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever line a conductor dies at, a swap of volumes ends with one of the two, and the other is free; on each
engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.engines import engines
from tests.support.waiting import eventually

from .asking import Owner
from .dying import Fuse

pytestmark = [engines("volumes and images, postgres"), pytest.mark.slow]


@pytest.fixture(scope="module")
def cloud(databases: dict[str, str]) -> Iterator[Cloud]:
    """Two hosts with links."""
    with Cloud(hosts=2, links=True, databases=databases) as made:
        yield made


@pytest.fixture
def fuse(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """A conductor that can die."""
    return Fuse(owner.cloud, monkeypatch)


@pytest.mark.parametrize("near", [True, False], ids=["same host", "other host"])
def test_swapping(owner: Owner, fuse: Fuse, near: bool) -> None:
    server = owner.server()["id"]
    host = owner.host_of(server)
    old, new = (owner.volume(host=one) for one in (host, host if near else owner.other(host)))
    assert owner.attach(server, old).status == 200
    eventually(lambda: owner.state(old) == "in-use")
    deaths = 0
    for at in range(1, 100):
        fuse.light(at)
        assert owner.swap(server, old, new).status == 202
        died = fuse.survive()
        assert (owner.state(old), owner.state(new)) == ("available", "in-use"), at
        [one] = owner.attached(server)
        [plugged] = owner.on_host("volume_attachment", host)
        assert (one["volumeId"], one["device"]) == (new, f"/dev/{plugged['device']}")
        assert plugged["volume"] == new and plugged["replaces"] is None
        exports = [one["volume"] for name in owner.cloud.hosts for one in owner.on_host("volume_export", name)]
        assert exports == ([] if owner.cloud.services.volume.where(new) == host else [new])
        old, new, deaths = new, old, deaths + died
        if not died:
            break
    assert deaths > 10


def test_a_swap_that_fails(owner: Owner, fuse: Fuse) -> None:
    server = owner.server()["id"]
    host = owner.host_of(server)
    old, new = owner.volume(host=host), owner.volume(host=host)
    assert owner.attach(server, old).status == 200
    eventually(lambda: owner.state(old) == "in-use")
    for at in range(1, 100, 2):
        fuse.light(at)
        with owner.lost(old):
            assert owner.swap(server, old, new).status == 202
            died = fuse.survive()
        assert (owner.state(old), owner.state(new)) == ("in-use", "available"), at
        [one] = owner.attached(server)
        [plugged] = owner.on_host("volume_attachment", host)
        assert one["volumeId"] == plugged["volume"] == old
        if not died:
            break
    assert at > 5
