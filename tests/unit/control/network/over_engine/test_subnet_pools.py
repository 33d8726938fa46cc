# SPDX-License-Identifier: GPL-3.0-or-later
"""Subnet pools, and the subnets that are cut of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network

import pytest

from magnetar_control.services.network.subnets import subnet_pools
from magnetar_control.services.network.subnets.subnet_pools import first_free
from tests.support.control.serving import ADMIN, BOB

TOP = "/v2.0/subnetpools"


def pool(ask, status=None, **fields):
    body = {"name": "lab", "prefixes": ["10.20.0.0/16"], "default_prefixlen": 26, **fields}
    answer = ask("POST", TOP, {"subnetpool": body}, status)
    return answer.get("subnetpool") or answer["NeutronError"]


def network(ask, **fields):
    return ask("POST", "/v2.0/networks", {"network": {"name": "lan", **fields}})["network"]["id"]


def subnet(ask, network_id, status=None, **fields):
    answer = ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network_id, **fields}}, status)
    return answer.get("subnet") or answer["NeutronError"]


def test_a_pool_has_what_was_said_and_neutrons_usual_bounds(ask):
    made = pool(ask, prefixes=["10.20.0.0/17", "10.20.128.0/17", "10.40.0.0/16"], description="of the lab")
    assert {name: made[name] for name in (
        "prefixes", "ip_version", "min_prefixlen", "default_prefixlen", "max_prefixlen", "default_quota", "shared",
        "is_default", "address_scope_id", "description")} == {
        "prefixes": ["10.20.0.0/16", "10.40.0.0/16"], "ip_version": 4, "min_prefixlen": 8, "default_prefixlen": 26,
        "max_prefixlen": 32, "default_quota": None, "shared": False, "is_default": False, "address_scope_id": None,
        "description": "of the lab"}
    six = pool(ask, name="six", prefixes=["fd00:20::/48"], default_prefixlen=None)
    assert (six["min_prefixlen"], six["default_prefixlen"], six["max_prefixlen"]) == (64, 64, 128)
    assert [one["name"] for one in ask("GET", f"{TOP}?ip_version=6")["subnetpools"]] == ["six"]
    assert ask("GET", f"{TOP}?ip_version=&ip_version=46")["subnetpools"] == []
    path = f"{TOP}/{made['id']}"
    changed = ask("PUT", path, {"subnetpool": {"name": "new", "prefixes": ["10.20.0.0/14", "10.40.0.0/16"],
                                               "default_prefixlen": 24}})["subnetpool"]
    assert (changed["name"], changed["prefixes"], changed["default_prefixlen"]) == (
        "new", ["10.20.0.0/14", "10.40.0.0/16"], 24)
    gone = ask("PUT", path, {"subnetpool": {"prefixes": ["10.20.0.0/14"]}}, status=400)["NeutronError"]
    assert gone["type"] == "IllegalSubnetPoolPrefixUpdate" and "10.40.0.0/16 would go" in gone["message"]
    ask("DELETE", path)
    ask("GET", path, status=404)


@pytest.mark.parametrize(("fields", "type"), [
    ({"prefixes": []}, "EmptySubnetPoolPrefixList"),
    ({"prefixes": ["10.20.0.0/16", "fd00::/48"]}, "PrefixVersionMismatch"),
    ({"min_prefixlen": 27}, "IllegalSubnetPoolPrefixBounds"), ({"max_prefixlen": 25}, "IllegalSubnetPoolPrefixBounds"),
    ({"default_prefixlen": 33}, "IllegalSubnetPoolPrefixBounds"), ({"prefixes": ["10.20.0.0/33"]}, "HTTPBadRequest"),
    ({"address_scope_id": "lab"}, "HTTPBadRequest"),
    ({"name": ""}, "HTTPBadRequest")])
def test_a_pool_that_cannot_be(ask, fields, type):
    assert pool(ask, status=400, **fields)["type"] == type
    assert ask("GET", TOP)["subnetpools"] == []


def test_subnets_are_cut_of_a_pool_one_after_the_other(ask):
    lab, one, two = pool(ask)["id"], network(ask), network(ask)
    cut = [subnet(ask, network_id, subnetpool_id=lab, ip_version=4) for network_id in (one, one, two)]
    assert [made["cidr"] for made in cut] == ["10.20.0.0/26", "10.20.0.64/26", "10.20.0.128/26"]
    assert {made["subnetpool_id"] for made in cut} == {lab} and cut[0]["gateway_ip"] == "10.20.0.1"
    assert subnet(ask, two, subnetpool_id=lab, prefixlen=24)["cidr"] == "10.20.1.0/24"
    assert subnet(ask, two, subnetpool_id=lab, cidr="10.20.7.0/24")["cidr"] == "10.20.7.0/24"
    ask("DELETE", f"/v2.0/subnets/{cut[1]['id']}")
    assert subnet(ask, one, subnetpool_id=lab)["cidr"] == "10.20.0.64/26"
    assert len(ask("GET", f"/v2.0/subnets?subnetpool_id={lab}")["subnets"]) == 5
    refused = ask("DELETE", f"{TOP}/{lab}", status=400)["NeutronError"]
    assert refused["type"] == "SubnetPoolDeleteError"


@pytest.mark.parametrize(("fields", "status", "type"), [
    ({"cidr": "10.20.0.32/27"}, 409, "SubnetAllocationError"), ({"cidr": "10.21.0.0/24"}, 409, "SubnetAllocationError"),
    ({"prefixlen": 15}, 400, "MinPrefixSubnetAllocationError"),
    ({"prefixlen": 29}, 400, "MaxPrefixSubnetAllocationError"),
    ({"prefixlen": 16}, 409, "SubnetAllocationError"), ({"ip_version": 6}, 400, "HTTPBadRequest"),
    ({"prefixlen": 27, "cidr": "10.20.9.0/27"}, 400, "HTTPBadRequest"),
    ({"subnetpool_id": "a7a4a1f5-6c0c-4f16-8e0e-0d0d3c0d9d4b"}, 404, "SubnetpoolNotFound"),
    ({"subnetpool_id": None}, 400, "HTTPBadRequest"), ({"subnetpool_id": None, "prefixlen": 24}, 400, "HTTPBadRequest"),
    ({"subnetpool_id": None, "cidr": "10.21.0.0/24"}, 400, "NetworkSubnetPoolAffinityError"),
    ({"subnetpool_id": None, "use_default_subnetpool": True}, 400, "BadRequest")])
def test_a_subnet_that_cannot_be_cut(ask, fields, status, type):
    lab, lan = pool(ask, min_prefixlen=16, max_prefixlen=28)["id"], network(ask)
    subnet(ask, lan, subnetpool_id=lab)
    assert subnet(ask, lan, status, **{"subnetpool_id": lab, **fields})["type"] == type
    assert len(ask("GET", "/v2.0/subnets")["subnets"]) == 1


def test_a_default_pool_is_the_administrators(ask):
    admin = ask.as_(ADMIN)
    pool(ask, is_default=True, status=403)
    hidden = pool(admin, is_default=True)["id"]
    refused = subnet(ask, network(ask), 400, use_default_subnetpool=True, ip_version=4)["message"]
    assert "No default subnetpool found for IPv4" in refused and hidden not in refused
    admin("DELETE", f"{TOP}/{hidden}")
    four = pool(admin, is_default=True, shared=True)
    six = pool(admin, name="six", prefixes=["fd00:20::/48"], default_prefixlen=64, is_default=True, shared=True)
    assert "exists" in pool(admin, is_default=True, status=400)["message"]
    lan = network(ask)
    assert subnet(ask, lan, use_default_subnetpool=True, ip_version=4)["subnetpool_id"] == four["id"]
    made = subnet(ask, lan, use_default_subnetpool=True, ip_version=6, ipv6_address_mode="slaac")
    assert (made["cidr"], made["subnetpool_id"]) == ("fd00:20::/64", six["id"])
    assert admin("PUT", f"{TOP}/{four['id']}", {"subnetpool": {"is_default": False}})["subnetpool"]["shared"]
    subnet(ask, lan, 400, use_default_subnetpool=True, ip_version=4)


def test_one_of_two_that_become_the_default_at_once_is_it(ask):
    admin = ask.as_(ADMIN)
    paths = [f"{TOP}/{pool(admin, name=name)['id']}" for name in ("one", "two")]
    for _time in range(5):
        with ThreadPoolExecutor(2) as both:
            said = both.map(lambda path: admin.ask("PUT", path, {"subnetpool": {"is_default": True}})[0], paths)
        assert sorted(said) == [200, 400]
        for path in paths:
            admin("PUT", path, {"subnetpool": {"is_default": False}})


def test_each_project_has_so_much_of_a_pool(ask):
    admin = ask.as_(ADMIN)
    lab, lan = pool(admin, shared=True, default_quota=128)["id"], network(ask)
    for _one in range(2):
        subnet(ask, lan, subnetpool_id=lab)
    refused = subnet(ask, lan, 409, subnetpool_id=lab)
    assert refused["type"] == "SubnetPoolQuotaExceeded" and "128 of 128" in refused["message"]
    other = ask.as_(BOB)
    assert subnet(other, network(other), subnetpool_id=lab)["cidr"] == "10.20.0.128/26"


def test_a_pool_is_shared_while_others_use_it(ask):
    other, lab = ask.as_(BOB), pool(ask)["id"]
    other("GET", f"{TOP}/{lab}", status=404)
    lan = network(other)
    subnet(other, lan, 404, subnetpool_id=lab)
    body = {"object_type": "subnetpool", "object_id": lab, "action": "access_as_shared",
            "target_tenant": BOB.project_id}
    policy = ask("POST", "/v2.0/rbac-policies", {"rbac_policy": body})["rbac_policy"]["id"]
    made = subnet(other, lan, subnetpool_id=lab)
    assert other("GET", f"{TOP}/{lab}")["subnetpool"]["shared"]
    other("PUT", f"{TOP}/{lab}", {"subnetpool": {"name": "mine"}}, status=403)
    ask("DELETE", f"/v2.0/rbac-policies/{policy}", status=409)
    other("DELETE", f"/v2.0/subnets/{made['id']}")
    ask("DELETE", f"/v2.0/rbac-policies/{policy}")
    ask("DELETE", f"{TOP}/{lab}")


@pytest.mark.parametrize(("nets", "taken", "bits", "found"), [
    (["10.0.0.0/24"], [], 26, "10.0.0.0/26"), (["10.0.0.0/24"], ["10.0.0.0/27"], 26, "10.0.0.64/26"),
    (["10.0.0.0/24"], ["10.0.0.64/26", "10.0.0.0/26"], 25, "10.0.0.128/25"), (["10.0.0.0/24"], [], 23, None),
    (["10.0.0.0/24"], ["10.0.0.255/32"], 24, None), (["10.0.0.0/16", "10.9.0.0/24"], [], 24, "10.9.0.0/24"),
    (["10.0.0.0/16", "10.9.0.0/24"], ["10.9.0.0/30"], 24, "10.0.0.0/24"),
    (["fd00::/62"], ["fd00::/64"], 64, "fd00:0:0:1::/64"),
    (["255.255.255.0/24"], ["255.255.255.0/25"], 25, "255.255.255.128/25")])
def test_the_first_prefix_that_is_free(nets, taken, bits, found):
    seen = first_free([*map(ip_network, nets)], [*map(ip_network, taken)], bits)
    assert seen == (found and ip_network(found))


@pytest.mark.parametrize(("first", "second"), [
    ({"prefixes": ["10.20.0.0/16", "10.30.0.0/16"]}, {"prefixes": ["10.20.0.0/16", "10.40.0.0/16"]}),
    ({"min_prefixlen": 20}, {"default_prefixlen": 18})], ids=["prefixes", "bounds"])
def test_changes_at_once_see_each_other(ask, monkeypatch, first, second):
    body = {"name": "p", "prefixes": ["10.20.0.0/16"], "default_prefixlen": 24, "min_prefixlen": 16}
    path = f"/v2.0/subnetpools/{ask('POST', '/v2.0/subnetpools', {'subnetpool': body})['subnetpool']['id']}"
    check, inside, go = subnet_pools._check_bounds, threading.Event(), threading.Event()

    def slow(*args):
        if not inside.is_set():
            inside.set()
            assert go.wait(30)
        check(*args)

    monkeypatch.setattr(subnet_pools, "_check_bounds", slow)
    with ThreadPoolExecutor(2) as both:
        one = both.submit(ask, "PUT", path, {"subnetpool": first})
        assert inside.wait(30)
        other = both.submit(ask, "PUT", path, {"subnetpool": second}, 400)
        time.sleep(0.5)
        go.set()
        assert one.result()["subnetpool"].items() >= first.items() and other.result()
