# SPDX-License-Identifier: GPL-3.0-or-later
"""Address scopes: whose prefixes are apart, and what routers then do not translate."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

from magnetar_control.services.network.subnets import subnets
from tests.support.control.serving import ADMIN, BOB, Asker

TOP, POOLS = "/v2.0/address-scopes", "/v2.0/subnetpools"


def _made(ask: Asker, path: str, noun: str, status: int | None = None, /, **fields: Any) -> Any:
    answer = ask("POST", path, {noun: fields}, status)
    return answer.get(noun) or answer["NeutronError"]


def scope(ask: Asker, status: int | None = None, **fields: Any) -> Any:
    return _made(ask, TOP, "address_scope", status, **{"name": "lab", "ip_version": 4, **fields})


def pool(ask: Asker, scope_id: str | None, *prefixes: str, status: int | None = None, **fields: Any) -> Any:
    return _made(ask, POOLS, "subnetpool", status, **{"name": "pool", "address_scope_id": scope_id,
                                                      "prefixes": list(prefixes or ["10.20.0.0/16"]), **fields})


def set_pool(ask: Asker, id: str, status: int | None = None, **fields: Any) -> Any:
    answer = ask("PUT", f"{POOLS}/{id}", {"subnetpool": fields}, status)
    return answer.get("subnetpool") or answer["NeutronError"]


def test_a_scope_and_its_pools(ask):
    made = scope(ask, description="of the lab")
    assert made == {**made, "name": "lab", "ip_version": 4, "shared": False, "project_id": "red",
                    "description": "of the lab"}
    path = f"{TOP}/{made['id']}"
    assert ask("PUT", path, {"address_scope": {"name": "new"}})["address_scope"]["name"] == "new"
    assert ask("PUT", path, {"address_scope": {"ip_version": 6}}, status=400)
    assert ask("GET", f"{TOP}?ip_version=6")["address_scopes"] == []
    one, other = pool(ask, made["id"]), pool(ask, None)  # outside of scopes any prefixes may be
    assert one["address_scope_id"] == made["id"]
    assert [each["id"] for each in ask("GET", f"{POOLS}?address_scope_id={made['id']}")["subnetpools"]] == [one["id"]]
    refused = ask("DELETE", path, status=409)["NeutronError"]
    assert refused["type"] == "AddressScopeInUse" and "--no-address-scope" in refused["message"]
    assert set_pool(ask, other["id"], 409, address_scope_id=made["id"])["type"] == "AddressScopePrefixConflict"
    set_pool(ask, one["id"], address_scope_id=None)
    set_pool(ask, other["id"], address_scope_id=made["id"], name="mine")
    set_pool(ask, other["id"], address_scope_id=None)
    ask("DELETE", path)
    ask("GET", path, status=404)


def test_prefixes_of_a_scope_are_apart(ask):
    id = scope(ask)["id"]
    first = pool(ask, id, "10.20.0.0/17")["id"]
    refused = pool(ask, id, "10.20.64.0/18", status=409)
    assert refused["type"] == "AddressScopePrefixConflict" and "10.20.0.0/17" in refused["message"]
    second = pool(ask, id, "10.20.128.0/18")["id"]
    set_pool(ask, first, 409, prefixes=["10.20.0.0/16"])
    set_pool(ask, second, prefixes=["10.20.128.0/17"])
    assert ask("GET", f"{POOLS}/{first}")["subnetpool"]["prefixes"] == ["10.20.0.0/17"]
    six = pool(ask, id, "fd00::/48", status=400)
    assert six["type"] == "IllegalSubnetPoolIpVersionAssociationToAddressScope"
    pool(ask, scope(ask, ip_version="6")["id"], "fd00::/48")


@pytest.mark.parametrize(("fields", "word"), [
    ({"ip_version": 5}, "ip_version"), ({"ip_version": None}, "ip_version"), ({"name": "x" * 256}, "name"),
    ({"colour": "red"}, "colour")])
def test_a_scope_that_cannot_be_says_why(ask, fields, word):
    assert word in scope(ask, status=400, **fields)["message"]


def test_whose_it_is(ask):
    admin, bob = ask.as_(ADMIN), ask.as_(BOB)
    scope(ask, shared=True, status=403)
    mine = scope(ask)["id"]
    bob("GET", f"{TOP}/{mine}", status=404)
    assert pool(bob, mine, status=404)["type"] == "AddressScopeNotFound"
    refused = pool(admin, mine, shared=True, project_id="red", status=400)
    assert refused["type"] == "IllegalSubnetPoolAssociationToAddressScope"
    everybodys = scope(admin, shared=True)["id"]
    assert bob("GET", f"{TOP}/{everybodys}")["address_scope"]["shared"] is True
    pool(bob, everybodys, "10.1.0.0/16")
    assert pool(ask, everybodys, "10.1.0.0/16", status=409)["type"] == "AddressScopePrefixConflict"
    kept = admin("PUT", f"{TOP}/{everybodys}", {"address_scope": {"shared": False}}, status=409)["NeutronError"]
    assert kept["type"] == "InvalidSharedSetting"


def test_a_scope_is_shared_while_others_use_it(ask):
    bob, mine = ask.as_(BOB), scope(ask)["id"]
    own = pool(ask, mine)["id"]

    def share(kind: str, id: str, status: int | None = None) -> Any:
        return _made(ask, "/v2.0/rbac-policies", "rbac_policy", status, object_type=kind, object_id=id,
                     action="access_as_shared", target_tenant="blue")

    refused = share("subnetpool", own, 400)  # who uses a pool uses its scope
    assert refused["type"] == "IllegalSubnetPoolAssociationToAddressScope"
    policy = f"/v2.0/rbac-policies/{share('address_scope', mine)['id']}"
    of_pool = f"/v2.0/rbac-policies/{share('subnetpool', own)['id']}"
    assert ask("DELETE", policy, status=409)["NeutronError"]["type"] == "RbacPolicyInUse"
    assert ask("PUT", of_pool, {"rbac_policy": {"target_tenant": "green"}}, status=400)
    ask("DELETE", of_pool)
    theirs = pool(bob, mine, "10.30.0.0/16")["id"]
    ask("DELETE", policy, status=409)
    bob("DELETE", f"{POOLS}/{theirs}")
    ask("DELETE", policy)
    bob("GET", f"{TOP}/{mine}", status=404)


def test_subnets_of_a_network_are_of_pools_of_one_scope(ask):
    lab, other = scope(ask)["id"], scope(ask, name="other")["id"]
    one, two = pool(ask, lab)["id"], pool(ask, lab, "10.30.0.0/16")["id"]
    apart, alone = pool(ask, other, "10.40.0.0/16")["id"], pool(ask, None, "10.50.0.0/16")["id"]
    network = _made(ask, "/v2.0/networks", "network", name="lan")["id"]

    def cut(pool_id: str | None, status: int | None = None, **fields: Any) -> Any:
        return _made(ask, "/v2.0/subnets", "subnet", status, network_id=network, subnetpool_id=pool_id,
                     **{"prefixlen": 24, **fields})

    first, second = cut(one), cut(two)
    assert (first["cidr"], second["cidr"]) == ("10.20.0.0/24", "10.30.0.0/24")
    for wrong, fields in ((apart, {}), (alone, {}), (None, {"cidr": "10.60.0.0/24", "prefixlen": None})):
        refused = cut(wrong, 400, **fields)
        assert refused["type"] == "NetworkAddressScopeAffinityError" and lab in refused["message"]
    cut(None, cidr="fd00:1::/64", prefixlen=None)  # of the other IP version
    for id in (one, two):
        for wanted in (None, other):
            refused = set_pool(ask, id, 400, address_scope_id=wanted)
            assert refused["type"] == "NetworkAddressScopeAffinityError" and network in refused["message"]
    assert ask("GET", f"/v2.0/networks/{network}")["network"]["ipv4_address_scope"] == lab
    ask("DELETE", f"/v2.0/subnets/{second['id']}")
    set_pool(ask, one, address_scope_id=None)
    assert cut(two, 400)["type"] == "NetworkSubnetPoolAffinityError"


def test_a_network_of_another_project_is_not_named(ask):
    """Whoever shares pools learns nothing of what others make of them."""
    bob, lab, other = ask.as_(BOB), scope(ask)["id"], scope(ask, name="other")["id"]
    pools = [pool(ask, lab, cidr)["id"] for cidr in ("10.20.0.0/16", "10.30.0.0/16")]
    for kind, id in (("address_scope", lab), *(("subnetpool", one) for one in pools)):
        _made(ask, "/v2.0/rbac-policies", "rbac_policy", object_type=kind, object_id=id, action="access_as_shared",
              target_tenant="blue")
    network = _made(bob, "/v2.0/networks", "network", name="secret")["id"]
    for id in pools:
        _made(bob, "/v2.0/subnets", "subnet", network_id=network, subnetpool_id=id, prefixlen=24)
    refused = set_pool(ask, pools[0], 400, address_scope_id=other)
    assert refused["type"] == "NetworkAddressScopeAffinityError"
    assert refused["message"].startswith("A network of another project has") and network not in refused["message"]
    assert network in set_pool(ask.as_(ADMIN), pools[0], 400, address_scope_id=None)["message"]


@pytest.mark.parametrize("database_kind", ["postgres"])
def test_a_pool_keeps_its_scope_while_a_subnet_comes_beside_its_own(ask, monkeypatch):
    lab, other = scope(ask)["id"], scope(ask, name="other")["id"]
    one, two = pool(ask, lab)["id"], pool(ask, lab, "10.30.0.0/16")["id"]
    network = _made(ask, "/v2.0/networks", "network", name="lan")["id"]
    subnet = {"network_id": network, "prefixlen": 24}
    _made(ask, "/v2.0/subnets", "subnet", subnetpool_id=one, **subnet)
    add, threads = subnets.insert_resource_row, []

    def meanwhile(*args: Any) -> None:
        thread = Thread(target=set_pool, args=(ask, one, 400), kwargs={"address_scope_id": other})
        threads.append(thread)
        thread.start()
        thread.join(1)
        assert thread.is_alive()  # it waits
        add(*args)

    monkeypatch.setattr(subnets, "insert_resource_row", meanwhile)
    _made(ask, "/v2.0/subnets", "subnet", subnetpool_id=two, **subnet)
    threads[0].join()
    assert ask("GET", f"/v2.0/networks/{network}")["network"]["ipv4_address_scope"] == lab
    assert ask("GET", f"{POOLS}/{one}")["subnetpool"]["address_scope_id"] == lab


def test_routers_do_not_translate_within_a_scope(ask, service, engine):
    """What leads out of a subnet into a network of its scope keeps its address; other subnets' is translated."""
    admin = ask.as_(ADMIN)
    everybodys = scope(admin, shared=True)["id"]
    outer = pool(admin, everybodys, "203.0.113.0/24", default_prefixlen=24)["id"]
    inner = pool(admin, everybodys, "10.20.0.0/16", default_prefixlen=24, shared=True)["id"]
    own = pool(ask, everybodys, "10.40.0.0/16", default_prefixlen=24)["id"]  # of a prefix that nobody checked
    ext = _made(admin, "/v2.0/networks", "network", name="ext", **{
        "provider:network_type": "flat", "provider:physical_network": "ext", "router:external": True})["id"]
    _made(admin, "/v2.0/subnets", "subnet", network_id=ext, subnetpool_id=outer, enable_dhcp=False)
    router = _made(ask, "/v2.0/routers", "router", name="r", external_gateway_info={"network_id": ext})["id"]
    for fields in ({"subnetpool_id": inner}, {"cidr": "10.30.0.0/24"}, {"subnetpool_id": own}):
        lan = _made(ask, "/v2.0/networks", "network", name="lan")["id"]
        subnet = _made(ask, "/v2.0/subnets", "subnet", network_id=lan, **fields)["id"]
        ask("PUT", f"/v2.0/routers/{router}/add_router_interface", {"subnet_id": subnet})
        shown = ask("GET", f"/v2.0/networks/{lan}")["network"]
        assert (shown["ipv4_address_scope"], shown["ipv6_address_scope"]) == (
            everybodys if "cidr" not in fields else None, None)

    def translated() -> set[str]:
        service.worker.round()
        return {one.inside for one in engine.units[f"router/{router}"].translations}

    assert translated() == {"10.30.0.0/24", "10.40.0.0/24"}
    set_pool(admin, inner, address_scope_id=None)
    assert translated() == {"10.20.0.0/24", "10.30.0.0/24", "10.40.0.0/24"}
    set_pool(admin, inner, address_scope_id=everybodys)
    assert translated() == {"10.30.0.0/24", "10.40.0.0/24"}
