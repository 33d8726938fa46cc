# SPDX-License-Identifier: GPL-3.0-or-later
"""RBAC policies: what they let others use, and that what is used stays shared."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_core.errors import Conflict, InvalidRequest
from tests.support.control.serving import ADMIN, BOB, Asker

TOP = "/v2.0/rbac-policies"


def _share(ask: Asker, kind: str, id: str, target: str = "blue", status: int | None = None,
           action: str = "access_as_shared") -> Any:
    body = {"object_type": kind, "object_id": id, "action": action, "target_tenant": target}
    answer = ask("POST", TOP, {"rbac_policy": body}, status)
    return answer.get("rbac_policy") or answer["NeutronError"]


def _port(ask: Asker, network: str, status: int | None = None, **fields: Any) -> Any:
    answer = ask("POST", "/v2.0/ports", {"port": {"network_id": network, **fields}}, status)
    return answer.get("port") or answer["NeutronError"]


def test_a_network_is_shared_with_one_project(ask, service, lan):
    network, bob = lan(ask), ask.as_(BOB)
    path = f"/v2.0/networks/{network['id']}"
    assert bob("GET", path, status=404)
    policy = _share(ask, "network", network["id"])
    assert policy == {**policy, "project_id": "red", "tenant_id": "red", "target_tenant": "blue"}
    assert bob("GET", path)["network"]["shared"] is True
    assert ask("GET", path)["network"]["shared"] is False  # not with all
    assert [one["network_id"] for one in bob("GET", "/v2.0/subnets")["subnets"]] == [network["id"]]
    assert bob("PUT", path, {"network": {"name": "mine"}}, status=403)
    (wish,) = service.check_requested(BOB, [{"uuid": network["id"]}])
    assert wish["network_id"] == network["id"]  # a server's that names it
    port = _port(bob, network["id"])
    refused = ask("DELETE", f"{TOP}/{policy['id']}", status=409)["NeutronError"]
    assert (refused["type"], "1 projects" in refused["message"]) == ("RbacPolicyInUse", True)
    moved = {"rbac_policy": {"target_tenant": "green"}}
    assert ask("PUT", f"{TOP}/{policy['id']}", moved, status=409)["NeutronError"]["type"] == "RbacPolicyInUse"
    assert ask("GET", f"{TOP}/{policy['id']}")["rbac_policy"] == policy
    bob("DELETE", f"/v2.0/ports/{port['id']}")
    assert ask("PUT", f"{TOP}/{policy['id']}", moved)["rbac_policy"]["target_tenant"] == "green"
    assert bob("GET", path, status=404)
    ask("DELETE", f"{TOP}/{policy['id']}")


def test_no_server_lands_in_a_network_that_was_shared_unasked(ask, service, lan):
    """Whoever shares a network would hear what servers send that name none."""
    bob, theirs = ask.as_(BOB), lan(ask, name="trap")
    _share(ask, "network", theirs["id"])
    with pytest.raises(Conflict, match="share networks with it. Use a Network ID .* as uuid in networks .* create a "
                                       "network with a subnet, or, since microversion 2.37, ask for networks: none"):
        service.check_requested(BOB, [])
    with pytest.raises(InvalidRequest, match="No default subnetpools"):
        service.check_requested(BOB, "auto")
    ask.as_(ADMIN)("POST", "/v2.0/subnetpools", {"subnetpool": {
        "name": "first", "prefixes": ["10.20.0.0/16"], "default_prefixlen": 24, "shared": True, "is_default": True}})
    (made,) = service.check_requested(BOB, "auto")  # the first network of the project
    assert bob("GET", f"/v2.0/networks/{made['network_id']}")["network"]["project_id"] == "blue"
    for wish in ([], "auto"):
        assert service.check_requested(BOB, wish)[0]["network_id"] == made["network_id"]
    assert service.check_requested(BOB, [{"uuid": theirs["id"]}])[0]["network_id"] == theirs["id"]
    _share(ask.as_(ADMIN), "network", theirs["id"], "*")
    for wish in ([], "auto"):
        with pytest.raises(Conflict, match="Multiple possible networks found"):
            service.check_requested(BOB, wish)


def test_shared_is_a_policy_for_all(ask, lan):
    admin, bob, network = ask.as_(ADMIN), ask.as_(BOB), lan(ask)
    path = f"/v2.0/networks/{network['id']}"
    assert _share(ask, "network", network["id"], "*", 403)["type"] == "PolicyNotAuthorized"
    admin("PUT", path, {"network": {"shared": True}})
    (policy,) = ask("GET", f"{TOP}?object_id={network['id']}")["rbac_policies"]
    assert (policy["target_tenant"], policy["action"], policy["project_id"]) == ("*", "access_as_shared", "red")
    _port(bob, network["id"])
    refused = admin("PUT", path, {"network": {"shared": False}}, status=409)["NeutronError"]
    assert refused["type"] == "InvalidSharedSetting"
    assert admin("DELETE", f"{TOP}/{policy['id']}", status=409)["NeutronError"]["type"] == "RbacPolicyInUse"
    _share(ask, "network", network["id"])  # which does for the one who uses it
    admin("DELETE", f"{TOP}/{policy['id']}")
    assert ask("GET", path)["network"]["shared"] is False
    assert bob("GET", path)["network"]["shared"] is True
    _share(admin, "network", network["id"], "*")
    assert ask("GET", path)["network"]["shared"] is True
    assert _share(admin, "network", network["id"], "*", 409)["type"] == "DuplicateRbacPolicy"


def test_an_external_network_of_one_project(ask, outside, lan):
    admin, bob = ask.as_(ADMIN), ask.as_(BOB)
    path, router = f"/v2.0/networks/{outside['id']}", {"external_gateway_info": {"network_id": outside["id"]}}
    (everybody,) = admin("GET", f"{TOP}?object_id={outside['id']}")["rbac_policies"]
    assert (everybody["action"], everybody["target_tenant"]) == ("access_as_external", "*")
    assert _share(ask, "network", lan(ask)["id"], "blue", 403, "access_as_external")
    policy = _share(admin, "network", outside["id"], action="access_as_external")
    admin("DELETE", f"{TOP}/{everybody['id']}")
    assert ask("GET", path, status=404)
    assert ask("POST", "/v2.0/routers", {"router": router}, status=400)
    assert ask("POST", "/v2.0/floatingips", {"floatingip": {"floating_network_id": outside["id"]}}, status=400)
    assert bob("GET", path)["network"]["router:external"] is True
    made = bob("POST", "/v2.0/routers", {"router": router})["router"]
    assert admin("DELETE", f"{TOP}/{policy['id']}", status=409)["NeutronError"]["type"] == "RbacPolicyInUse"
    bob("DELETE", f"/v2.0/routers/{made['id']}")
    admin("DELETE", f"{TOP}/{policy['id']}")
    assert admin("GET", path)["network"]["router:external"] is False


def test_a_security_group_of_another_project(ask, service, engine, lan):
    bob = ask.as_(BOB)
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    network, rule = lan(bob), {"direction": "ingress", "remote_group_id": group["id"]}
    own = bob("GET", "/v2.0/security-groups")["security_groups"][0]["id"]
    rules = {"security_group_rule": {"security_group_id": own, **rule}}
    assert _port(bob, network["id"], 404, security_groups=[group["id"]])["type"] == "SecurityGroupNotFound"
    assert bob("POST", "/v2.0/security-group-rules", rules, status=404)
    policy = _share(ask, "security_group", group["id"])
    assert bob("GET", f"/v2.0/security-groups/{group['id']}")["security_group"]["shared"] is True
    port = _port(bob, network["id"], security_groups=[group["id"]])
    made = bob("POST", "/v2.0/security-group-rules", rules)["security_group_rule"]
    service.worker.round()
    assert engine.port(port["id"]).groups == (group["id"],)
    for path in (f"ports/{port['id']}", f"security-group-rules/{made['id']}"):
        assert ask("DELETE", f"{TOP}/{policy['id']}", status=409)["NeutronError"]["type"] == "RbacPolicyInUse"
        bob("DELETE", f"/v2.0/{path}")
    body = {"security_group_rule": {"security_group_id": group["id"], "direction": "ingress"}}
    assert bob("POST", "/v2.0/security-group-rules", body, status=404)  # used, not changed
    ask("DELETE", f"{TOP}/{policy['id']}")
    assert bob("GET", f"/v2.0/security-groups/{group['id']}", status=404)


def test_a_qos_policy_for_one_project(ask, lan):
    admin, network = ask.as_(ADMIN), lan(ask)
    qos = admin("POST", "/v2.0/qos/policies", {"policy": {"name": "paid"}})["policy"]
    policy = _share(admin, "qos_policy", qos["id"], "red")
    port = _port(ask, network["id"], qos_policy_id=qos["id"])
    assert ask("GET", f"/v2.0/qos/policies/{qos['id']}")["policy"]["shared"] is True
    assert admin("DELETE", f"{TOP}/{policy['id']}", status=409)["NeutronError"]["type"] == "RbacPolicyInUse"
    ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"qos_policy_id": None}})
    admin("DELETE", f"/v2.0/qos/policies/{qos['id']}")
    assert admin("GET", TOP)["rbac_policies"] == []


@pytest.mark.parametrize(("change", "status", "words"), [
    ({"object_type": "router"}, 400, "object_type"), ({"action": "access_as_admin"}, 400, "action"),
    ({"target_tenant": ""}, 400, "target_tenant"), ({"object_type": "security_group"}, 404, "could not be found")])
def test_a_policy_that_cannot_be_says_why(ask, lan, change, status, words):
    body = {"object_type": "network", "object_id": lan(ask)["id"], "action": "access_as_shared",
            "target_tenant": "blue", **change}
    assert words in ask("POST", TOP, {"rbac_policy": body}, status=status)["NeutronError"]["message"]
    assert ask("GET", TOP)["rbac_policies"] == []


def test_what_is_anothers_nobody_shares_and_there_is_a_limit(ask, lan):
    network, bob = lan(ask), ask.as_(BOB)
    assert _share(bob, "network", network["id"], "blue", 404)["type"] == "RbacObjectNotFound"
    for number in range(10):
        _share(ask, "network", network["id"], f"p{number}")
    assert _share(ask, "network", network["id"], "p10", 409)["type"] == "OverQuota"
    ask("DELETE", f"/v2.0/networks/{network['id']}")
    assert ask("GET", TOP)["rbac_policies"] == []


@pytest.mark.parametrize("kind", ["networks", "security-groups", "address-groups"])
def test_a_list_has_what_is_shared_with_who_asks(ask, kind):
    plural = kind.replace("-", "_")
    own, one, every = (ask("POST", f"/v2.0/{kind}", {plural[:-1]: {"name": name}})[plural[:-1]]["id"]
                       for name in ("own", "one", "every"))
    for id, project in ((one, "blue"), (every, "*")):
        ask.as_(ADMIN)("POST", "/v2.0/rbac-policies", {"rbac_policy": {
            "object_type": plural[:-1], "object_id": id, "action": "access_as_shared", "target_tenant": project}})
    for who, found in ((ask, {every}), (ask.as_(BOB), {one, every})):
        listed = who("GET", f"/v2.0/{kind}?shared=true")[plural]
        assert ({each["id"] for each in listed}, {each["shared"] for each in listed}) == (found, {True})
        rest = who("GET", f"/v2.0/{kind}?shared=false")[plural]
        assert {each["shared"] for each in rest} <= {False}
        assert {own, one} & {each["id"] for each in rest} == ({own, one} if who is ask else set())
    ask("GET", "/v2.0/routers?shared=true", status=400)
