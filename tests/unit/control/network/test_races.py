# SPDX-License-Identifier: GPL-3.0-or-later
"""What others change while a request is worked on: the request is answered as if it had come before or after."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from magnetar_control.services.network import EmbeddedNetworks, resources, sharing
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.services.network.ports import trunks
from magnetar_control.services.network.routers import floating_ips, routers
from magnetar_control.services.network.security import security_groups
from magnetar_control.services.network.subnets import subnets
from magnetar_control.store.engine import database
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError, NotFound
from tests.support.control.serving import ADMIN, ALICE


@pytest.fixture
def service(postgres: Database) -> EmbeddedNetworks:
    """On PostgreSQL: with SQLite one waits for the other."""
    return EmbeddedNetworks(postgres, limits={"port": -1})


@pytest.fixture
def over_engine(postgres: Database, engine: FakeEngine) -> EmbeddedNetworks:
    return EmbeddedNetworks(postgres, default_cidr=None, engine=engine)


@pytest.fixture
def outside(over_engine: EmbeddedNetworks) -> str:
    """An external network with a subnet."""
    (made,) = over_engine.resources["networks"].create(ADMIN, {
        "name": "ext", "type": "flat", "bridge": "ext", "external": True})
    over_engine.resources["subnets"].create(ADMIN, {
        "network_id": made["id"], "cidr": "192.0.2.0/24", "enable_dhcp": False})
    return str(made["id"])


@pytest.fixture
def net(service: EmbeddedNetworks) -> str:
    """A network with a subnet."""
    (made,) = service.resources["networks"].create(ALICE, {"name": "n"})
    service.resources["subnets"].create(ALICE, {"network_id": made["id"], "cidr": "10.7.0.0/24"})
    return str(made["id"])


def once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, meanwhile: Callable[[], object]) -> None:
    """Have *meanwhile* done before the first call of the function."""
    function, left = getattr(place, name), [meanwhile]

    def called(*args: Any, **more: Any) -> Any:
        if left:
            left.pop()()
        return function(*args, **more)

    monkeypatch.setattr(place, name, called)


def test_a_rule_whose_group_goes(service: EmbeddedNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = service.resources["security_groups"]
    (group,) = groups.create(ALICE, {"name": "web"})
    once(monkeypatch, security_groups, "insert_resource_row", lambda: groups.delete(ALICE, group["id"]))
    with pytest.raises(NotFound, match=f"Security group {group['id']} does not exist"):
        service.resources["security_group_rules"].create(
            ALICE, {"security_group_id": group["id"], "direction": "ingress"})


def test_a_network_that_gets_a_port(service: EmbeddedNetworks, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once(monkeypatch, resources, "delete", lambda: service.resources["ports"].create(ALICE, {"network_id": net}))
    with pytest.raises(Conflict, match="There are one or more ports still in use on the network"):
        service.resources["networks"].delete(ALICE, net)


def test_what_goes_while_it_is_changed(service: EmbeddedNetworks, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = service.resources["networks"]
    once(monkeypatch, networks, "_note", lambda: networks.delete(ALICE, net))
    with pytest.raises(NotFound, match=f"Network {net} could not be found"):
        networks.update(ALICE, net, {"name": "other"})


@pytest.mark.parametrize("of_port", [False, True])
def test_what_a_server_was_promised_and_is_gone(service: EmbeddedNetworks, net: str, of_port: bool) -> None:
    """Its fault says so."""
    ports, wish, id = service.resources["ports"], {"uuid": net}, net
    if of_port:
        (port,) = ports.create(ALICE, {"network_id": net})
        id, wish = port["id"], {"port": port["id"]}
    asked = service.check_requested(ALICE, [wish])
    (ports if of_port else service.resources["networks"]).delete(ALICE, id)
    with pytest.raises(MagnetarError, match=f"{'Port' if of_port else 'Network'} {id} could not be found") as refused:
        service.allocate(ALICE, str(uuid.uuid4()), asked)
    assert isinstance(refused.value, NotFound)


def test_a_server_lets_go_of_its_ports_however_often_others_come_before(sqlite_service: EmbeddedNetworks,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL takes a second to end one of two transactions that wait for each other."""
    service, moments, tries = sqlite_service, [0.0], []
    clock = SimpleNamespace(monotonic=lambda: moments[0], sleep=lambda _seconds: None)
    monkeypatch.setattr(database, "time", clock)

    def deadlock() -> None:
        tries.append(moments[0])
        if len(tries) < 9:
            moments[0] += 1.0
            raise DBAPIError("", None, type("DeadlockDetected", (Exception,), {"sqlstate": "40P01"})())

    service.release(str(uuid.uuid4()), confirm=deadlock)
    assert len(tries) == 9


