# SPDX-License-Identifier: GPL-3.0-or-later
"""A project's first network, which is made when it is needed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.services.network.subnets import subnet_pools
from magnetar_core.errors import InvalidRequest
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, BOB, READER, Asker

TOP = "/v2.0/auto-allocated-topology"


@pytest.fixture
def pool(ask: Asker) -> str:
    """The default pool of all."""
    body = {"name": "first", "prefixes": ["10.20.0.0/16"], "default_prefixlen": 24, "shared": True, "is_default": True}
    return str(ask.as_(ADMIN)("POST", "/v2.0/subnetpools", {"subnetpool": body})["subnetpool"]["id"])


def first(ask: Asker, project: str = "red", status: int | None = None) -> Any:
    answer = ask("GET", f"{TOP}/{project}", status=status)
    return answer.get("auto_allocated_topology") or answer["NeutronError"]


def test_each_project_has_its_own(ask, service, engine, outside, pool):
    admin, bob = ask.as_(ADMIN), ask.as_(BOB)
    admin("PUT", f"/v2.0/networks/{outside['id']}", {"network": {"is_default": True}})
    assert first(ask, "red?fields=dry-run")["id"] == "dry-run=pass"
    (nic,) = service.check_requested(ALICE, "auto")
    found = first(ask)
    assert found == {"id": nic["network_id"], "project_id": "red", "tenant_id": "red"}
    assert service.check_requested(ALICE, "auto")[0]["network_id"] == found["id"]
    (subnet,) = ask("GET", f"/v2.0/subnets?network_id={found['id']}")["subnets"]
    assert (subnet["cidr"], subnet["subnetpool_id"], subnet["project_id"]) == ("10.20.0.0/24", pool, "red")
    (router,) = ask("GET", "/v2.0/routers")["routers"]
    assert router["external_gateway_info"]["network_id"] == outside["id"]
    service.worker.round()
    (leaves,) = engine.units[f"router/{router['id']}"].translations
    assert leaves.inside == "10.20.0.0/24"
    (theirs,) = service.check_requested(BOB, "auto")
    assert theirs["network_id"] != found["id"] and bob("GET", f"/v2.0/networks/{found['id']}", status=404)
    service.allocate(ALICE, "4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", [nic])
    assert ask("DELETE", f"{TOP}/red", status=409)["NeutronError"]["type"] == "NetworkInUse"
    assert len(ask("GET", "/v2.0/routers")["routers"]) == 1  # all or nothing
    service.release("4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    ask("DELETE", f"{TOP}/red")
    assert ask("GET", "/v2.0/routers")["routers"] == [] and ask("DELETE", f"{TOP}/red", status=404)
    ask("GET", f"/v2.0/networks/{found['id']}", status=404)


def test_the_networks_of_a_project_are_asked_for_once(ask, service, database, lan):
    lan(ask)
    with counted(api=database, here=True) as asked:
        assert service.check_requested(ALICE, "auto")
    assert len(asked) == 1


def test_without_a_pool_there_is_none(ask, service):
    assert first(ask, status=409)["type"] == "AutoAllocationFailure"
    assert first(ask, "red?fields=dry-run", 409)["message"].startswith("Deployment error: No default subnetpools")
    with pytest.raises(InvalidRequest, match="Unable to automatically allocate a network for project red: .*default"):
        service.check_requested(ALICE, "auto")


def test_without_an_external_network_it_leads_nowhere(ask, pool):
    first(ask)
    assert ask("GET", "/v2.0/routers")["routers"] == []
    ask("DELETE", f"{TOP}/red")


def test_whose_it_is(ask, pool):
    assert first(ask.as_(BOB), status=403)["type"] == "PolicyNotAuthorized"
    first(ask.as_(READER), status=403)
    found = first(ask.as_(ADMIN))["id"]
    assert ask("GET", f"/v2.0/networks/{found}")["network"]["project_id"] == "red"
    assert ask.as_(BOB)("DELETE", f"{TOP}/red", status=403)


def test_one_that_was_taken_apart_is_made_anew(ask, pool):
    one = first(ask)["id"]
    ask("DELETE", f"/v2.0/networks/{one}")
    other = first(ask)["id"]
    assert other != one and ask("GET", f"/v2.0/networks/{other}")["network"]["subnets"]


def test_who_asks_at_once_gets_the_same(ask, pool):
    with ThreadPoolExecutor(2) as both:
        ids = {each["id"] for each in both.map(lambda _one: first(ask), range(2))}
    assert len(ids) == 1 and len(ask("GET", "/v2.0/networks")["networks"]) == 1


def test_a_new_cloud_has_a_default_pool_and_no_network_of_all(database, ask):
    made = EmbeddedNetworks(database, "10.60.0.0/16", engine=FakeEngine())
    for _again in range(2):
        made.bootstrap()
    assert ask("GET", "/v2.0/networks")["networks"] == []
    (pool,) = ask("GET", "/v2.0/subnetpools")["subnetpools"]
    assert (pool["name"], pool["prefixes"], pool["default_prefixlen"], pool["is_default"], pool["shared"]) == (
        "default", ["10.60.0.0/16"], 24, True, True)
    assert len(ask.as_(ADMIN)("GET", "/v2.0/rbac-policies")["rbac_policies"]) == 1
    networks = [made.check_requested(one, "auto")[0]["network_id"] for one in (ALICE, BOB)]
    assert [[one["cidr"] for one in ask.as_(ADMIN)("GET", f"/v2.0/subnets?network_id={id}")["subnets"]]
            for id in networks] == [["10.60.0.0/24"], ["10.60.1.0/24"]]
    assert made.check_requested(ALICE, None)[0]["network_id"] == networks[0]
    ask("DELETE", f"{TOP}/red")
    assert made.check_requested(ALICE, None) == []  # as Nova does where nothing is said


def test_no_project_takes_all_of_the_first_pool(database, ask, lan):
    made = EmbeddedNetworks(database, "10.60.0.0/16", engine=FakeEngine())
    made.bootstrap()
    subnet = {"network_id": lan(ask.as_(BOB))["id"], "use_default_subnetpool": True, "ip_version": 4, "prefixlen": 16}
    refused = ask.as_(BOB)("POST", "/v2.0/subnets", {"subnet": subnet}, status=409)["NeutronError"]
    assert refused["type"] == "SubnetPoolQuotaExceeded"
    assert made.check_requested(ALICE, "auto")


def test_the_first_pool_stays_away(database, ask):
    made, admin = EmbeddedNetworks(database, engine=FakeEngine()), ask.as_(ADMIN)
    made.bootstrap()
    (pool,) = ask("GET", "/v2.0/subnetpools")["subnetpools"]
    ask("DELETE", f"/v2.0/subnetpools/{pool['id']}", status=403)
    admin("DELETE", f"/v2.0/subnetpools/{pool['id']}")
    made.bootstrap()
    assert ask("GET", "/v2.0/subnetpools")["subnetpools"] == ask("GET", "/v2.0/networks")["networks"] == []


def test_a_cloud_with_networks_or_a_default_pool_gets_none(database, ask, lan, pool):
    EmbeddedNetworks(database, engine=FakeEngine()).bootstrap()
    ask.as_(ADMIN)("DELETE", f"/v2.0/subnetpools/{pool}")
    lan(ask)
    EmbeddedNetworks(database, engine=FakeEngine()).bootstrap()
    assert ask("GET", "/v2.0/subnetpools")["subnetpools"] == []


def test_a_small_range_is_one_network(database, ask):
    EmbeddedNetworks(database, "192.0.2.0/28", engine=FakeEngine()).bootstrap()
    assert [one["default_prefixlen"] for one in ask("GET", "/v2.0/subnetpools")["subnetpools"]] == [28]


def test_it_is_made_while_the_project_makes_a_subnet_of_the_same_pool(ask, pool, lan, monkeypatch):
    """Both have the project's turn before the pool: neither waits for what the other has."""
    id, cut, inside, go = lan(ask)["id"], subnet_pools.cut_subnet, threading.Event(), threading.Event()

    def slow(connection, context, values):
        if values.get("name") == "slow":
            inside.set()
            assert go.wait(30)
        cut(connection, context, values)

    monkeypatch.setattr(subnet_pools, "cut_subnet", slow)
    ask("DELETE", f"/v2.0/subnets/{ask('GET', f'/v2.0/networks/{id}')['network']['subnets'][0]}")
    body = {"subnet": {"network_id": id, "subnetpool_id": pool, "name": "slow"}}
    with ThreadPoolExecutor(2) as both:
        one = both.submit(ask, "POST", "/v2.0/subnets", body)
        assert inside.wait(30)
        other = both.submit(first, ask)
        time.sleep(1.0)
        go.set()
        assert one.result()["subnet"]["subnetpool_id"] == pool and other.result()["id"]


