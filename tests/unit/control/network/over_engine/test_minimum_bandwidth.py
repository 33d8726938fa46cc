# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of minimum bandwidth: what ports ask of a host by them, and what stays while a server has the port."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import yaml

from magnetar_core.errors import Conflict, InvalidRequest
from tests.support.control.serving import ADMIN, ALICE

TOP = "/v2.0/qos/policies"
CASES = yaml.safe_load((Path(__file__).parents[4] / "cases/minimum_bandwidth.yml").read_text(encoding="utf-8"))
SERVER = str(uuid.uuid4())


@pytest.fixture
def made(ask):
    """``made(rules, **network)``: a policy with these rules, a network, and a port there that has the policy; by their
    names."""
    admin = ask.as_(ADMIN)

    def make(rules, on="port", **network):
        policy = admin("POST", TOP, {"policy": {"name": "paid", "shared": True}})["policy"]
        ids = {"policy": policy["id"], "rules": []}
        for rule in rules:
            kind = rule.get("kind", "minimum_bandwidth")
            values = {name: value for name, value in rule.items() if name != "kind"}
            ids["rules"].append(admin("POST", f"{TOP}/{policy['id']}/{kind}_rules", {f"{kind}_rule": values})[
                f"{kind}_rule"]["id"])
        own = {"qos_policy_id": policy["id"]}
        wish = {"name": "lan", "shared": True, **network, **(own if on == "network" else {})}
        ids["network"] = admin("POST", "/v2.0/networks", {"network": wish})["network"]["id"]
        admin("POST", "/v2.0/subnets", {"subnet": {"network_id": ids["network"], "cidr": "10.1.0.0/24"}})
        port = {"network_id": ids["network"], **(own if on == "port" else {})}
        ids["port"] = ask("POST", "/v2.0/ports", {"port": port})["port"]["id"]
        return ids

    return make


@pytest.mark.parametrize("case", CASES["requests"], ids=[case["name"] for case in CASES["requests"]])
def test_what_a_port_asks_of_its_servers_host(ask, made, case):
    ids = made(case["rules"], **case.get("given", {}))
    port = ask.as_(ADMIN)("GET", f"/v2.0/ports/{ids['port']}")["port"]
    assert "resource_request" not in ask("GET", f"/v2.0/ports/{ids['port']}")["port"]
    if case["asks"] is None:
        assert port["resource_request"] is None
        return
    (group,) = port["resource_request"]["request_groups"]
    assert (group["required"], group["resources"]) == (case["asks"]["required"], case["asks"]["resources"])
    assert port["resource_request"]["same_subtree"] == [group["id"]]
    assert port["binding:profile"] == {}


@pytest.mark.parametrize("case", CASES["changes"], ids=[case["name"] for case in CASES["changes"]])
def test_what_a_server_has_claimed_does_not_change(ask, service, made, case):
    """Nor does the policy, of which the port is not a server's, stay as it is."""
    ids = made([{"min_kbps": 1000}], on=case.get("by", "port"),
               **{"provider:network_type": "flat", "provider:physical_network": "physnet0"})
    (wish,) = service.check_requested(ALICE, [{"port": ids["port"]}])
    assert wish["resources"] == {"NET_BW_EGR_KILOBIT_PER_SEC:physnet0": 1000}
    (nic,) = service.allocate(ALICE, SERVER, [wish])
    assert nic["resources"] == wish["resources"] == service.ports(SERVER)[0]["resources"]
    method, path = case["ask"].format(rule=ids["rules"][0], **ids).split()
    admin = ask.as_(ADMIN)
    refused = admin(method, path, case.get("body"), status=409)["NeutronError"]
    assert refused["type"] == "QosPolicyInUse" and f"remove port {SERVER} {ids['port']}" in refused["message"]
    service.release(SERVER)
    admin(method, path, case.get("body"))
    (now,) = service.check_requested(ALICE, [{"port": ids["port"]}])
    assert now.get("resources", {}) == case["then"]


def test_a_port_whose_policy_changed_meanwhile_is_not_taken(ask, service, made):
    ids = made([{"min_kbps": 1000}])
    wishes = service.check_requested(ALICE, [{"port": ids["port"]}])
    ask("PUT", f"/v2.0/ports/{ids['port']}", {"port": {"qos_policy_id": None}})
    with pytest.raises(Conflict, match="changed after the server"):
        service.allocate(ALICE, SERVER, wishes)
    assert service.ports(SERVER) == []


def test_ports_of_a_promising_network_are_made_before(ask, service, made):
    ids = made([{"min_kbps": 1000}], on="network")
    with pytest.raises(InvalidRequest, match="networks with QoS policy is not supported"):
        service.check_requested(ALICE, [{"uuid": ids["network"]}])
    with pytest.raises(InvalidRequest, match="networks with QoS policy is not supported"):
        service.check_requested(ALICE, [])
    assert service.check_requested(ALICE, [{"port": ids["port"]}])[0]["resources"]


@pytest.mark.parametrize("on", ["port", "network"])
def test_subports_are_promised_nothing(ask, made, on):
    """No server claims anything for them."""
    admin, ids = ask.as_(ADMIN), made([{"min_kbps": 1000}], on=on)
    outer = admin("POST", "/v2.0/networks", {"network": {"name": "outer", "shared": True}})["network"]["id"]
    admin("POST", "/v2.0/subnets", {"subnet": {"network_id": outer, "cidr": "10.2.0.0/24"}})
    parent = ask("POST", "/v2.0/ports", {"port": {"network_id": outer}})["port"]["id"]
    trunk = ask("POST", "/v2.0/trunks", {"trunk": {"port_id": parent}})["trunk"]["id"]
    adding = f"/v2.0/trunks/{trunk}/add_subports", {"sub_ports": [
        {"port_id": ids["port"], "segmentation_type": "vlan", "segmentation_id": 7}]}
    assert "promises it a minimum" in ask("PUT", *adding, status=409)["NeutronError"]["message"]
    rules = f"{TOP}/{ids['policy']}/minimum_bandwidth_rules"
    admin("DELETE", f"{rules}/{ids['rules'][0]}")
    ask("PUT", *adding)
    refused = admin("POST", rules, {"minimum_bandwidth_rule": {"min_kbps": 1}}, status=409)["NeutronError"]
    assert f"port {ids['port']} is a subport of a trunk" in refused["message"]
    ask("PUT", f"/v2.0/trunks/{trunk}/remove_subports", {"sub_ports": [{"port_id": ids["port"]}]})
    admin("POST", rules, {"minimum_bandwidth_rule": {"min_kbps": 1}})


@pytest.mark.parametrize("case", CASES["contradictions"], ids=[case["name"] for case in CASES["contradictions"]])
def test_no_port_is_promised_more_than_it_may_have(ask, made, case):
    ids = made(case["rules"])
    rule = dict(case["then"])
    kind = rule.pop("kind", "minimum_bandwidth")
    path = f"{TOP}/{ids['policy']}/{kind}_rules"
    assert ask.as_(ADMIN)("POST", path, {f"{kind}_rule": rule}, status=409)["NeutronError"][
        "type"] == "QoSRuleParameterConflict"


def test_what_the_extensions_and_types_say(ask):
    known = {one["alias"] for one in ask("GET", "/v2.0/extensions")["extensions"]}
    assert known >= {"port-resource-request", "port-resource-request-groups", "qos-bw-minimum-ingress"}
    told = ask.as_(ADMIN)("GET", "/v2.0/qos/rule-types/minimum_bandwidth")["rule_type"]
    assert [one["parameter_name"] for one in told["drivers"][0]["supported_parameters"]] == ["min_kbps", "direction"]