def test_a_route_that_comes_while_the_gateway_goes(over_engine: EmbeddedNetworks, outside: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left without a way."""
    store = over_engine.routers
    (router,) = store.create(ADMIN, {"name": "r", "gateway": {"network_id": outside}})
    route = {"destination": "10.9.0.0/16", "nexthop": "192.0.2.200"}
    once(monkeypatch, routers, "find_resource_row", lambda: store.routes(ADMIN, router["id"], [route], put=True))
    with pytest.raises(InvalidField, match="must have a nexthop in a subnet"):
        store.update(ADMIN, router["id"], {"gateway": None})
    assert store.show(ADMIN, router["id"])["routes"] == [route]


def test_an_interface_that_comes_while_its_network_becomes_external(over_engine: EmbeddedNetworks,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused: of an external network a router would be the gateway."""
    (net,) = over_engine.resources["networks"].create(ADMIN, {"name": "n", "type": "flat", "bridge": "ext"})
    (subnet,) = over_engine.resources["subnets"].create(ADMIN, {"network_id": net["id"], "cidr": "10.7.0.0/24"})
    (router,) = over_engine.routers.create(ADMIN, {"name": "r"})
    with ThreadPoolExecutor(1) as other:
        coming: list[Future[Any]] = []

        def come() -> None:
            coming.append(other.submit(over_engine.routers.interface, ADMIN, router["id"], {"subnet_id": subnet["id"]},
                                       put=True))
            wait(coming, 0.5)

        once(monkeypatch, sharing, "apply_sharing_change", come)
        over_engine.resources["networks"].update(ADMIN, net["id"], {"external": True})
        with pytest.raises(InvalidRequest, match="is external"):
            coming[0].result(20)


def test_a_floating_ip_that_another_takes_away(over_engine: EmbeddedNetworks, outside: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives it another address of the port that it had does not bring it back there."""
    (lan,) = over_engine.resources["networks"].create(ADMIN, {"name": "lan"})
    (inner,) = over_engine.resources["subnets"].create(ADMIN, {"network_id": lan["id"], "cidr": "10.7.0.0/24"})
    (router,) = over_engine.routers.create(ADMIN, {"name": "r", "gateway": {"network_id": outside}})
    over_engine.routers.interface(ADMIN, router["id"], {"subnet_id": inner["id"]}, put=True)
    (port,) = over_engine.resources["ports"].create(ADMIN, {"network_id": lan["id"]})
    store, address = over_engine.resources["floatingips"], port["fixed_ips"][0]["ip_address"]
    (floating,) = store.create(ADMIN, {"network_id": outside, "port_id": port["id"]})
    once(monkeypatch, floating_ips, "find_resource_row", lambda: store.update(ADMIN, floating["id"], {"port_id": None}))
    with pytest.raises(InvalidRequest, match="without a port_id"):
        store.update(ADMIN, floating["id"], {"fixed_ip_address": address})
    assert store.show(ADMIN, floating["id"])["port_id"] is None


def test_an_mtu_that_comes_while_a_subnet_is_made(over_engine: EmbeddedNetworks,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no IPv6 on links that are too small for that."""
    (net,) = over_engine.resources["networks"].create(ADMIN, {"name": "lan"})
    small = {"mtu": 1000}
    once(monkeypatch, subnets, "_check_free", lambda: over_engine.resources["networks"].update(ADMIN, net["id"], small))
    with pytest.raises(Conflict, match="has 1000"):
        over_engine.resources["subnets"].create(ADMIN, {"network_id": net["id"], "cidr": "2001:db8::/64"})
    assert over_engine.resources["networks"].show(ADMIN, net["id"])["mtu"] == 1000


def test_an_mtu_that_changes_while_a_trunk_is_made(over_engine: EmbeddedNetworks,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """A subport's network has no more than its parent's."""
    ids = []
    for name in ("parent", "child"):
        (net,) = over_engine.resources["networks"].create(ADMIN, {"name": name})
        (port,) = over_engine.resources["ports"].create(ADMIN, {"network_id": net["id"], "fixed_ips": []})
        ids.append((net["id"], port["id"]))
    (above, parent), (_below, child) = ids
    inside = {"port_id": child, "segmentation_type": "vlan", "segmentation_id": 5}
    with ThreadPoolExecutor(1) as other:
        coming: list[Future[Any]] = []

        def come() -> None:
            coming.append(other.submit(over_engine.resources["trunks"].create, ADMIN, {
                "name": "t", "port_id": parent, "sub_ports": [inside]}))
            wait(coming, 0.5)

        once(monkeypatch, trunks, "at_servers", come)
        over_engine.resources["networks"].update(ADMIN, above, {"mtu": 1300})
        with pytest.raises(Conflict, match="cannot be greater than MTU 1300"):
            coming[0].result(20)
