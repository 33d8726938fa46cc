# SPDX-License-Identifier: GPL-3.0-or-later
"""A port is deleted while a server has it: the server loses the NIC, as at Neutron."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from magnetar_control.compute.attachments import interfaces
from magnetar_control.conductor.flows import interface_attach
from magnetar_control.conductor.worker import retry
from magnetar_control.conductor.worker.work import HostDown
from magnetar_core.errors import TimedOut
from tests.support.waiting import eventually

from .asking import NETWORK, Owner, macs, network, new_port, path, ports, server_on
from .dying import Fuse


def _delete(owner: Owner, port: str) -> Any:
    return owner.call.delete(f"{NETWORK}/ports/{port}")


def test_the_server_loses_the_nic_and_the_rest_can_go(owner: Owner) -> None:
    group = owner.call.post(f"{NETWORK}/security-groups", {"security_group": {"name": "web"}}).json
    group, third = group["security_group"]["id"], network(owner, "third", "198.19.0.0/24")
    port = new_port(owner, third, security_groups=[group])
    server = str(owner.server(networks=[{"port": port}])["id"])
    made = owner.call.post(path(server), {"interfaceAttachment": {"net_id": third}}).json
    assert len(macs(owner, server)) == 2
    for id in (port, made["interfaceAttachment"]["port_id"]):
        assert _delete(owner, id).status == 204
        assert id not in ports(owner)
    assert macs(owner, server) == set()
    assert owner.call.get(path(server)).json["interfaceAttachments"] == []
    assert owner.call.server(server)["addresses"] == {}
    actions = owner.call.get(f"/v2.1/servers/{server}/os-instance-actions").json["instanceActions"]
    assert [one["action"] for one in actions].count("detach_interface") == 2
    assert owner.call.delete(f"{NETWORK}/security-groups/{group}").status == 204
    assert owner.call.delete(f"{NETWORK}/networks/{third}").status == 204


def test_a_lock_does_not_keep_it(owner: Owner) -> None:
    bob = Owner(owner.cloud, owner.cloud.caller("bob", "second"))
    network_id = bob.call.post(f"{NETWORK}/networks", {"network": {"name": "mine"}}).json["network"]["id"]
    bob.call.post(f"{NETWORK}/subnets", {"subnet": {"network_id": network_id, "cidr": "10.77.0.0/24"}})
    server = bob.call.boot(networks=[{"uuid": network_id}], flavorRef=owner.call.flavor("small"))["id"]
    assert bob.call.act(server, "lock", {}).status == 202
    [port] = ports(bob)
    assert bob.call.delete(path(server, port)).status == 409
    assert _delete(bob, port).status == 204
    assert ports(bob) == []


def test_a_port_that_the_guest_does_not_release_is_kept(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    port = new_port(owner)
    server = str(owner.server(networks=[{"port": port}])["id"])

    def unplugged(*_args: Any) -> None:
        raise TimedOut("The guest does not let go of the NIC.")

    with monkeypatch.context() as patch:
        patch.setattr(interface_attach, "_unplug", unplugged)
        refused = _delete(owner, port)
    assert (refused.status, refused.json["NeutronError"]["type"]) == (409, "PortInUse")
    assert "does not let go" in refused.json["NeutronError"]["message"]
    assert len(macs(owner, server)) == 1
    assert _delete(owner, port).status == 204


def test_a_host_that_says_nothing_deletes_it_later(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    port, away, unplug = new_port(owner), threading.Event(), interface_attach._unplug
    server = str(owner.server(networks=[{"port": port}])["id"])
    away.set()

    def unplugged(*args: Any) -> None:
        if away.is_set():
            raise HostDown("kvm1")
        unplug(*args)

    monkeypatch.setattr(interface_attach, "_unplug", unplugged)
    for name, value in (("AGAIN", 0.0), ("TRIES", 2), ("SELDOM", 0.1)):
        monkeypatch.setattr(retry, name, value)
    monkeypatch.setattr(interfaces, "DONE", 0.2)
    assert _delete(owner, port).status == 204
    assert port in ports(owner)  # nobody gets its address while the guest may have it
    away.clear()
    eventually(lambda: port not in ports(owner))
    assert macs(owner, server) == set()


def test_a_server_that_can_not_detach_says_so(owner: Owner) -> None:
    port = new_port(owner)
    server = str(owner.server(networks=[{"port": port}])["id"])
    assert owner.call.act(server, "suspend").status == 202
    owner.call.settled(server)
    refused = _delete(owner, port)
    assert refused.status == 409 and "while it is in vm_state suspended" in refused.json["NeutronError"]["message"]


def test_an_offloaded_server_comes_back_without_it(owner: Owner) -> None:
    port = new_port(owner)
    server = str(owner.server(networks=[{"port": port}])["id"])
    assert owner.call.act(server, "shelve").status == 202
    owner.call.settled(server)
    owner.call.act(server, "shelveOffload")
    owner.call.settled(server)
    assert _delete(owner, port).status == 204
    assert port not in ports(owner)
    assert owner.call.server(server)["addresses"] == {}
    assert owner.call.act(server, "unshelve").status == 202
    assert owner.call.settled(server)["status"] == "ACTIVE"
    assert macs(owner, server) == set()


def test_a_module_deletes_it_too(owner: Owner) -> None:
    port = new_port(owner, name="nook")
    server = str(owner.server(networks=[{"port": port}])["id"])
    reply = owner.call.delete("/v1/port/nook")
    assert reply.status == 200 and reply.json["changed"], reply
    assert port not in ports(owner)
    assert macs(owner, server) == set()


def test_a_conductor_dies_meanwhile(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server, fuse = server_on(owner), Fuse(owner.cloud, monkeypatch)
    before, kept = ports(owner), macs(owner, server)
    monkeypatch.setattr(interfaces, "DONE", 120.0)
    for at in range(1, 100, 2):
        port = new_port(owner)
        attached = owner.call.post(path(server), {"interfaceAttachment": {"port_id": port}})
        assert attached.status == 200, attached
        fuse.light(at)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(_delete, owner, port)
            eventually(lambda asked=asked: asked.done() or fuse.blown.is_set())
            died = fuse.survive()
            assert asked.result(60).status == 204
        assert ports(owner) == before
        assert macs(owner, server) == kept
        if not died:
            break
    assert at > 6
