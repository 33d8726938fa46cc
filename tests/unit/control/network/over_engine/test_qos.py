# SPDX-License-Identifier: GPL-3.0-or-later
"""QoS policies: their rules, where they count, and what the engine is told of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from magnetar_control.services.network.engine.engine import LogicalLimit
from tests.support.control.serving import ADMIN, BOB

TOP = "/v2.0/qos/policies"


@pytest.fixture
def policy(ask):
    """Shared, with a limit of each direction and a mark."""
    found = ask.as_(ADMIN)("POST", TOP, {"policy": {"name": "slow", "shared": True}})["policy"]
    for kind, rule in (("bandwidth_limit", {"max_kbps": 1000, "max_burst_kbps": 100}),
                       ("bandwidth_limit", {"max_kbps": 2000, "direction": "ingress"}),
                       ("dscp_marking", {"dscp_mark": 26})):
        ask.as_(ADMIN)("POST", f"{TOP}/{found['id']}/{kind}_rules", {f"{kind}_rule": rule})
    return ask("GET", f"{TOP}/{found['id']}")["policy"]


def test_a_policy_counts_for_the_ports_that_have_it_and_those_of_networks_that_have(ask, service, engine, lan, policy):
    assert [one["type"] for one in policy["rules"]] == ["bandwidth_limit", "bandwidth_limit", "dscp_marking"]
    network = lan(ask)
    first, second = (ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **values}})["port"]
                     for values in ({}, {"qos_policy_id": policy["id"]}))
    assert (first["qos_policy_id"], second["qos_policy_id"]) == (None, policy["id"])
    service.worker.round()
    limits = (LogicalLimit("egress", 1000, 100), LogicalLimit("ingress", 2000))
    assert (engine.port(second["id"]).limits, engine.port(second["id"]).dscp) == (limits, 26)
    assert (engine.port(first["id"]).limits, engine.port(first["id"]).dscp) == ((), None)
    ask("PUT", f"/v2.0/networks/{network['id']}", {"network": {"qos_policy_id": policy["id"]}})
    service.worker.round()
    assert engine.port(first["id"]).limits == limits
    rules = f"{TOP}/{policy['id']}/bandwidth_limit_rules"
    rule = ask("GET", f"{rules}?direction=egress")["bandwidth_limit_rules"][0]
    changed = ask.as_(ADMIN)("PUT", f"{rules}/{rule['id']}", {"bandwidth_limit_rule": {"max_kbps": 500}})
    assert changed["bandwidth_limit_rule"] == {**rule, "max_kbps": 500}
    ask.as_(ADMIN)("DELETE", f"{TOP}/{policy['id']}/dscp_marking_rules/{policy['rules'][2]['id']}")
    service.worker.round()
    for port in (first, second):
        assert engine.port(port["id"]).limits == (LogicalLimit("egress", 500, 100), LogicalLimit("ingress", 2000))
        assert engine.port(port["id"]).dscp is None
    for path, name in ((f"ports/{second['id']}", "port"), (f"networks/{network['id']}", "network")):
        ask("PUT", f"/v2.0/{path}", {name: {"qos_policy_id": None}})
    service.worker.round()
    assert not any(engine.port(port["id"]).limits for port in (first, second))
    assert service.worker.differences() == []


def test_a_policy_in_use_cannot_go(ask, lan, policy):
    network = lan(ask)
    port = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], "qos_policy_id": policy["id"]}})["port"]
    refused = ask.as_(ADMIN)("DELETE", f"{TOP}/{policy['id']}", status=409)["NeutronError"]
    assert (refused["type"], port["id"] in refused["message"]) == ("QosPolicyInUse", True)
    refused = ask.as_(ADMIN)("PUT", f"{TOP}/{policy['id']}", {"policy": {"shared": False}}, status=409)
    assert refused["NeutronError"]["type"] == "InvalidSharedSetting"
    assert ask("GET", f"{TOP}/{policy['id']}")["policy"] == policy
    ask("DELETE", f"/v2.0/ports/{port['id']}")
    ask.as_(ADMIN)("DELETE", f"{TOP}/{policy['id']}")
    assert ask("GET", TOP)["policies"] == []


def test_what_an_operator_set_members_do_not_take_off(ask, lan):
    admin, network = ask.as_(ADMIN), lan(ask)
    policy = admin("POST", TOP, {"policy": {"name": "paid"}})["policy"]
    admin("PUT", f"/v2.0/networks/{network['id']}", {"network": {"qos_policy_id": policy["id"]}})
    body = {"network": {"qos_policy_id": None}}
    refused = ask("PUT", f"/v2.0/networks/{network['id']}", body, status=403)["NeutronError"]
    assert refused["type"] == "PolicyRemoveAuthorizationError"
    for path in (TOP, f"{TOP}/{policy['id']}/dscp_marking_rules"):
        assert ask.ask("GET", path)[0] == (200 if path == TOP else 404)
    port = {"port": {"network_id": network["id"], "qos_policy_id": policy["id"]}}
    assert ask("POST", "/v2.0/ports", port, status=404)["NeutronError"]["type"] == "QosPolicyNotFound"
    for who in (ask, ask.as_(BOB)):
        assert who("POST", TOP, {"policy": {"name": "mine"}}, status=403)
    rules = f"{TOP}/{policy['id']}/bandwidth_limit_rules"
    assert ask("POST", rules, {"bandwidth_limit_rule": {"max_kbps": 10**9}}, status=404)


def test_new_networks_have_the_default_policy_of_their_project(ask, lan):
    admin = ask.as_(ADMIN)
    policy = {"name": "usual", "is_default": True, "project_id": "red"}
    made = admin("POST", TOP, {"policy": policy})["policy"]
    refused = admin("POST", TOP, {"policy": policy}, status=409)["NeutronError"]
    assert refused["type"] == "QoSPolicyDefaultAlreadyExists"
    assert lan(ask)["qos_policy_id"] == made["id"]
    assert lan(ask.as_(BOB))["qos_policy_id"] is None
    assert lan(ask, qos_policy_id=None)["qos_policy_id"] is None


def test_one_of_two_that_become_the_default_at_once_is_it(ask):
    admin = ask.as_(ADMIN)
    paths = [f"{TOP}/{admin('POST', TOP, {'policy': {'name': name}})['policy']['id']}" for name in ("one", "two")]
    for _time in range(5):
        with ThreadPoolExecutor(2) as both:
            said = both.map(lambda path: admin.ask("PUT", path, {"policy": {"is_default": True}})[0], paths)
        assert sorted(said) == [200, 409]
        for path in paths:
            admin("PUT", path, {"policy": {"is_default": False}})


@pytest.mark.parametrize(("kind", "rule", "words"), [
    ("bandwidth_limit", {}, "max_kbps"), ("bandwidth_limit", {"max_kbps": 0}, "max_kbps"),
    ("bandwidth_limit", {"max_kbps": 1, "direction": "up"}, "direction"),
    ("bandwidth_limit", {"max_kbps": 1, "max_burst_kbps": -1}, "max_burst_kbps"),
    ("dscp_marking", {"dscp_mark": 7}, "dscp_mark"), ("minimum_bandwidth", {"min_kbps": 0}, "min_kbps"),
    ("packet_rate_limit", {"max_kpps": 1}, "not packets")])
def test_a_rule_that_cannot_be_says_why(ask, policy, kind, rule, words):
    body = {f"{kind}_rule": rule}
    refused = ask.as_(ADMIN)("POST", f"{TOP}/{policy['id']}/{kind}_rules", body, status=400)["NeutronError"]
    assert words in refused["message"]
    assert ask("GET", f"{TOP}/{policy['id']}")["policy"]["rules"] == policy["rules"]


def test_a_policy_has_one_rule_of_a_kind_in_a_direction(ask, policy):
    admin, rules = ask.as_(ADMIN), f"{TOP}/{policy['id']}/bandwidth_limit_rules"
    refused = admin("POST", rules, {"bandwidth_limit_rule": {"max_kbps": 5}}, status=409)["NeutronError"]
    assert refused["type"] == "QoSRulesConflict"
    body = {"bandwidth_limit_rule": {"direction": "ingress"}}
    assert admin("PUT", f"{rules}/{policy['rules'][0]['id']}", body, status=409)
    other = admin("POST", TOP, {"policy": {"name": "other"}})["policy"]
    elsewhere = f"{TOP}/{other['id']}/bandwidth_limit_rules/{policy['rules'][0]['id']}"
    for method, more in (("GET", None), ("DELETE", None), ("PUT", {"bandwidth_limit_rule": {"max_kbps": 7}})):
        assert admin(method, elsewhere, more, status=404)


def test_only_networks_of_ovn_have_policies(ask, policy):
    admin = ask.as_(ADMIN)
    body = {"network": {"name": "old", "provider:network_type": "nat", "qos_policy_id": policy["id"]}}
    refused = admin("POST", "/v2.0/networks", body, status=400)["NeutronError"]
    assert "qos_policy_id: must be null" in refused["message"]


def test_types_of_rules(ask):
    assert ask("GET", "/v2.0/qos/rule-types") == {"rule_types": [
        {"type": "bandwidth_limit"}, {"type": "dscp_marking"}, {"type": "minimum_bandwidth"}]}
    assert ask("GET", "/v2.0/qos/rule-types/dscp_marking", status=403)
    shown = ask.as_(ADMIN)("GET", "/v2.0/qos/rule-types/bandwidth_limit")["rule_type"]["drivers"][0]
    assert [one["parameter_name"] for one in shown["supported_parameters"]] == [
        "max_kbps", "max_burst_kbps", "direction"]
    missing = ask.as_(ADMIN)("GET", "/v2.0/qos/rule-types/minimum_packet_rate", status=404)["NeutronError"]
    assert "not packets" in missing["message"]
