# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of networks, subnets, ports, security groups and rules: that they bind, and how they are set and shown."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_core.errors import MagnetarError
from tests.support.control.serving import ADMIN, ALICE, BOB, READER, Asker, authenticate, connected, served

OF_RED = "/v2.0/quotas/red"
DEFAULTS = {"network": 100, "subnet": 500, "port": 500, "security_group": 10, "security_group_rule": 100,
            "rbac_policy": 10, "subnetpool": 10, "address_scope": 10}
NOTHING = dict.fromkeys(("router", "floatingip", "address_group", "trunk"), 0)


def limited(ask, **limits):
    return ask.as_(ADMIN)("PUT", OF_RED, {"quota": limits})["quota"]


def lan(ask, name="lan"):
    return ask("POST", "/v2.0/networks", {"network": {"name": name}})["network"]["id"]


def bodies(ask):
    """By resource: its path, and what makes one (of a number) that there is room for."""
    id = lan(ask)
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]["id"]
    nets = [lan(ask, f"lan{number}") for number in range(6)]
    return {
        "network": ("networks", lambda n: {"name": f"n{n}"}),
        "subnet": ("subnets", lambda n: {"network_id": nets[n], "cidr": f"10.9.{n}.0/24", "ip_version": 4}),
        "port": ("ports", lambda _n: {"network_id": id}),
        "security_group": ("security-groups", lambda n: {"name": f"g{n}"}),
        "security_group_rule": ("security-group-rules", lambda n: {
            "security_group_id": group, "direction": "ingress", "protocol": "tcp", "port_range_min": n + 1,
            "port_range_max": n + 1}),
        "subnetpool": ("subnetpools", lambda n: {"name": f"p{n}", "prefixes": [f"10.{n}.0.0/16"]}),
        "address_scope": ("address-scopes", lambda n: {"name": f"s{n}", "ip_version": 4}),
        "rbac_policy": ("rbac-policies", lambda n: {
            "object_type": "network", "object_id": id, "action": "access_as_shared", "target_tenant": f"p{n}"})}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_project_has_no_more_than_its_quota(ask, name):
    (path, body), plural = bodies(ask)[name], f"{name}s".replace("ys", "ies")
    used = ask("GET", f"{OF_RED}/details")["quota"][name]["used"]
    limited(ask, **{name: used + 2})
    for number in range(2):
        ask("POST", f"/v2.0/{path}", {name: body(number)})
    refused = ask("POST", f"/v2.0/{path}", {name: body(3)}, status=409)["NeutronError"]
    assert refused["type"] == "OverQuota"
    assert refused["message"].startswith(f"Quota exceeded for resources: ['{name}'].")
    assert f"{used + 2} of {used + 2}" in refused["message"]
    assert ask("GET", f"{OF_RED}/details.json")["quota"][name] == {
        "limit": used + 2, "used": used + 2, "reserved": 0}
    limited(ask, **{name: used + 3})
    assert ask.ask("POST", f"/v2.0/{path}", {plural: [body(3), body(4)]})[0] == 409  # all or none
    ask("POST", f"/v2.0/{path}", {name: body(3)})
    limited(ask, **{name: -1})
    ask("POST", f"/v2.0/{path}", {name: body(4)})


def test_the_quota_is_that_of_the_project_whose_it_is(ask):
    """Whoever asks: an administrator for it, and the rule of its group."""
    admin = ask.as_(ADMIN)
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]["id"]
    limited(ask, network=0, security_group_rule=0)
    admin("POST", "/v2.0/networks", {"network": {"name": "theirs", "project_id": "red"}}, status=409)
    admin("POST", "/v2.0/networks", {"networks": [{"name": "a"}, {"name": "b", "project_id": "red"}]}, status=409)
    admin("POST", "/v2.0/networks", {"network": {"name": "own"}})
    ask.as_(BOB)("POST", "/v2.0/networks", {"network": {"name": "own"}})
    rule = {"security_group_id": group, "direction": "ingress", "protocol": "tcp"}
    assert "security_group_rule" in admin("POST", "/v2.0/security-group-rules", {
        "security_group_rule": rule}, status=409)["NeutronError"]["message"]


def test_the_default_group_comes_whatever_the_quota(ask):
    limited(ask, security_group=0, security_group_rule=0)
    (default,) = ask("GET", "/v2.0/security-groups")["security_groups"]
    assert default["name"] == "default" and len(default["security_group_rules"]) == 4
    limited(ask, security_group=-1, security_group_rule=5)
    words = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}}, status=409)["NeutronError"]
    assert "['security_group_rule']" in words["message"]  # it would come with two