def test_one_external_network_is_the_default(ask, outside, lan):
    admin, inner = ask.as_(ADMIN), lan(ask)
    other = {"router:external": True, "provider:network_type": "vlan", "provider:physical_network": "ext",
             "provider:segmentation_id": 7}
    for method, path in (("POST", ""), ("PUT", f"/{inner['id']}")):
        refused = admin(method, f"/v2.0/networks{path}", {"network": {"is_default": True}}, status=400)
        assert "is_default: must be false, but of an external network" in refused["NeutronError"]["message"]
    path, default = f"/v2.0/networks/{outside['id']}", {"network": {"is_default": True}}
    for _again in range(2):
        assert admin("PUT", path, default)["network"]["is_default"]
    refused = admin("POST", "/v2.0/networks", {"network": {**other, "is_default": True}}, status=409)
    assert (refused["NeutronError"]["type"], outside["id"] in refused["NeutronError"]["message"]) == (
        "DefaultExternalNetworkExists", True)
    second = admin("POST", "/v2.0/networks", {"network": other})["network"]["id"]
    admin("PUT", f"/v2.0/networks/{second}", default, status=409)
    assert not admin("PUT", path, {"network": {"router:external": False}})["network"]["is_default"]
    admin("PUT", f"/v2.0/networks/{second}", default)
