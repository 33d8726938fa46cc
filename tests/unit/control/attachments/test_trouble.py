# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are away, builds that move on, and servers that go in the middle of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete

from magnetar_control.conductor.flows import server_delete, volume_attach
from magnetar_control.conductor.steps import block_devices
from magnetar_control.conductor.worker import retry
from magnetar_control.conductor.worker.work import HostDown, WrongHost
from magnetar_control.services.volume.tables import attachments
from magnetar_control.services.volume.tables import volumes as rows
from magnetar_core.errors import Conflict, MagnetarError, NoSpace, TimedOut
from tests.support.control.build import block, root
from tests.support.waiting import eventually

from .asking import Owner


def test_a_build_that_moves_on_takes_its_volumes_along(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, built, tried = owner.volume(host="kvm1"), block_devices.finish_build, []

    def fails_once(work: Any, host: str, *more: Any, **named: Any) -> Any:
        tried.append((host, [one["volume_id"] for one in work.volumes]))
        if len(tried) == 1:
            raise WrongHost("The first host is no good.")
        return built(work, host, *more, **named)

    monkeypatch.setattr(block_devices, "finish_build", fails_once)
    blocks = [root(owner), block("volume", kept), block("blank", volume_size=1)]
    server = owner.server(imageRef=owner.call.image(), block_device_mapping_v2=blocks)["id"]
    (first, drawn), (second, drawn_again) = tried
    assert first != second == owner.host_of(server)
    assert drawn[0] == drawn_again[0] == kept and drawn[1] != drawn_again[1]
    assert [one["volumeId"] for one in owner.attached(server)] == drawn_again
    eventually(lambda: owner.state(drawn[1]) is None)
    assert owner.state(kept) == "in-use"
    assert {one["server"] for one in owner.on_host("volume_attachment", second)} == {server}
    assert owner.on_host("volume_attachment", first) == []


def test_an_attachment_waits_for_an_agent_that_is_away(owner: Owner) -> None:
    server = owner.server()["id"]
    host = owner.host_of(server)
    volume = owner.volume(host=host)
    owner.cloud.kill_agent(host)
    try:
        assert owner.attach(server, volume).status == 200
        assert owner.attached(server)[0]["device"] == "/dev/vdb"
        assert owner.state(volume) in ("reserved", "attaching")
    finally:
        owner.cloud.start_agent(host)
        owner.cloud.wait_agent(host)
    eventually(lambda: owner.state(volume) == "in-use")
    eventually(lambda: owner.cloud.parts.working.is_up(host))


def test_a_server_goes_while_its_host_is_down(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = owner.server()["id"]
    host = owner.host_of(server)
    far = owner.volume(host=owner.other(host))
    owner.attach(server, far)
    eventually(lambda: owner.state(far) == "in-use")
    with monkeypatch.context() as patch:
        patch.setattr(server_delete, "_delete_on", lambda _work, _host, moves: None)  # nobody there hears of it
        owner.call.delete(f"/v2.1/servers/{server}")
        eventually(lambda: owner.call.get(f"/v2.1/servers/{server}").status == 404)
    assert owner.state(far) == "available"
    assert owner.on_host("volume_export", owner.other(host)) == []
    with owner.cloud.parts.agents.client(owner.cloud.hosts[host]) as client:
        client.delete("server", server)  # what the watch of the host does when it is back


def test_a_server_goes_while_a_volume_comes(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, volume = owner.server()["id"], owner.volume()
    monkeypatch.setattr("magnetar_control.compute.held_action.HELD", 30.0)
    reserve = owner.cloud.services.volume.reserve

    def deleted_meanwhile(*args: Any, **more: Any) -> Any:
        owner.call.delete(f"/v2.1/servers/{server}")
        eventually(lambda: owner.call.get(f"/v2.1/servers/{server}").status == 404)
        return reserve(*args, **more)

    monkeypatch.setattr(owner.cloud.services.volume, "reserve", deleted_meanwhile)
    assert owner.attach(server, volume).status == 409
    assert owner.state(volume) == "available"


def test_a_volume_that_cannot_go_stays_when_its_server_goes(owner: Owner) -> None:
    server = owner.server()["id"]
    volume = owner.volume(host=owner.host_of(server))
    owner.attach(server, volume, delete_on_termination=True)
    eventually(lambda: owner.state(volume) == "in-use")
    made = owner.call.post(f"{owner.api}/snapshots", {"snapshot": {"volume_id": volume, "force": True}})
    snapshot = made.json["snapshot"]["id"]
    eventually(lambda: owner.call.get(f"{owner.api}/snapshots/{snapshot}").json["snapshot"]["status"] == "available")
    owner.call.delete(f"/v2.1/servers/{server}")
    eventually(lambda: owner.call.get(f"/v2.1/servers/{server}").status == 404)
    assert owner.state(volume) == "available"


def test_a_volume_that_is_gone_can_be_detached(owner: Owner) -> None:
    server, volume = owner.server()["id"], owner.volume()
    owner.attach(server, volume)
    eventually(lambda: owner.state(volume) == "in-use")
    host = owner.host_of(server)
    with owner.cloud.parts.api_database.write() as connection:  # somebody with more power than sense
        connection.execute(delete(attachments).where(attachments.c.volume_id == volume))
        connection.execute(delete(rows).where(rows.c.id == volume))
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.attached(server) == [])
    assert owner.on_host("volume_attachment", host) == []
    for name in owner.cloud.hosts:
        with owner.cloud.parts.agents.client(owner.cloud.hosts[name]) as client:
            client.delete("volume", volume)


def test_many_come_and_go_at_once(owner: Owner) -> None:
    server = owner.server()["id"]
    ids = [owner.volume() for _number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        replies = list(threads.map(lambda id: owner.attach(server, id), ids))
        assert [reply.status for reply in replies] == [200] * 6
        eventually(lambda: [owner.state(id) for id in ids] == ["in-use"] * 6)
        kept = owner.attached(server)
        assert {one["volumeId"] for one in kept} == set(ids)
        assert len({one["device"] for one in kept}) == 6
        plugged = owner.on_host("volume_attachment", owner.host_of(server))
        assert {(one["volume"], f"/dev/{one['device']}") for one in plugged} == {
            (one["volumeId"], one["device"]) for one in kept}
        statuses = sorted(reply.status for reply in threads.map(lambda id: owner.detach(server, id), [*ids, *ids]))
        assert statuses[:6] == [202] * 6 and set(statuses[6:]) <= {202, 400, 404}
    eventually(lambda: [owner.state(id) for id in ids] == ["available"] * 6)
    eventually(lambda: owner.attached(server) == [])


@pytest.mark.parametrize("trouble", [HostDown("The connection was cut."), NoSpace("The disk of the host is full.")])
def test_a_volume_that_a_guest_may_have_is_kept_while_its_host_is_away_or_full(
        owner: Owner, monkeypatch: pytest.MonkeyPatch, trouble: MagnetarError) -> None:
    """The host attaches it, and its answer is lost; then it is away, or its disk full, for longer than anything is
    asked again."""
    server, volume, tried, away = owner.server()["id"], owner.volume(), [], [True]
    plug, unplug = volume_attach.connect_volume, volume_attach.disconnect_volume

    def plugged(*args: Any) -> str:
        device = plug(*args)
        tried.append(device)
        if away:
            raise trouble
        return device

    def unplugged(*args: Any) -> None:
        if away:
            raise trouble
        unplug(*args)

    monkeypatch.setattr(volume_attach, "connect_volume", plugged)
    monkeypatch.setattr(volume_attach, "disconnect_volume", unplugged)
    for name, value in (("AGAIN", 0.0), ("TRIES", 2), ("SELDOM", 0.1)):
        monkeypatch.setattr(retry, name, value)
    assert owner.attach(server, volume).status == 200
    eventually(lambda: len(tried) > 3)
    assert owner.state(volume) in ("reserved", "attaching")
    assert [one["volumeId"] for one in owner.attached(server)] == [volume]
    away.clear()
    eventually(lambda: owner.state(volume) == "in-use")
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")


def test_a_volume_that_a_guest_does_not_let_go_is_kept(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, volume, plug = owner.server()["id"], owner.volume(), volume_attach.connect_volume

    def plugged(*args: Any) -> str:
        plug(*args)
        raise Conflict("The disk is there, but for one thing.")

    def unplugged(*_args: Any) -> None:
        raise TimedOut("The guest does not let go of the disk.")

    with monkeypatch.context() as patch:
        patch.setattr(volume_attach, "connect_volume", plugged)
        patch.setattr(volume_attach, "disconnect_volume", unplugged)
        assert owner.attach(server, volume).status == 200
        eventually(lambda: owner.call.get(f"/v2.1/servers/{server}/os-instance-actions").json["instanceActions"][0][
            "message"] == "Error")
    assert owner.state(volume) in ("reserved", "attaching")
    assert [one["volumeId"] for one in owner.attached(server)] == [volume]
    assert owner.detach(server, volume).status == 202
    eventually(lambda: owner.state(volume) == "available")
    assert owner.on_host("volume_attachment", owner.host_of(server)) == []
