# SPDX-License-Identifier: GPL-3.0-or-later
"""The only host is silent for a moment: new and moved servers wait for it, and a build that it broke off is repeated
there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from magnetar_control.conductor.flows import server_create
from magnetar_control.conductor.steps import schedule
from magnetar_control.conductor.worker.work import HostDown
from magnetar_core.errors import HypervisorError
from tests.support.control.cloud import Cloud
from tests.support.silence import HOST, silent
from tests.support.waiting import eventually
from tests.unit.control.scheduler.fleet import request

#: The second host of a ``Cloud``.
OTHER = "kvm2"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """One host, which is missed soon."""
    with Cloud(hosts=1, heartbeat=0.5, host_down_after=2.0) as made:
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[Cloud]:
    """Two hosts that can send servers to each other."""
    with Cloud(hosts=2, links=True, heartbeat=0.5, host_down_after=2.0) as made:
        yield made


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SELDOM", 1.0)


@contextmanager
def missed(cloud: Cloud) -> Iterator[None]:
    """Within, the host is down, which was up for a while."""
    eventually(lambda: cloud.parts.working.is_up(HOST) and not cloud.parts.working.settling())
    with silent(cloud):
        yield


def asked(cloud: Cloud, **more: Any) -> str:
    """The uuid of a new server, of which nothing more is known."""
    body = {"name": "new", "flavorRef": "1", "networks": "none", "imageRef": cloud.admin.image(), **more}
    return str(cloud.admin.post("/v2.1/servers", {"server": body}, "2.60").json["server"]["id"])


def test_a_new_server_waits_for_a_host_that_was_heard_lately(cloud: Cloud) -> None:
    with missed(cloud):
        id = asked(cloud)
        time.sleep(2.0)  # it was ERROR at once
        assert cloud.admin.server(id)["status"] == "BUILD"
    server = cloud.admin.settled(id)
    assert server and (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", HOST), server
    cloud.admin.delete(f"/v2.1/servers/{id}")


def test_a_server_that_is_unshelved_waits_too(cloud: Cloud) -> None:
    id = asked(cloud)
    cloud.admin.settled(id)
    assert cloud.admin.act(id, "shelve").status == 202
    assert (cloud.admin.settled(id) or {})["status"] == "SHELVED_OFFLOADED"
    with missed(cloud):
        assert cloud.admin.act(id, "unshelve").status == 202
        time.sleep(2.0)
        assert cloud.admin.server(id)["OS-EXT-STS:task_state"] == "unshelving"
    assert (cloud.admin.settled(id) or {})["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{id}")


@pytest.mark.parametrize(("action", "args", "status"), [
    ("os-migrateLive", {"host": None, "block_migration": "auto"}, "ACTIVE"),
    ("migrate", None, "VERIFY_RESIZE")])
def test_a_move_waits_for_the_only_other_host(pair: Cloud, action: str, args: Any, status: str) -> None:
    eventually(lambda: pair.parts.working.is_up(OTHER) and not pair.parts.working.settling())
    server = pair.admin.boot(availability_zone=f"nova:{HOST}")
    with silent(pair, OTHER):
        assert pair.admin.act(server["id"], action, args, "2.30").status == 202
        time.sleep(2.0)  # it was given up at once
        seen = pair.admin.server(server["id"])
        assert seen["OS-EXT-STS:task_state"] is not None, seen
    moved = pair.admin.settled(server["id"])
    assert moved and (moved["status"], moved["OS-EXT-SRV-ATTR:host"]) == (status, OTHER), moved
    pair.admin.delete(f"/v2.1/servers/{server['id']}")
    assert pair.admin.settled(server["id"]) is None


def test_it_does_not_wait_where_the_host_could_not_have_it(cloud: Cloud) -> None:
    cloud.admin.flavor("huge", ram=1 << 30)
    with missed(cloud):
        server = cloud.admin.settled(asked(cloud, flavorRef="huge"))
        assert server and server["status"] == "ERROR" and "No valid host" in server["fault"]["message"]


def test_it_waits_no_longer_than_the_setting_says(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(cloud.parts.working.settings), "host_return_wait", 0.0)
    with missed(cloud):
        server = cloud.admin.settled(asked(cloud))
        assert server and server["status"] == "ERROR" and "No valid host" in server["fault"]["message"]


def test_a_host_of_a_disabled_cell_is_awaited_only_by_servers_of_the_cell(cloud: Cloud) -> None:
    conductor = cloud.parts.working
    with silent(cloud):
        eventually(lambda: conductor.awaits_host(request()))
        cloud.parts.store.set_cell("cell1", disabled=True)
        try:
            eventually(lambda: not conductor.states.hosts[HOST].profile.cell_enabled)
            assert not conductor.awaits_host(request())
            assert conductor.awaits_host(request(cell_id=conductor.cell.id))
            assert conductor.awaits_host(request().forced_to())
        finally:
            cloud.parts.store.set_cell("cell1", disabled=False)
            eventually(lambda: conductor.states.hosts[HOST].profile.cell_enabled)


@pytest.mark.parametrize(("breaks", "error", "status"), [
    (1, HostDown("libvirt was restarted"), "ACTIVE"), (2, HostDown("libvirt was restarted"), "ACTIVE"),
    (3, HostDown("libvirt was restarted"), "ERROR"), (1, HypervisorError("QEMU does not start"), "ERROR")])
def test_a_build_that_was_broken_off_is_repeated_on_the_same_host(
        cloud: Cloud, monkeypatch: pytest.MonkeyPatch, breaks: int, error: Exception, status: str) -> None:
    """No more often than ``max_attempts`` says; what failed for another reason is not repeated there."""
    eventually(lambda: cloud.parts.working.is_up(HOST))
    make, tried = server_create.make_server, []

    def breaking(work: Any, host: str, ports: Any) -> Any:
        tried.append(host)
        if len(tried) <= breaks:
            raise error
        return make(work, host, ports)

    monkeypatch.setattr(server_create, "make_server", breaking)
    server = cloud.admin.settled(asked(cloud))
    assert server and server["status"] == status, server
    assert tried == [HOST] * (breaks + (status == "ACTIVE"))
    cloud.admin.delete(f"/v2.1/servers/{server['id']}")


def test_a_build_that_was_broken_off_waits_for_its_host(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    eventually(lambda: cloud.parts.working.is_up(HOST))
    make, tried = server_create.make_server, []
    silence = ExitStack()

    def breaking(work: Any, host: str, ports: Any) -> Any:
        tried.append(host)
        if len(tried) == 1:
            silence.enter_context(silent(cloud))
            raise HostDown("It does not answer.")
        return make(work, host, ports)

    monkeypatch.setattr(server_create, "make_server", breaking)
    with silence:
        id = asked(cloud)
        eventually(lambda: tried and not cloud.parts.working.is_up(HOST))
        eventually(lambda: cloud.admin.server(id)["OS-EXT-SRV-ATTR:host"] is None)
    server = cloud.admin.settled(id)
    assert server and (server["status"], tried) == ("ACTIVE", [HOST, HOST]), server
