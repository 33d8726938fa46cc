# SPDX-License-Identifier: GPL-3.0-or-later
"""What the cloud deletes goes from its hosts at once, or when they are back, and not with the audit."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from magnetar_control.store.hosts import host_removals
from tests.support.control.cloud import Cloud
from tests.support.silence import silent
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner

NETWORK = "/network/v2.0"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Two hosts that reach each other, and are missed soon."""
    with Cloud(hosts=2, links=True, heartbeat=0.5, host_down_after=3.0) as made:
        yield made


@pytest.fixture
def owner(cloud: Cloud) -> Iterator[Owner]:
    """Whose servers and volumes go with the test."""
    found = Owner(cloud)
    yield found
    found.clear()


def network(owner: Owner) -> str:
    """The uuid of a new network, always with the same range."""
    id = str(owner.call.post(f"{NETWORK}/networks", {"network": {"name": "short"}}).json["network"]["id"])
    reply = owner.call.post(f"{NETWORK}/subnets", {"subnet": {
        "network_id": id, "cidr": "198.18.7.0/24", "ip_version": 4}})
    assert reply.status == 201, reply
    return id


def on_host(owner: Owner, host: str, id: str) -> bool:
    """Whether *host* has the network."""
    return f"mag-{id[:8]}" in [one["name"] for one in owner.on_host("network", host)]


def noted(cloud: Cloud) -> list[str]:
    """The hosts that must remove something."""
    with cloud.parts.api_database.read() as connection:
        return host_removals.fetch_removal_hosts(connection)


def test_a_deleted_network_goes_at_once_and_its_range_is_free(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _again in range(2):
        id = network(owner)
        server = owner.server(networks=[{"uuid": id}])["id"]
        host = owner.host_of(server)
        assert on_host(owner, host, id)
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
        assert owner.call.settled(server) is None
        assert owner.call.delete(f"{NETWORK}/networks/{id}").status == 204
        eventually(lambda host=host, id=id: not on_host(owner, host, id))
        eventually(lambda: noted(owner.cloud) == [])
    assert not [one for one in caplog.records if "network" in one.getMessage() and "does not answer" not in one.msg]


def test_a_network_that_is_deleted_while_its_host_is_silent(owner: Owner) -> None:
    id = network(owner)
    server = owner.server(networks=[{"uuid": id}])["id"]
    host = owner.host_of(server)
    assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
    assert owner.call.settled(server) is None
    with silent(owner.cloud, host):
        assert owner.call.delete(f"{NETWORK}/networks/{id}").status == 204
        assert noted(owner.cloud) == [host]
    eventually(lambda: not on_host(owner, host, id) and noted(owner.cloud) == [])


def test_an_export_whose_server_is_deleted_while_its_host_is_silent(owner: Owner) -> None:
    """It would keep the volume from being deleted for ever."""
    server = owner.server()["id"]
    place = owner.other(owner.host_of(server))
    volume = owner.volume(host=place)
    assert owner.attach(server, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    with silent(owner.cloud, place):
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
        assert owner.call.settled(server) is None
        assert owner.state(volume) == "available"
    eventually(lambda: owner.on_host("volume_export", place) == [])
    assert owner.call.delete(f"{owner.api}/volumes/{volume}").status == 202
    eventually(lambda: owner.state(volume) is None)
