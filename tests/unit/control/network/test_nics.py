# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server is given to plug into."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.security.security_groups import default_id
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import MagnetarError
from tests.support.control.serving import ALICE, BOB


def _server() -> str:
    return str(uuid.uuid4())


def test_a_server_without_wishes_gets_the_only_network(service):
    server = _server()
    (nic,) = service.allocate(ALICE, server, service.check_requested(ALICE, []))
    assert nic["network"] == "default"
    assert nic["created"]
    (fixed,) = nic["fixed_ips"]
    assert fixed["ip_address"].startswith("10.213.")
    host = service.on_host(nic["network_id"])
    assert host == {"name": f"mag-{nic['network_id'][:8]}", "mode": "nat", "cidr": "10.213.0.0/16", "dhcp": True}
    assert nic["on_host"] == {"network": host["name"], "mac": nic["mac"], "address": fixed["ip_address"],
                              "security_groups": [default_id(ALICE.project_id)]}
    assert nic["mac"].startswith("fa:16:3e:")


def test_asked_twice_the_nics_are_the_same(service):
    server, wishes = _server(), service.check_requested(ALICE, "auto")
    assert service.allocate(ALICE, server, wishes) == service.allocate(ALICE, server, wishes)
    assert service.allocate(ALICE, _server(), wishes) != service.allocate(ALICE, server, wishes)


def test_a_nic_added_later_comes_after_the_others(service):
    server = _server()
    first = service.allocate(ALICE, server, service.check_requested(ALICE, []))
    later = service.allocate(ALICE, server, service.check_requested(
        ALICE, [{"uuid": first[0]["network_id"], "tag": "second"}]))
    assert [nic["port_id"] for nic in service.ports(server)] == [first[0]["port_id"], later[0]["port_id"]]
    assert later[0]["tag"] == "second"


def test_bound_and_released(service):
    server = _server()
    service.allocate(ALICE, server, service.check_requested(ALICE, "auto"))
    service.bind(server, "kvm1")
    assert [(nic["port_state"], nic["host"]) for nic in service.ports(server)] == [("ACTIVE", "kvm1")]
    service.release(server)
    service.release(server)
    assert service.ports(server) == []


def test_none_is_none_and_an_unknown_network_is_refused(service):
    assert service.check_requested(ALICE, "none") == []
    for wish in ({"uuid": str(uuid.uuid4())}, {"port": str(uuid.uuid4())}):
        with pytest.raises(MagnetarError) as fault:
            service.check_requested(ALICE, [wish])
        assert fault.value.status == 400


def test_without_any_network_nothing_is_given_but_auto_is_refused(database):
    empty = EmbeddedNetworks(database, default_cidr=None)
    empty.bootstrap()
    assert empty.check_requested(ALICE, []) == []
    with pytest.raises(MagnetarError) as fault:
        empty.check_requested(ALICE, "auto")
    assert fault.value.status == 400


def test_servers_made_at_once_never_share_an_address(database: Database):
    service = EmbeddedNetworks(database, "10.9.0.0/26")
    service.bootstrap()
    wishes = service.check_requested(ALICE, "auto")
    with ThreadPoolExecutor(8) as threads:
        nics = list(threads.map(lambda server: service.allocate(ALICE, server, wishes)[0],
                                [_server() for _number in range(61)]))
    addresses = {nic["fixed_ips"][0]["ip_address"] for nic in nics}
    assert len(addresses) == 61
    assert "10.9.0.1" not in addresses
    with pytest.raises(MagnetarError) as fault:
        service.allocate(ALICE, _server(), wishes)
    assert fault.value.status == 409
    assert len({nic["mac"] for nic in nics}) == 61


def test_groups_are_those_of_the_project(service):
    assert service.groups(ALICE, []) == [{"name": "default"}]
    assert service.groups(BOB, ["default"]) == [{"name": "default"}]
    with pytest.raises(MagnetarError) as fault:
        service.groups(BOB, ["web"])
    assert fault.value.status == 400
    (made,) = service.resources["security_groups"].create(ALICE, {"name": "web", "description": ""})
    assert service.groups(ALICE, [made["id"], "web", "default"]) == [
        {"name": "web", "id": made["id"]}, {"name": "default", "id": default_id(ALICE.project_id)}]


def test_the_beginning_may_be_done_again(service):
    service.bootstrap()
    assert len(service.check_requested(ALICE, "auto")) == 1
