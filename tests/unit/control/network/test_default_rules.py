# SPDX-License-Identifier: GPL-3.0-or-later
"""Default security group rules: what new groups begin with."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from magnetar_control.services.network import tables
from magnetar_control.services.network.security import default_rules
from magnetar_core.errors import Conflict
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, BOB, READER

TOP = "/v2.0/default-security-group-rules"
GROUPS = "/v2.0/security-groups"
SSH = {"direction": "ingress", "protocol": "tcp", "port_range_min": 22, "port_range_max": 22}


def _make(ask, status=None, **fields):
    answer = ask.as_(ADMIN)("POST", TOP, {"default_security_group_rule": fields}, status)
    return answer.get("default_security_group_rule") or answer["NeutronError"]


def _group(ask, name="web"):
    return ask("POST", GROUPS, {"security_group": {"name": name}})["security_group"]


def _default(ask):
    return ask("GET", f"{GROUPS}?name=default")["security_groups"][0]


def _said(group):
    return sorted((one["direction"], one["ethertype"], one["protocol"] or "any",
                   "itself" if one["remote_group_id"] == group["id"] else one["remote_group_id"] or "")
                  for one in group["security_group_rules"])


def test_a_cloud_begins_with_those_of_neutron(ask, service):
    found = ask.as_(READER)("GET", TOP)["default_security_group_rules"]
    assert sorted((one["direction"], one["ethertype"], one["remote_group_id"], one["used_in_default_sg"],
                   one["used_in_non_default_sg"]) for one in found) == [
        ("egress", "IPv4", None, True, True), ("egress", "IPv6", None, True, True),
        ("ingress", "IPv4", "PARENT", True, False), ("ingress", "IPv6", "PARENT", True, False)]
    assert {one["description"] for one in found} == {
        f"Legacy default SG rule for {direction} traffic" for direction in ("egress", "ingress")}
    out = [("egress", "IPv4", "any", ""), ("egress", "IPv6", "any", "")]
    assert _said(_group(ask)) == out
    assert _said(_default(ask)) == [*out, ("ingress", "IPv4", "any", "itself"), ("ingress", "IPv6", "any", "itself")]
    ask.as_(ADMIN)("DELETE", f"{TOP}/{found[0]['id']}")
    service.bootstrap()  # what was taken away does not come back
    assert len(ask("GET", TOP)["default_security_group_rules"]) == 3
    ask("GET", f"{TOP}/{found[0]['id']}", status=404)


def test_new_groups_have_them_and_others_stay(ask):
    before, mine = _group(ask), _default(ask)
    ssh = _make(ask, **SSH, description="from everywhere")
    assert (ssh["used_in_default_sg"], ssh["used_in_non_default_sg"], ssh["ethertype"]) == (False, True, "IPv4")
    assert "project_id" not in ssh
    _make(ask, direction="ingress", protocol="icmp", remote_group_id="PARENT", used_in_default_sg=True,
          used_in_non_default_sg=False)
    group, theirs = _group(ask, "web2"), _default(ask.as_(BOB))
    (rule,) = [one for one in group["security_group_rules"] if one["direction"] == "ingress"]
    assert (rule["port_range_min"], rule["description"], rule["project_id"]) == (22, "from everywhere", "red")
    assert ("ingress", "IPv4", "icmp", "itself") in _said(theirs) and len(_said(theirs)) == 5
    assert ask("GET", f"{GROUPS}/{before['id']}")["security_group"] == before
    assert _default(ask) == mine
    ask.as_(ADMIN)("DELETE", f"{TOP}/{ssh['id']}")
    assert len(_group(ask, "web3")["security_group_rules"]) == 2
    assert [one["id"] for one in ask("GET", f"{GROUPS}/{group['id']}")["security_group"]["security_group_rules"]] == [
        one["id"] for one in group["security_group_rules"]]


def test_groups_without_any(ask):
    for one in ask("GET", TOP)["default_security_group_rules"]:
        ask.as_(ADMIN)("DELETE", f"{TOP}/{one['id']}")
    assert _group(ask)["security_group_rules"] == _default(ask)["security_group_rules"] == []


def test_filters(ask):
    _make(ask, **SSH)
    for query, number in (("used_in_default_sg=True", 4), ("used_in_non_default_sg=true", 3), ("protocol=tcp", 1),
                          ("direction=egress&sort_key=ethertype", 2), ("remote_group_id=PARENT", 2)):
        assert len(ask("GET", f"{TOP}?{query}")["default_security_group_rules"]) == number, query
    ask("GET", f"{TOP}?project_id=red", status=400)


def test_the_same_twice(ask):
    both = _make(ask, **SSH, used_in_default_sg=True)
    for uses in ({"used_in_default_sg": False}, {"used_in_default_sg": True, "used_in_non_default_sg": False}):
        for prefix in ({}, {"remote_ip_prefix": "0.0.0.0/0"}):
            found = _make(ask, 409, **SSH, **uses, **prefix)
            assert (found["type"], both["id"] in found["message"]) == ("DefaultSecurityGroupRuleExists", True)
    _make(ask, **SSH, remote_ip_prefix="192.0.2.0/24")
    ask.as_(ADMIN)("DELETE", f"{TOP}/{both['id']}")
    _make(ask, **SSH, used_in_default_sg=True, used_in_non_default_sg=False)
    _make(ask, **SSH)  # of other groups
    many = {"default_security_group_rules": [{**SSH, "protocol": "udp"}, {**SSH, "protocol": "udp"}]}
    ask.as_(ADMIN)("POST", TOP, many, status=409)
    assert not ask("GET", f"{TOP}?protocol=udp")["default_security_group_rules"]


@pytest.mark.parametrize(("fields", "words"), [
    ({"port_range_max": 70000}, "port_range_max"), ({"direction": "up"}, "direction"),
    ({"protocol": "nope"}, "protocol"), ({"remote_ip_prefix": "2001:db8::/64"}, "ethertype"),
    ({"remote_group_id": "parent"}, "remote_group_id"),
    ({"remote_group_id": "PARENT", "remote_ip_prefix": "192.0.2.0/24"}, "Only one"),
    ({"remote_group_id": str(uuid.UUID(int=7))}, "or PARENT, the new group itself"),
    ({"remote_address_group_id": str(uuid.UUID(int=7))}, "ovn_northbound"), ({"project_id": "red"}, "project_id")])
def test_what_no_group_could_have(ask, fields, words):
    assert words in _make(ask, 400, **{**SSH, **fields})["message"]
    assert len(ask("GET", TOP)["default_security_group_rules"]) == 4


@pytest.mark.parametrize("context", [ALICE, READER])
def test_they_are_administrators_to_change(ask, context):
    refused = ask.as_(context)("POST", TOP, {"default_security_group_rule": SSH}, status=403)["NeutronError"]
    assert refused["type"] == "PolicyNotAuthorized"
    (one, *_) = ask("GET", TOP)["default_security_group_rules"]
    ask.as_(context)("DELETE", f"{TOP}/{one['id']}", status=403)


def test_one_names_a_group_that_all_have(ask):
    admin = ask.as_(ADMIN)
    office = _group(admin, "office")
    assert "shared with all projects" in _make(ask, 400, **SSH, remote_group_id=office["id"])["message"]
    policy = admin("POST", "/v2.0/rbac-policies", {"rbac_policy": {
        "object_type": "security_group", "object_id": office["id"], "action": "access_as_shared",
        "target_tenant": "*"}})["rbac_policy"]
    ssh = _make(ask, **SSH, remote_group_id=office["id"])
    web = _group(ask)
    assert ("ingress", "IPv4", "tcp", office["id"]) in _said(web)
    refused = admin("DELETE", f"{GROUPS}/{office['id']}", status=409)["NeutronError"]
    assert ssh["id"] in refused["message"]
    ask("DELETE", f"{GROUPS}/{web['id']}")
    admin("DELETE", f"/v2.0/rbac-policies/{policy['id']}", status=409)  # the next new group will name it
    admin("DELETE", f"{TOP}/{ssh['id']}")
    admin("DELETE", f"/v2.0/rbac-policies/{policy['id']}")
    admin("DELETE", f"{GROUPS}/{office['id']}")


@pytest.mark.parametrize("database_kind", ["postgres"])
def test_no_rule_comes_to_name_a_group_that_goes(ask, postgres, monkeypatch):
    def locked(_connection, id):
        query = select(tables.security_groups.c.id).where(tables.security_groups.c.id == id)
        with pytest.raises(OperationalError, match="lock"), postgres.write() as other:
            other.execute(query.with_for_update(nowait=True))
        raise Conflict("It is locked.")

    group = _group(ask)
    monkeypatch.setattr(default_rules, "check_unnamed", locked)
    assert "It is locked" in ask("DELETE", f"{GROUPS}/{group['id']}", status=409)["NeutronError"]["message"]


def test_they_count_for_the_quota(ask):
    quota = "/v2.0/quotas/red"
    used = len(_default(ask)["security_group_rules"])
    ask.as_(ADMIN)("PUT", quota, {"quota": {"security_group_rule": used + 2}})
    _make(ask, **SSH)
    refused = ask("POST", GROUPS, {"security_group": {"name": "web"}}, status=409)["NeutronError"]
    assert (refused["type"], "3 more" in refused["message"]) == ("OverQuota", True)
    ask.as_(ADMIN)("PUT", quota, {"quota": {"security_group_rule": used + 3}})
    assert len(_group(ask)["security_group_rules"]) == 3


def test_a_new_group_asks_for_them_once(ask, service):
    _default(ask)
    with counted(api=service.database) as few:
        _group(ask)
    for port in range(1, 11):
        _make(ask, **{**SSH, "port_range_min": port, "port_range_max": port})
    with counted(api=service.database) as many:
        _group(ask, "web2")
    assert len(few) == len(many)
    assert sum("FROM default_security_group_rules" in statement for _name, statement in many) == 1