def test_limits_are_set_and_shown(ask):
    admin = ask.as_(ADMIN)
    assert ask("GET", OF_RED)["quota"] == ask("GET", f"{OF_RED}/default")["quota"] == {**DEFAULTS, **NOTHING}
    assert admin("GET", "/v2.0/quotas") == {"quotas": []}
    assert limited(ask, network="5", router=0) == {**DEFAULTS, **NOTHING, "network": 5}
    assert ask("GET", OF_RED)["quota"]["network"] == 5
    assert admin("GET", "/v2.0/quotas")["quotas"] == [
        {**DEFAULTS, **NOTHING, "network": 5, "project_id": "red", "tenant_id": "red"}]
    admin("PUT", "/v2.0/quotas/default", {"quota": {"port": 7}})
    assert ask("GET", f"{OF_RED}/default")["quota"]["port"] == ask("GET", OF_RED)["quota"]["port"] == 7
    admin("DELETE", OF_RED, status=204)
    assert ask("GET", OF_RED)["quota"]["network"] == 100
    assert admin("GET", "/v2.0/quotas") == {"quotas": []}


def test_what_cannot_be_set_is_refused_by_name(ask):
    admin = ask.as_(ADMIN)
    for wrong in ({"quota": {"port": -2}}, {"quota": {"port": 2**31}}, {"quota": {"moons": 1}},
                  {"quota": {"router": 5}}, {"quota": []}, {}, []):
        refused = admin("PUT", OF_RED, wrong, status=400)["NeutronError"]["message"]
        assert next(iter(wrong["quota"]) if isinstance(wrong, dict) and wrong.get("quota") else iter(["quota"])
                    ) in refused
    lan(ask)
    words = admin("PUT", OF_RED, {"quota": {"network": 0, "check_limit": True}}, status=400)["NeutronError"]["message"]
    assert words.startswith("Quota limit 0 for network must be greater than or equal to already used 1")
    admin("PUT", OF_RED, {"quota": {"network": 0, "check_limit": True, "force": True}})


def test_who_may(ask):
    for who in (ask, ask.as_(READER)):
        for path in (OF_RED, f"{OF_RED}/default", f"{OF_RED}/details"):
            who("GET", path)
        who("PUT", OF_RED, {"quota": {"port": -1}}, status=403)
        who("DELETE", OF_RED, status=403)
        who("GET", "/v2.0/quotas", status=403)
        for path in ("/v2.0/quotas/blue", "/v2.0/quotas/blue/default", "/v2.0/quotas/blue/details"):
            who("GET", path, status=403)


def test_limits_of_the_settings(sqlite):
    service = EmbeddedNetworks(sqlite, limits={"network": 1})
    ask = Asker(network_application(service, authenticate))
    lan(ask)
    ask("POST", "/v2.0/networks", {"network": {}}, status=409)


@pytest.mark.parametrize("name", ["network", "port"])
def test_many_at_once_do_not_exceed_a_quota(ask, service, name):
    id, ready = lan(ask), Barrier(8)
    limited(ask, **{name: 4})
    wanted = {"network_id": id} if name == "port" else {}

    def more(_number):
        ready.wait(120)
        try:
            service.resources[f"{name}s"].create(ALICE, dict(wanted))
        except MagnetarError as error:
            assert error.details["type"] == "OverQuota"
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(more, range(8))) == (3 if name == "network" else 4)


def test_ports_of_servers_count(ask, service):
    net = lan(ask)
    ask("POST", "/v2.0/subnets", {"subnet": {"network_id": net, "cidr": "10.9.0.0/24", "ip_version": 4}})
    wishes = service.check_requested(ALICE, [{"uuid": net}])
    one, two = ("6f8b1c8e-52c1-4b0f-8f68-4bbd8b4a8a1" + end for end in "12")
    assert service.room(ALICE, "port") == 500
    limited(ask, port=1)
    made = service.allocate(ALICE, one, wishes)
    assert service.room(ALICE, "port") == 0
    with pytest.raises(MagnetarError, match="^Maximum number of ports exceeded") as refused:
        service.allocate(ALICE, two, wishes)
    assert refused.value.status == 403
    assert service.allocate(ALICE, one, wishes) == made  # asked again
    free = ask.as_(ADMIN)("POST", "/v2.0/ports", {"port": {"network_id": net}})["port"]["id"]
    service.allocate(ALICE, two, service.check_requested(ADMIN, [{"port": free}]))  # no more than there is
    limited(ask, port=-1)
    assert service.room(ALICE, "port") is None


def test_the_real_client(service):
    with (
        served(network=network_application(service, authenticate)) as url,
        connected(url, "admin", network_endpoint_override=f"{url}/network") as cloud,
    ):
        network = cloud.network
        assert network.update_quota("red", networks=5, check_limit=True).networks == 5
        assert [one.project_id for one in network.quotas()] == ["red"]
        assert network.get_quota("red", details=True).networks == {"limit": 5, "used": 0, "reserved": 0}
        network.delete_quota("red")
        assert network.get_quota("red").networks == network.get_quota_default("red").networks == 100
