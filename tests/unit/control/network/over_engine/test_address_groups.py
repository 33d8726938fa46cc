# SPDX-License-Identifier: GPL-3.0-or-later
"""Address groups, and the rules that name them."""

from __future__ import annotations

import pytest

from tests.support.control.serving import ADMIN, BOB

TOP = "/v2.0/address-groups"


@pytest.fixture
def office(ask):
    body = {"name": "office", "addresses": ["192.0.2.7", "198.51.100.9/24"]}
    return ask("POST", TOP, {"address_group": body})["address_group"]


def _rule(ask, group, status=None, **fields):
    body = {"security_group_id": ask("GET", "/v2.0/security-groups")["security_groups"][0]["id"],
            "direction": "ingress", "remote_address_group_id": group, **fields}
    answer = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body}, status)
    return answer.get("security_group_rule") or answer["NeutronError"]


def test_rules_name_addresses_that_come_and_go(ask, service, engine, office):
    assert office["addresses"] == ["192.0.2.7/32", "198.51.100.0/24"]
    rule = _rule(ask, office["id"], protocol="tcp")
    service.worker.round()
    (unit,) = [one for one in engine.group(rule["security_group_id"]).rules if one.remote_addresses]
    key = f"addresses/{unit.remote_addresses}"
    assert engine.units[key].addresses == ("192.0.2.7/32", "198.51.100.0/24")
    path = f"{TOP}/{office['id']}"
    more = ask("PUT", f"{path}/add_addresses", {"addresses": ["2001:db8::/64"]})["address_group"]
    assert more["addresses"] == [*office["addresses"], "2001:db8::/64"]
    ask("PUT", f"{path}/remove_addresses", {"addresses": ["192.0.2.7"]})
    service.worker.round()
    assert engine.units[key].addresses == ("198.51.100.0/24", "2001:db8::/64")
    assert ask("DELETE", path, status=409)["NeutronError"]["type"] == "AddressGroupInUse"
    ask("DELETE", f"/v2.0/security-group-rules/{rule['id']}")
    ask("DELETE", path)
    service.worker.round()
    assert key not in engine.units
    assert service.worker.differences() == []


def test_a_default_rule_names_one_that_all_have(ask, service, engine):
    admin, top = ask.as_(ADMIN), "/v2.0/default-security-group-rules"
    office = admin("POST", TOP, {"address_group": {"name": "office", "addresses": ["192.0.2.7"]}})["address_group"]
    wish = {"default_security_group_rule": {"direction": "ingress", "remote_address_group_id": office["id"]}}
    assert "--type address_group" in admin("POST", top, wish, 400)["NeutronError"]["message"]
    policy = admin("POST", "/v2.0/rbac-policies", {"rbac_policy": {
        "object_type": "address_group", "object_id": office["id"], "action": "access_as_shared",
        "target_tenant": "*"}})["rbac_policy"]
    made = admin("POST", top, wish)["default_security_group_rule"]
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    service.worker.round()
    assert [one.remote_addresses for one in engine.group(group["id"]).rules if one.remote_addresses] == [office["id"]]
    ask("DELETE", f"/v2.0/security-groups/{group['id']}")
    for path in (f"{TOP}/{office['id']}", f"/v2.0/rbac-policies/{policy['id']}"):
        admin("DELETE", path, status=409)
    admin("DELETE", f"{top}/{made['id']}")
    admin("DELETE", f"{TOP}/{office['id']}")
    dccp = {"direction": "ingress", "protocol": "dccp", "port_range_min": 5, "port_range_max": 5}
    assert "OVN looks at" in admin("POST", top, {"default_security_group_rule": dccp}, 400)["NeutronError"]["message"]


@pytest.mark.parametrize(("verb", "addresses", "status", "words"), [
    ("add", ["192.0.2.7"], 400, "already exist"), ("add", ["192.0.2.300"], 400, "addresses"),
    ("remove", ["192.0.2.7", "192.0.2.8"], 404, "192.0.2.8"), ("add", None, 400, None),
    ("add", [f"10.0.{at // 256}.{at % 256}" for at in range(1000)], 400, "at most 1000"),
    ("remove", [f"10.0.{at // 256}.{at % 256}" for at in range(1001)], 400, "at most 1000 items")])
def test_what_cannot_be_added_or_removed_changes_nothing(ask, office, verb, addresses, status, words):
    if words is None:
        assert ask("PUT", f"{TOP}/{office['id']}/{verb}_addresses", {}, status=400)
        return
    path = f"{TOP}/{office['id']}"
    refused = ask("PUT", f"{path}/{verb}_addresses", {"addresses": addresses}, status=status)["NeutronError"]
    assert words in refused["message"]
    assert ask("GET", path)["address_group"] == office


def test_whose_it_is(ask, office):
    bob, path = ask.as_(BOB), f"{TOP}/{office['id']}"
    assert bob("GET", path, status=404)
    assert bob("PUT", f"{path}/add_addresses", {"addresses": ["10.0.0.1"]}, status=404)
    assert _rule(bob, office["id"], 404)["type"] == "AddressGroupNotFound"
    both = {"remote_ip_prefix": "10.0.0.0/8"}
    assert _rule(ask, office["id"], 400, **both)["type"] == "SecurityGroupMultipleRemoteEntities"
    shared = {"object_type": "address_group", "object_id": office["id"], "action": "access_as_shared",
              "target_tenant": "blue"}
    policy = ask("POST", "/v2.0/rbac-policies", {"rbac_policy": shared})["rbac_policy"]
    assert bob("GET", path)["address_group"]["shared"] is True
    rule = _rule(bob, office["id"])
    assert bob("PUT", f"{path}/add_addresses", {"addresses": ["10.0.0.1"]}, status=403)
    refused = ask("DELETE", f"/v2.0/rbac-policies/{policy['id']}", status=409)["NeutronError"]
    assert refused["type"] == "RbacPolicyInUse"
    bob("DELETE", f"/v2.0/security-group-rules/{rule['id']}")
    ask("DELETE", path)
    assert ask("GET", "/v2.0/rbac-policies")["rbac_policies"] == []
