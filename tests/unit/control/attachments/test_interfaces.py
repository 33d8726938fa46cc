# SPDX-License-Identifier: GPL-3.0-or-later
"""os-interface: NICs come to servers and go."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from magnetar_control.conductor.flows import interface_attach
from magnetar_control.conductor.worker import retry
from magnetar_control.conductor.worker.work import HostDown
from magnetar_core.errors import Conflict, TimedOut
from tests.support.waiting import eventually

from .asking import NETWORK, Owner, macs, network, path, ports, server_on
from .dying import Fuse


def test_a_nic_is_plugged_and_unplugged(owner: Owner) -> None:
    server, net = server_on(owner), network(owner)
    reply = owner.call.post(path(server), {"interfaceAttachment": {
        "net_id": net, "fixed_ips": [{"ip_address": "198.18.0.77"}], "tag": "public"}}, "2.70")
    assert reply.status == 200, reply
    one = reply.json["interfaceAttachment"]
    assert set(one) == {"fixed_ips", "mac_addr", "net_id", "port_id", "port_state", "tag"}
    assert (one["net_id"], one["tag"], one["port_state"]) == (net, "public", "ACTIVE")
    assert one["fixed_ips"][0]["ip_address"] == "198.18.0.77"
    assert one["mac_addr"] in macs(owner, server)
    found = owner.call.server(server)["addresses"]
    assert [a["addr"] for a in found["second"]] == ["198.18.0.77"] and len(found["default"]) == 1
    listed = owner.call.get(path(server), "2.69").json["interfaceAttachments"]
    assert len(listed) == 2 and "tag" not in listed[0]
    shown = owner.call.get(path(server, one["port_id"]), "2.70").json["interfaceAttachment"]
    assert shown == one
    assert owner.call.delete(path(server, one["port_id"])).status == 202
    eventually(lambda: owner.call.get(path(server, one["port_id"])).status == 404)
    eventually(lambda: "second" not in owner.call.server(server)["addresses"])
    assert one["mac_addr"] not in macs(owner, server)
    assert one["port_id"] not in ports(owner)


def test_a_port_that_was_made_beforehand_stays(owner: Owner) -> None:
    server, net = server_on(owner), network(owner)
    port = owner.call.post(f"{NETWORK}/ports", {"port": {"network_id": net}}).json["port"]["id"]
    reply = owner.call.post(path(server), {"interfaceAttachment": {"port_id": port}})
    assert reply.status == 200, reply
    assert reply.json["interfaceAttachment"]["port_id"] == port
    assert owner.call.post(path(server), {"interfaceAttachment": {"port_id": port}}).status == 409
    assert owner.call.delete(path(server, port)).status == 202
    eventually(lambda: owner.call.get(f"{NETWORK}/ports/{port}").json["port"]["device_id"] == "")
    owner.call.delete(f"{NETWORK}/ports/{port}")


def test_a_stopped_server_gets_its_nic_too(owner: Owner) -> None:
    server, net = server_on(owner), network(owner)
    owner.call.act(server, "os-stop")
    owner.call.settled(server)
    assert owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}}).status == 200
    assert len(macs(owner, server)) == 2
    owner.call.act(server, "os-start")
    assert (owner.call.settled(server) or {})["status"] == "ACTIVE"
    owner.call.act(server, "suspend")
    owner.call.settled(server)
    assert owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}}).status == 409


@pytest.mark.parametrize(("body", "version", "status"), [
    ({"net_id": "NET", "port_id": str(uuid.uuid4())}, "2.1", 400), ({"port_id": str(uuid.uuid4())}, "2.1", 404),
    ({"net_id": str(uuid.uuid4())}, "2.1", 404), ({"net_id": "x"}, "2.1", 400),
    ({"tag": "t", "net_id": "NET"}, "2.48", 400),
    ({"net_id": "NET", "tag": "a/b"}, "2.49", 400), ({"fixed_ips": [{"ip_address": "198.18.0.9"}]}, "2.1", 400),
    ({"net_id": "NET", "fixed_ips": [{"ip_address": "x"}]}, "2.1", 400),
    ({"net_id": "NET", "fixed_ips": [{"ip_address": "198.51.100.1"}]}, "2.1", 400),
    ({"net_id": "NET", "fixed_ips": [{"ip_address": "198.18.0.9"}] * 2}, "2.1", 400), ({"mac": "x"}, "2.1", 400),
    ("x", "2.1", 400)])
def test_bad_input_is_refused_and_changes_nothing(owner: Owner, body: Any, version: str, status: int) -> None:
    server, net = server_on(owner), network(owner)
    before = ports(owner)
    want = {name: net if value == "NET" else value for name, value in body.items()} if isinstance(body, dict) else body
    reply = owner.call.post(path(server), {"interfaceAttachment": want}, version)
    assert reply.status == status, reply
    assert ports(owner) == before
    assert len(macs(owner, server)) == 1


def test_others_servers_and_unknown_ports(owner: Owner) -> None:
    server = server_on(owner)
    stranger = owner.cloud.caller("mallory", "elsewhere")
    assert stranger.get(path(server)).status == 404
    assert stranger.post(path(server), {"interfaceAttachment": {}}).status == 404
    assert owner.call.get(path(server, str(uuid.uuid4()))).status == 404
    assert owner.call.delete(path(server, str(uuid.uuid4()))).status == 404
    assert owner.call.get(path(server) + "?x=1", "2.101").status == 200
    assert owner.call.get(path(server) + "?x=1", "2.102").status == 400


def test_a_host_that_refuses_leaves_no_port(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, net = server_on(owner), network(owner)
    before = ports(owner)

    def refused(*_args: Any, **_more: Any) -> Any:
        raise Conflict("The host has no room for a NIC.")

    monkeypatch.setattr("magnetar_control.conductor.flows.interface_attach.nics.make_nic_networks", refused)
    reply = owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}})
    assert reply.status == 500 and "no room" in reply.json["computeFault"]["message"]
    assert ports(owner) == before
    assert owner.call.server(server)["status"] == "ACTIVE"


def test_a_conductor_dies(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, net = server_on(owner), network(owner)
    before, fuse = ports(owner), Fuse(owner.cloud, monkeypatch)
    monkeypatch.setattr("magnetar_control.compute.attachments.interfaces.DONE", 120.0)
    for at in range(1, 100, 2):
        fuse.light(at)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(owner.call.post, path(server), {"interfaceAttachment": {"net_id": net}})
            eventually(lambda asked=asked: asked.done() or fuse.blown.is_set())
            died = fuse.survive()
            assert asked.result(60).status == 200
        [port] = [one for one in ports(owner) if one not in before]
        assert owner.call.get(path(server, port)).json["interfaceAttachment"]["mac_addr"] in macs(owner, server)
        fuse.light(at)
        assert owner.call.delete(path(server, port)).status == 202
        died_again = fuse.survive()
        assert ports(owner) == before
        assert len(macs(owner, server)) == 1
        assert list(owner.call.server(server)["addresses"]) == ["default"]
        if not (died or died_again):
            break
    assert at > 10


@pytest.mark.parametrize("begun", [False, True], ids=["waits in the queue", "was begun"])
def test_a_nic_that_comes_too_late_is_taken_back(owner: Owner, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """An answer of failure means that nothing will happen: who asks again has one NIC, not two."""
    server, net, before, go = server_on(owner), network(owner), ports(owner), threading.Event()
    unplugged: list[None] = []
    real, unplug = interface_attach._plug, interface_attach._unplug

    def late(*args: Any) -> Any:
        seen = real(*args)
        assert go.wait(20)
        return seen

    if begun:
        monkeypatch.setattr(interface_attach, "_plug", late)
    else:  # another action of the server is in hand
        monkeypatch.setattr("magnetar_control.conductor.flows.volume_attach.connect_volume",
                            lambda *_args: go.wait(20) and "vdb")
        assert owner.attach(server, owner.volume()).status == 200
    monkeypatch.setattr(interface_attach, "_unplug", lambda *args: unplugged.append(unplug(*args)))
    monkeypatch.setattr("magnetar_control.compute.attachments.interfaces.DONE", 0.5)
    reply = owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}})
    assert reply.status == 503 and "will not" in str(reply.json) and reply.headers["retry-after"], reply
    go.set()
    eventually(lambda: ports(owner) == before)
    assert len(macs(owner, server)) == 1 and len(unplugged) == begun
    assert list(owner.call.server(server)["addresses"]) == ["default"]
    monkeypatch.setattr(interface_attach, "_plug", real)
    monkeypatch.setattr("magnetar_control.compute.attachments.interfaces.DONE", 9.0)
    assert owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}}).status == 200
    assert len(macs(owner, server)) == 2


def test_a_port_whose_nic_a_guest_may_have_is_kept_while_its_host_is_away(
        owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, net, before, tried, away = server_on(owner), network(owner), ports(owner), [], [True]
    plug = interface_attach._plug

    def plugged(*args: Any) -> Any:
        seen = plug(*args)
        tried.append(1)
        if away:
            raise HostDown("The connection was cut.")
        return seen

    def unplugged(*_args: Any) -> None:
        raise HostDown("The connection was cut.")

    monkeypatch.setattr(interface_attach, "_plug", plugged)
    for name, value in (("AGAIN", 0.0), ("TRIES", 2), ("SELDOM", 0.1)):
        monkeypatch.setattr(retry, name, value)
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as threads:
        patch.setattr(interface_attach, "_unplug", unplugged)
        asked = threads.submit(owner.call.post, path(server), {"interfaceAttachment": {"net_id": net}})
        eventually(lambda: len(tried) > 3)
        [port] = set(ports(owner)) - set(before)
        away.clear()
        assert asked.result(60).status == 200
    assert len(macs(owner, server)) == 2
    assert owner.call.delete(path(server, port)).status == 202
    eventually(lambda: port not in ports(owner))


def test_a_port_whose_nic_a_guest_does_not_let_go_is_kept(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, net, before, plug = server_on(owner), network(owner), ports(owner), interface_attach._plug

    def plugged(*args: Any) -> None:
        plug(*args)
        raise Conflict("The NIC is there, but for one thing.")

    def unplugged(*_args: Any) -> None:
        raise TimedOut("The guest does not let go of the NIC.")

    with monkeypatch.context() as patch:
        patch.setattr(interface_attach, "_plug", plugged)
        patch.setattr(interface_attach, "_unplug", unplugged)
        assert owner.call.post(path(server), {"interfaceAttachment": {"net_id": net}}).status >= 400
    [port] = set(ports(owner)) - set(before)
    assert owner.call.delete(path(server, port)).status == 202
    eventually(lambda: port not in ports(owner))
    assert len(macs(owner, server)) == 1
