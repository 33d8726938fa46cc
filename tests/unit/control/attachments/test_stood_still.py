# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor stands still for longer than its lease, before each of its acts. Another one does its action meanwhile,
and a user has it undone: the first changes nothing when it goes on."""

from __future__ import annotations

import contextlib
import copy
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.worker.work import LeaseLost
from magnetar_control.services import Context
from magnetar_control.store.actions import actions
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import row
from tests.unit.control.moves.dying import Stall, ask, take, turn

from .asking import NETWORK, Owner, macs, network, path, server_on

pytestmark = pytest.mark.slow


@pytest.fixture
def stalls(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, str, Callable[[], object]], bool]:
    """A function of (act, number of an action, its key, how it is undone): whether the conductor stood still."""
    other, late = copy.copy(owner.cloud.parts.working), [0.0]
    other.holder = "another"
    monkeypatch.setattr("magnetar_control.conductor.worker.work.clock", lambda: time.monotonic() + late[0])

    def stalled(at: int, number: int, key: str, undone: Callable[[], object]) -> bool:
        def meanwhile() -> None:
            late[0] = actions.LEASE
            assert turn(owner.cloud, number, other)
            undone()

        fate, work = Stall(at, meanwhile), take(owner.cloud, number)
        with contextlib.suppress(LeaseLost), fate.looms():
            CELL[key](work)
        late[0] = 0.0
        return fate.died
    return stalled


def acts() -> Iterator[int]:
    """The numbers of acts, until the test has seen that there are no more."""
    yield from range(1, 60)
    raise AssertionError


def kept(owner: Owner, server: str, column: str, name: str) -> list[Any]:
    """Of each NIC or volume in the server's row."""
    return [one[name] for one in orjson.loads(getattr(row(owner.cloud, server), column))]


def context(owner: Owner) -> Context:
    """The caller of the services."""
    return Context(owner.call.user_id, owner.call.project_id, frozenset(["member"]))


def user(owner: Owner, port: str) -> str:
    """The server that has a port."""
    return str(owner.call.get(f"{NETWORK}/ports/{port}").json["port"]["device_id"])


def test_a_nic_that_was_attached(owner: Owner, stalls: Callable[..., bool]) -> None:
    server, net = server_on(owner), network(owner)
    for at in acts():
        port = owner.call.post(f"{NETWORK}/ports", {"port": {"network_id": net}}).json["port"]["id"]
        [wish] = owner.cloud.services.network.check_requested(context(owner), [{"port": port}])

        def undone(port: str = port) -> None:
            assert owner.call.delete(path(server, port)).status == 202
            eventually(lambda: not user(owner, port))

        stood = stalls(at, ask(owner.cloud, server, "attach_interface", wish={**wish, "tag": None}),
                       "attach_interface", undone)
        has = port in kept(owner, server, "interfaces", "port_id")
        assert has is (not stood) and (user(owner, port) == server) is has, at
        assert len(macs(owner, server)) == 1 + has, at
        if not stood:
            return


def test_a_nic_that_was_detached(owner: Owner, stalls: Callable[..., bool]) -> None:
    server, net = server_on(owner), network(owner)
    port = owner.call.post(f"{NETWORK}/ports", {"port": {"network_id": net}}).json["port"]

    def attached() -> None:
        reply = owner.call.post(path(server), {"interfaceAttachment": {"port_id": port["id"]}})
        assert reply.status == 200, reply

    attached()
    for at in acts():
        number = ask(owner.cloud, server, "detach_interface", port_id=port["id"], mac=port["mac_address"])
        stood = stalls(at, number, "detach_interface", attached)
        has = port["id"] in kept(owner, server, "interfaces", "port_id")
        assert has is stood and (user(owner, port["id"]) == server) is has, at
        assert (port["mac_address"] in macs(owner, server)) is has, at
        if not stood:
            return


def on_hosts(owner: Owner, server: str) -> list[str]:
    """The volumes that the server has on its host."""
    return [one["volume"] for one in owner.on_host("volume_attachment", owner.host_of(server))
            if one["server"] == server]


def test_a_volume_that_was_attached(owner: Owner, stalls: Callable[..., bool]) -> None:
    server, volume = owner.server()["id"], owner.volume()
    for at in acts():
        entry = {"volume_id": volume, "attachment_id": str(uuid.uuid4()), "bdm_uuid": str(uuid.uuid4()),
                 "device": "/dev/vdd", "tag": None, "boot_index": None, "delete_on_termination": False}
        owner.cloud.services.volume.reserve(context(owner), volume, server, attachment_id=entry["attachment_id"])
        number = ask(owner.cloud, server, "attach_volume", {"volumes": orjson.dumps([entry]).decode()},
                     attachment_id=entry["attachment_id"], volume_id=volume)

        def undone() -> None:
            assert owner.detach(server, volume).status == 202
            eventually(lambda: owner.state(volume) == "available" and not kept(owner, server, "volumes", "volume_id"))

        stood = stalls(at, number, "attach_volume", undone)
        has = volume in kept(owner, server, "volumes", "volume_id")
        assert has is (not stood) and owner.state(volume) == ("in-use" if has else "available"), at
        assert on_hosts(owner, server) == [volume] * has, at
        if not stood:
            return


def test_a_volume_that_was_detached(owner: Owner, stalls: Callable[..., bool]) -> None:
    server, volume = owner.server()["id"], owner.volume()

    def attached() -> None:
        assert owner.attach(server, volume).status == 200
        eventually(lambda: owner.state(volume) == "in-use")

    attached()
    for at in acts():
        number = ask(owner.cloud, server, "detach_volume", volume_id=volume,
                     attachment_id=kept(owner, server, "volumes", "attachment_id")[0])
        stood = stalls(at, number, "detach_volume", attached)
        has = volume in kept(owner, server, "volumes", "volume_id")
        assert has is stood and owner.state(volume) == ("in-use" if has else "available"), at
        assert on_hosts(owner, server) == [volume] * has, at
        if not stood:
            return
