# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that hangs: its agent is connected to, and says nothing. Power loss and dropped packets look the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from magnetar_control.conductor.worker import retry
from magnetar_core.errors import HypervisorDown
from magnetar_core.http import client
from tests.support.control.cloud import Cloud
from tests.support.silence import HOST, hanging
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.inside import Inside

Silent = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """One host, which is missed soon."""
    with Cloud(hosts=1, heartbeat=0.5, host_down_after=3.0) as made:
        yield made


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for as long as usual, nor asked as often."""
    for module, name, value in ((client, "WAIT_SLICE", 1.0), (client, "ANSWER_MARGIN", 1.0), (retry, "AGAIN", 0.1),
                                (retry, "SELDOM", 0.2), (retry, "TRIES", 2)):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def owner(cloud: Cloud) -> Iterator[Owner]:
    """Whose servers and volumes go with the test. The host is up again after what the test before did to it."""
    found = Owner(cloud)
    eventually(lambda: cloud.parts.working.is_up(HOST))
    yield found
    found.clear()


def tried(owner: Owner, server: str, event: str) -> Callable[[], bool]:
    """Whether an action has been tried more often than what is given up, which says its events."""
    def found() -> bool:
        [one] = [one for one in owner.call.get(f"/v2.1/servers/{server}/os-instance-actions", "2.62").json[
            "instanceActions"] if one["action"] == event]
        shown = owner.call.get(f"/v2.1/servers/{server}/os-instance-actions/{one['request_id']}", "2.62").json
        return len(shown["instanceAction"]["events"]) > retry.TRIES + 1

    return found


def test_a_server_goes_and_its_volume_is_free(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    assert owner.attach(server, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    with hanging(owner.cloud):
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
        assert owner.call.settled(server) is None
        assert owner.state(volume) == "available"
    eventually(lambda: owner.on_host("server", HOST) == [])


def test_a_rebuild_is_done_when_the_host_is_back(owner: Owner) -> None:
    server, image = owner.server()["id"], owner.call.image("another", b"\1" * 65536)
    with hanging(owner.cloud):
        assert owner.call.act(server, "rebuild", {"imageRef": image}).status == 202
        eventually(tried(owner, server, "rebuild"))
        assert owner.call.server(server)["status"] == "REBUILD"
    found = owner.call.settled(server)
    assert found and (found["status"], found["image"]["id"]) == ("ACTIVE", image), found
    [there] = owner.on_host("server", HOST)
    assert there["image"]["id"] == image


def test_a_volume_comes_when_the_host_is_back(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    with hanging(owner.cloud):
        assert owner.attach(server, volume).status == 200
        eventually(tried(owner, server, "attach_volume"))
        assert [one["volumeId"] for one in owner.attached(server)] == [volume]
    eventually(lambda: owner.state(volume) == "in-use")


def test_a_stop_is_given_up_with_a_fault_and_the_server_is_no_wreck(owner: Owner) -> None:
    server = owner.server()["id"]
    with hanging(owner.cloud):
        assert owner.call.act(server, "os-stop").status == 202
        found = owner.call.settled(server)
        assert found and found["status"] == "ACTIVE" and found["OS-EXT-STS:task_state"] is None


def test_a_server_goes_though_libvirt_is_away() -> None:
    """The agent answers, and its heartbeats come; the guest goes when libvirt is back and the audit has looked twice.
    """
    with Inside(hosts=1) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "RETRY_FOR", 0.2)
        server = made.admin.boot(networks="none")["id"]

        def away(*_args: object, **_more: object) -> None:
            raise HypervisorDown

        with pytest.MonkeyPatch.context() as libvirt:
            libvirt.setattr(made.kvm[HOST].fake, "destroy", away)
            made.admin.delete(f"/v2.1/servers/{server}")
            assert made.admin.settled(server) is None
