# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cloud has beside networks, by ``/v1`` and modules, over OVN's northbound database."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control.cloud import Caller, Cloud
from tests.support.control.modules import examples
from tests.support.control.servers import ensure
from tests.support.northbound import LabCentral, external, missing

from .play import ROOT, play, prepared, thrice

pytestmark = pytest.mark.slow
NOUNS = ("subnet", "security_group", "port", "router", "floating_ip", "address_group", "qos_policy", "rbac_policy",
         "trunk", "address_scope", "subnet_pool", "default_security_group_rule")
#: Drawn when it is made, so that no prediction knows it.
DRAWN = {"id", "created_at", "updated_at", "fixed_ips", "mac_address", "external_addresses", "floating_ip_address",
         "rules", "active", "managed"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if missing():
        pytest.skip(missing())
    central = LabCentral(tmp_path_factory.mktemp("ovn")).start()
    try:
        with Cloud(hosts=1, ovn_northbound=central.url, ovn_hosts_wait=0.0) as made:
            external(made.admin)
            ensure(made.admin, "flavor/small", {"vcpus": 1, "ram": 64, "disk": 1})
            yield made
    finally:
        central.stop()


@pytest.fixture(scope="module")
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("play"), cloud, "mycloud")


@pytest.fixture(scope="module")
def ann(cloud: Cloud) -> Caller:
    """Has the network lan with the subnet lan4, and the router edge that leads out."""
    caller = cloud.caller("ann", "shop")
    ensured(caller, "network/lan", {"mode": "ovn"})
    ensured(caller, "subnet/lan4", {"network": "lan", "cidr": "10.1.0.0/24"})
    ensured(caller, "router/edge", {"external_network": "ext", "interfaces": ["lan4"]})
    return caller


def ensured(caller: Caller, path: str, want: dict[str, Any]) -> dict[str, Any]:
    """Check mode, then in truth, then once more, which changes nothing; what there is then."""
    dry = ensure(caller, path, want, dry_run=True)
    real = ensure(caller, path, want)
    assert (dry.status, real.status) == (200, 200), (dry, real)
    assert (dry.json["changed"], dry.json["diff"]) == (real.json["changed"], real.json["diff"])
    found, told = real.json["resource"], dry.json["resource"]
    assert {name: value for name, value in told.items() if name not in DRAWN} == {
        name: value for name, value in found.items() if name not in DRAWN}
    again = ensure(caller, path, want)
    assert not again.json["changed"], again
    resource: dict[str, Any] = found
    return resource


def refused(caller: Caller, path: str, want: dict[str, Any], *words: str, status: int = 400) -> None:
    """In check mode and in truth, with the same words; nothing is there afterwards that was not."""
    before = caller.get(f"/v1/{path}")
    for dry_run in (True, False):
        reply = ensure(caller, path, want, dry_run=dry_run)
        assert reply.status == status, reply
        assert all(word in reply.json["error"]["message"] for word in words), reply
    after = caller.get(f"/v1/{path}")
    assert (after.status, after.json if after.status == 200 else 0) == (
        before.status, before.json if before.status == 200 else 0)


#: The id of a project as Keystone draws it.
PROJECT = "0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a"


def test_a_server_behind_a_router(cloud: Cloud, ann: Caller) -> None:
    subnet = ensured(ann, "subnet/lan5", {"network": "lan", "cidr": "10.2.0.3/24", "gateway_ip": "none",
                                          "dns_nameservers": ["192.0.2.53"]})
    assert (subnet["cidr"], subnet["gateway_ip"]) == ("10.2.0.0/24", None)
    assert ensured(ann, "subnet/lan5", {"gateway_ip": "10.2.0.254", "allocation_pools": [
        {"start": "10.2.0.10", "end": "10.2.0.20"}]})["gateway_ip"] == "10.2.0.254"
    port = ensured(ann, "port/p1", {"network": "lan", "fixed_ips": [{"subnet": "lan4"}]})
    assert port["fixed_ips"][0]["ip_address"].startswith("10.1.0.")
    port = ensured(ann, "port/p1", {"fixed_ips": [{"ip_address": "10.1.0.77"}, {"subnet": "lan5"}],
                                    "allowed_address_pairs": [{"ip_address": "10.1.0.250"}]})
    assert ensured(ann, "port/p1", {"fixed_ips": [{"ip_address": "10.1.0.77"}]})["fixed_ips"] == port["fixed_ips"][:1]
    floating = ensured(ann, "floating_ip/web", {"network": "ext", "port": "p1"})
    assert (floating["status"], floating["fixed_ip_address"], floating["server"]) == ("ACTIVE", "10.1.0.77", None)
    server = ann.boot("web1", imageRef=ann.image(), flavorRef=cloud.admin.get("/v1/flavor/small").json["id"],
                      networks=[{"port": port["id"]}])
    assert ann.get("/v1/floating_ip/web").json["server"] == server["id"]
    assert ensured(ann, "floating_ip/web", {"port": "none"})["status"] == "DOWN"
    assert ensured(ann, "floating_ip/web", {"server": "web1"})["port"] == port["id"]
    assert ensured(ann, "floating_ip/web", {"server": "none"})["port"] is None
    route = {"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}
    assert ensured(ann, "router/edge", {"routes": [route]})["routes"] == [route]
    ensured(ann, "router/edge", {"interfaces": ["lan5"], "routes": []})
    ensured(ann, "router/edge", {"interfaces": ["lan4", "lan5"], "routes": [route]})
    ensured(ann, "router/edge", {"interfaces": ["lan4"], "routes": []})
    assert ann.delete("/v1/floating_ip/web").json["changed"]
    assert not ann.delete("/v1/floating_ip/web").json["changed"]
    (listed,) = ann.get("/v1/port?name=p1").json["ports"]
    assert listed["device_id"] == server["id"]
    assert cloud.services.network.worker  # type: ignore[attr-defined]
    cloud.services.network.worker.round()  # type: ignore[attr-defined]
    assert cloud.services.network.differences() == []


def test_the_rules_of_a_group_are_one_list(ann: Caller) -> None:
    group = ensured(ann, "security_group/plain", {})
    assert [one["direction"] for one in group["rules"]] == ["egress", "egress"]
    group = ensured(ann, "security_group/web", {"rules": [
        {"protocol": "tcp", "port_range_min": 80}, {"remote_group": "web"},
        {"protocol": "TCP", "port_range_min": 80, "port_range_max": 80, "direction": "ingress"}]})
    assert {one["remote_group"] for one in group["rules"]} == {None, group["id"]}
    assert len(group["rules"]) == 2
    ids = {one["id"]: one["port_range_min"] for one in ann.get(
        f"/network/v2.0/security-group-rules?security_group_id={group['id']}").json["security_group_rules"]}
    ensured(ann, "security_group/web", {"rules": [{"protocol": "tcp", "port_range_min": 80},
                                                  {"protocol": "icmp", "port_range_min": 8}]})
    kept = ann.get(f"/network/v2.0/security-group-rules?security_group_id={group['id']}").json["security_group_rules"]
    assert {one["id"] for one in kept} & set(ids) == {id for id, port in ids.items() if port == 80}
    office = ensured(ann, "address_group/office", {"addresses": ["192.0.2.7/24", "198.51.100.1"]})
    assert office["addresses"] == ["192.0.2.0/24", "198.51.100.1/32"]
    named = ensured(ann, "security_group/web", {"rules": [{"protocol": "tcp", "remote_address_group": "office"}]})
    assert [one["remote_address_group"] for one in named["rules"]] == [office["id"]]
    assert ensured(ann, "address_group/office", {"addresses": []})["addresses"] == []
    assert ensured(ann, "address_group/office", {"description": "x"})["addresses"] == []
    assert ann.delete("/v1/address_group/office").status == 409  # a rule names it
    assert ensured(ann, "security_group/web", {"description": "x"})["description"] == "x"
    assert ensured(ann, "security_group/web", {"rules": []})["rules"] == []


def test_subnets_of_pools(cloud: Cloud, ann: Caller) -> None:
    lab = ensured(ann, "address_scope/lab", {})
    assert (lab["ip_version"], lab["shared"]) == (4, False)
    pool = ensured(ann, "subnet_pool/lab", {
        "prefixes": ["10.20.0.0/17", "10.20.128.9/17"], "default_prefixlen": 26, "address_scope": "lab"})
    assert pool["prefixes"] == ["10.20.0.0/16"] and pool["address_scope"] == lab["id"]
    assert (pool["min_prefixlen"], pool["max_prefixlen"], pool["ip_version"]) == (8, 32, 4)
    wish = {"prefixes": ["10.20.0.0/15"], "address_scope": "lab", "default_quota": 1024}
    more = ensured(ann, "subnet_pool/lab", wish)
    assert (more["default_prefixlen"], more["default_quota"]) == (26, 1024)
    refused(ann, "subnet_pool/lab", {**wish, "prefixes": ["10.20.0.0/16"]}, "would go")
    refused(ann, "subnet_pool/other", {"prefixes": ["10.20.9.0/24"], "address_scope": "lab"}, "unique", status=409)
    ensured(ann, "network/cut", {"mode": "ovn"})
    refused(ann, "subnet/cut4", {"network": "cut"}, "cidr", "subnet_pool")
    cut = ensured(ann, "subnet/cut4", {"network": "cut", "subnet_pool": "lab"})
    assert (cut["cidr"], cut["subnet_pool"], cut["prefix_length"]) == ("10.20.0.0/26", pool["id"], 26)
    other = ensured(ann, "subnet/cut5", {"network": "cut", "subnet_pool": "lab", "prefix_length": 28})
    assert other["cidr"] == "10.20.0.64/28"
    ensured(ann, "subnet/cut6", {"network": "cut", "subnet_pool": "lab", "cidr": "10.21.0.0/24"})
    assert ann.delete("/v1/subnet_pool/lab").status == 400  # subnets are of it
    refused(ann, "rbac_policy/subnetpool:access_as_shared:kiosk:lab", {}, "target_project", "only administrators")
    kiosk = uuid.uuid4().hex
    keys = [f"rbac_policy/{kind}:access_as_shared:{kiosk}:lab" for kind in ("address_scope", "subnetpool")]
    for key in keys:
        ensured(ann, key, {})
    for key in reversed(keys):
        assert ann.delete(f"/v1/{key}").status == 200
    refused(ann, "address_scope/everybodys", {"shared": True}, "only admins", status=403)


def test_default_rules_are_known_by_what_they_say(cloud: Cloud, ann: Caller) -> None:
    admin, ssh = cloud.admin, "default_security_group_rule/other,ingress,IPv4,TCP,22,,192.0.2.9%2F24"
    made = ensured(admin, ssh, {"description": "from the office"})
    assert made["name"] == "other,ingress,IPv4,tcp,22,22,192.0.2.0/24"
    assert (made["port_range_max"], made["used_in_default_sg"], made["used_in_non_default_sg"]) == (22, False, True)
    refused(admin, ssh, {"description": "from home"}, "description", status=409)
    begun = ensured(ann, "security_group/begun", {})
    assert [one["description"] for one in begun["rules"] if one["direction"] == "ingress"] == ["from the office"]
    refused(ann, "default_security_group_rule/other,egress,IPv4,udp,,,", {}, "only admins", status=403)
    key = f"/v1/default_security_group_rule/{made['id']}"
    assert ann.delete(f"{key}?dry_run=true").status == ann.delete(key).status == 403
    assert ann.get(key).json["description"] == "from the office"
    ensured(admin, "default_security_group_rule/default+other,ingress,IPv6,ipv6-icmp,,,group=PARENT", {})
    both = "default_security_group_rule/{},ingress,IPv4,udp,7,9,0.0.0.0%2F0"
    ensured(admin, both.format("default"), {})
    ensured(admin, both.format("default").replace("0.0.0.0%2F0", ""), {})  # is the same
    refused(admin, both.format("default+other"), {}, "already exists", status=409)
    refused(admin, "default_security_group_rule/ssh", {}, "must be USES,DIRECTION")
    refused(admin, both.format("some"), {}, "must be USES,DIRECTION")
    refused(admin, both.format("other").replace("9,", "x,"), {}, "port_range_max")
    ensured(admin, "security_group/office", {})
    named = "default_security_group_rule/other,ingress,IPv4,tcp,80,,group=office"
    assert "remote_group" in ensure(admin, named, {}).json["error"]["message"]  # a dry run assumes that it is shared
    shared = ensured(admin, "rbac_policy/security_group:access_as_shared:*:office", {})
    ensured(admin, named, {})
    names = [one["name"] for one in ann.get("/v1/default_security_group_rule").json["default_security_group_rules"]]
    for name in names[4:]:
        assert admin.delete("/v1/default_security_group_rule/" + name.replace("/", "%2F")).json["changed"], name
    assert len(ann.get("/v1/default_security_group_rule").json["default_security_group_rules"]) == 4
    for path in (f"rbac_policy/{shared['id']}", "security_group/office"):
        assert admin.delete(f"/v1/{path}").status == 200
    assert ann.delete("/v1/security_group/begun").status == 200


def test_the_rules_of_a_qos_policy_are_one_list(cloud: Cloud, ann: Caller) -> None:
    admin = cloud.admin
    limit, mark = {"type": "bandwidth_limit", "max_kbps": 1000}, {"type": "dscp_marking", "dscp_mark": 26}
    slow = ensured(admin, "qos_policy/slow", {"rules": [limit, mark]})
    assert [(one["type"], one["direction"], one["max_kbps"], one["dscp_mark"]) for one in slow["rules"]] == [
        ("bandwidth_limit", "egress", 1000, None), ("dscp_marking", None, None, 26)]
    (kept, _) = admin.get(f"/network/v2.0/qos/policies/{slow['id']}").json["policy"]["rules"]
    slow = ensured(admin, "qos_policy/slow", {"shared": True, "rules": [
        {**limit, "max_kbps": 2000}, {**limit, "direction": "ingress", "max_burst_kbps": 10}]})
    rules = admin.get(f"/network/v2.0/qos/policies/{slow['id']}").json["policy"]["rules"]
    assert {one["id"]: one["max_kbps"] for one in rules}[kept["id"]] == 2000 and len(rules) == 2
    refused(admin, "qos_policy/slow", {"rules": [limit, limit]}, "rules[1]", "one of each")
    refused(admin, "qos_policy/slow", {"rules": [{**limit, "dscp_mark": 8}]}, "rules[0].dscp_mark")
    refused(admin, "qos_policy/slow", {"rules": [{"type": "dscp_marking", "dscp_mark": 1}]}, "dscp_mark", "must be one")
    refused(ann, "qos_policy/mine", {}, "only admins", status=403)
    both = [{**limit, "max_kbps": 4000}, {"type": "minimum_bandwidth", "min_kbps": 3000}]
    paid = ensured(admin, "qos_policy/paid", {"rules": both})
    assert [(one["direction"], one["min_kbps"]) for one in paid["rules"]] == [("egress", None), ("egress", 3000)]
    assert not ensure(admin, "qos_policy/paid", {"rules": both}).json["changed"]
    ensured(admin, "qos_policy/paid", {"rules": [limit, {**both[1], "min_kbps": 500}]})
    refused(admin, "qos_policy/paid", {"rules": [limit, {**both[1], "min_kbps": 1001}]}, "max_kbps 1000", status=409)

    assert ann.get("/v1/qos_policy/slow").json["rules"] == slow["rules"]  # it is shared
    assert ensured(ann, "network/lan", {"qos_policy": "slow"})["qos_policy"] == slow["id"]
    assert not ensure(ann, "network/lan", {"mode": "ovn"}).json["changed"]
    assert ensured(ann, "network/lan", {"qos_policy": "none"})["qos_policy"] is None
    assert ensured(ann, "port/limited", {"network": "lan", "qos_policy": "slow"})["qos_policy"] == slow["id"]
    refused(admin, "qos_policy/slow", {"shared": False}, "using it", status=409)
    assert admin.delete("/v1/qos_policy/slow").status == 409
    assert ensured(ann, "port/limited", {"qos_policy": "none"})["qos_policy"] is None
    refused(admin, "network/alone", {"cidr": "10.200.0.0/24", "qos_policy": "slow"}, "qos_policy_id", "type nat")
    assert ann.delete("/v1/port/limited").json["changed"] and admin.delete("/v1/qos_policy/slow").json["changed"]


def test_the_forwardings_of_a_floating_ip_are_one_list(cloud: Cloud, ann: Caller) -> None:
    inner = ensured(ann, "port/inner", {"network": "lan", "fixed_ips": [{"subnet": "lan4"}]})
    address = inner["fixed_ips"][0]["ip_address"]
    ssh, web = {"external_port": 2222, "internal_port": 22, "port": "inner"}, {"external_port": 80, "port": "inner"}
    found = ensured(ann, "floating_ip/many", {"network": "ext", "port_forwardings": [ssh, web]})
    assert found["port_forwardings"] == [
        {"protocol": "tcp", "external_port": 80, "internal_port": 80, "port": inner["id"],
         "fixed_ip_address": address, "description": ""},
        {"protocol": "tcp", "external_port": 2222, "internal_port": 22, "port": inner["id"],
         "fixed_ip_address": address, "description": ""}]
    kept = {one["external_port"]: one["id"] for one in ann.get(
        f"/network/v2.0/floatingips/{found['id']}").json["floatingip"]["port_forwardings"]}
    ensured(ann, "floating_ip/many", {"description": "x"})
    ensured(ann, "floating_ip/many", {"port_forwardings": [ssh, {**web, "protocol": "udp"}]})
    now = ann.get(f"/network/v2.0/floatingips/{found['id']}/port_forwardings").json["port_forwardings"]
    assert {one["protocol"]: one["id"] == kept.get(one["external_port"]) for one in now} == {"tcp": True, "udp": False}
    # Inner ports change places.
    ensured(ann, "floating_ip/many", {"port_forwardings": [ssh, {"external_port": 23, "port": "inner"}]})
    ensured(ann, "floating_ip/many", {"port_forwardings": [
        {**ssh, "internal_port": 23}, {"external_port": 23, "internal_port": 22, "port": "inner"}]})
    server = ann.boot("web2", imageRef=ann.image(), flavorRef=cloud.admin.get("/v1/flavor/small").json["id"],
                      networks=[{"port": inner["id"]}])
    by_server = ensured(ann, "floating_ip/many", {"port_forwardings": [{"external_port": 22, "server": "web2"}]})
    assert [one["port"] for one in by_server["port_forwardings"]] == [inner["id"]]
    refused(ann, "floating_ip/many", {"port_forwardings": [{"external_port": 22}]}, "port_forwardings[0]",
            "server or port")
    refused(ann, "floating_ip/many", {"port_forwardings": [ssh, {**ssh, "external_port": 23}]}, "duplicate")
    refused(ann, "floating_ip/many", {"port": "inner"}, "port forwardings", status=409)
    whole = ensured(ann, "floating_ip/many", {"port": "inner", "port_forwardings": []})
    assert (whole["port"], whole["port_forwardings"]) == (inner["id"], [])
    refused(ann, "floating_ip/many", {"port_forwardings": [ssh]}, "Disassociate", status=409)
    ensured(ann, "floating_ip/many", {"port": "none", "port_forwardings": [ssh]})
    cloud.services.network.worker.round()  # type: ignore[attr-defined]
    assert cloud.services.network.differences() == []
    assert ann.delete("/v1/floating_ip/many").json["changed"]
    assert ann.call("DELETE", f"/v2.1/servers/{server['id']}").status == 204


def test_the_subports_of_a_trunk_are_one_list(cloud: Cloud, ann: Caller) -> None:
    ports = {name: ensured(ann, f"port/{name}", {"network": "lan"})["id"] for name in ("up", "v1", "v2")}
    one, two = ({"port": f"v{at}", "segmentation_id": 100 + at} for at in (1, 2))
    trunk = ensured(ann, "trunk/t", {"port": "up", "subports": [two, one], "admin_state_up": False})
    assert (trunk["port"], trunk["status"], trunk["subports"]) == (ports["up"], "DOWN", [
        {"port": ports[f"v{at}"], "segmentation_id": 100 + at} for at in (1, 2)])
    refused(ann, "trunk/t", {"subports": []}, "disabled", status=409)
    ensured(ann, "trunk/t", {"admin_state_up": True, "subports": [{**one, "segmentation_id": 102},
                                                                  {**two, "segmentation_id": 101}]})
    assert ensured(ann, "trunk/t", {"description": "x"})["subports"][0]["port"] == ports["v2"]
    refused(ann, "trunk/t", {"subports": [one, {**two, "segmentation_id": 101}]}, "101 already in use", status=409)
    refused(ann, "trunk/t", {"subports": [one, {**one, "segmentation_id": 5}]}, "given twice")
    refused(ann, "trunk/t", {"subports": [{"port": "v1", "segmentation_id": 4095}]}, "subports[0].segmentation_id")
    unknown = ensure(ann, "trunk/t", {"subports": [{"port": "v9", "segmentation_id": 5}]})
    assert unknown.status == 400 and unknown.json["error"]["details"]["field"] == "subports[0].port"
    refused(ann, "trunk/x", {"port": "v1"}, "not eligible", status=409)
    assert ann.delete("/v1/port/up").status == 409 and ann.delete("/v1/port/v1").status == 409
    assert ensured(ann, "trunk/t", {"subports": []})["subports"] == []
    ensured(ann, "trunk/t", {"subports": [one], "admin_state_up": False})  # what it is to have before it is locked
    ensured(ann, "trunk/t", {"subports": [], "admin_state_up": True})
    cloud.services.network.worker.round()  # type: ignore[attr-defined]
    assert cloud.services.network.differences() == []
    assert ann.delete("/v1/trunk/t").json["changed"]
    assert all(ann.delete(f"/v1/port/{name}").json["changed"] for name in ports)


def test_a_port_has_a_name(cloud: Cloud, ann: Caller) -> None:
    assert ensured(ann, "network/named", {"mode": "ovn", "domain": "Lab.example"})["domain"] == "lab.example"
    ensured(ann, "subnet/named4", {"network": "named", "cidr": "10.11.0.0/24"})
    port = ensured(ann, "port/db", {"network": "named", "dns_name": "DB"})
    assert port["dns_name"] == "db"
    refused(ann, "network/x", {"cidr": "10.200.0.0/24", "domain": "lab.example"}, "domain", "mode ovn")
    refused(ann, "network/x", {"mode": "ovn", "domain": "no such"}, "dns_domain")
    refused(ann, "port/x", {"network": "named", "dns_name": "-"}, "dns_name")
    flavor = cloud.admin.get("/v1/flavor/small").json["id"]
    body = {"server": {"name": "web", "flavorRef": flavor, "imageRef": ann.image(), "networks": [{"port": port["id"]}]}}
    wrong = ann.post("/v2.1/servers", body)
    assert (wrong.status, "dns_name" in wrong.json["badRequest"]["message"]) == (400, True)
    server = ann.boot("db", imageRef=ann.image(), flavorRef=flavor, networks=[{"port": port["id"]}])
    assert ann.get("/v1/port/db").json["dns_name"] == "db"
    assert ann.call("DELETE", f"/v2.1/servers/{server['id']}").status == 204


def test_a_thing_is_shared_with_a_project(cloud: Cloud, ann: Caller) -> None:
    bob = cloud.caller("bob", "mill")
    mill = bob.get("/network/v2.0/security-groups").json["security_groups"][0]["project_id"]
    ensured(ann, "address_group/ours", {"addresses": ["192.0.2.1"]})
    assert bob.get("/v1/address_group/ours").status == 404
    key = f"rbac_policy/address_group:access_as_shared:{mill}:ours"
    policy = ensured(ann, key, {})
    assert policy["name"] == f"address_group:access_as_shared:{mill}:{policy['object']}"
    assert ann.get("/v1/rbac_policy").json["rbac_policies"] == [policy]
    assert ann.get(f"/v1/rbac_policy/{policy['id']}").json == policy
    refused(ann, "rbac_policy/address_group:access_as_shared:*:ours", {}, "only admins may share", status=403)
    refused(ann, f"rbac_policy/address_group:access_as_external:{mill}:ours", {}, "action", "only networks")
    refused(ann, f"rbac_policy/subnet:access_as_shared:{mill}:lan4", {}, "object_type")
    refused(ann, "rbac_policy/ours", {}, "TYPE:ACTION:PROJECT:OBJECT")
    assert ensure(ann, f"rbac_policy/network:access_as_shared:{mill}:nowhere", {}).status == 400
    assert ann.delete(f"/v1/{key}").json["changed"] and not ann.delete(f"/v1/{key}").json["changed"]


def test_nobody_takes_the_name_of_a_network_that_all_use(cloud: Cloud, ann: Caller) -> None:
    bob, top = cloud.caller("bob", "mill"), "/network/v2.0"
    mill = bob.get(f"{top}/security-groups").json["security_groups"][0]["project_id"]
    made = []
    for who, cidr, shared in ((cloud.admin, "10.81.0.0/24", {"shared": True}), (ann, "10.82.0.0/24", {})):
        network = who.post(f"{top}/networks", {"network": {"name": "hall", **shared}}).json["network"]["id"]
        assert who.post(f"{top}/subnets", {"subnet": {"network_id": network, "cidr": cidr}}).status == 201
        made.append((who, network))
    share = {"object_type": "network", "object_id": made[1][1], "action": "access_as_shared", "target_tenant": mill}
    assert ann.post(f"{top}/rbac-policies", {"rbac_policy": share}).status == 201
    assert ensured(bob, "port/nook", {"network": "hall"})["network"] == made[0][1]
    assert bob.delete("/v1/port/nook").json["changed"]
    for who, network in made:
        assert who.delete(f"{top}/networks/{network}").status == 204


def test_servers_are_not_on_external_networks(cloud: Cloud, ann: Caller) -> None:
    want = {"flavor": "small", "image": ann.image(), "networks": [{"network": "ext"}]}
    refused(ann, "server/out", want, "external network", "network:attach_external_network", status=403)
    made = ensure(cloud.admin, "server/out", want, dry_run=True)
    assert made.status == 200, made


@pytest.mark.parametrize(("path", "want", "words"), [
    ("subnet/lan4b", {"network": "lan", "cidr": "10.1.0.128/25"}, ("overlaps",)),
    ("subnet/x", {"network": "lan", "cidr": "10.3.0.0/24", "gateway_ip": "10.4.0.1"}, ("gateway_ip", "10.3.0.0/24")),
    ("subnet/x", {"network": "lan", "cidr": "10.3.0.0/24", "allocation_pools": [
        {"start": "10.3.0.9", "end": "10.4.0.9"}]}, ("allocation pool", "10.3.0.0/24")),
    ("subnet/x", {"network": "lan", "cidr": "10.3.0.0/33"}, ("cidr",)),
    ("subnet/x", {"network": "nowhere", "cidr": "10.3.0.0/24"}, ()),
    ("subnet/x", {"cidr": "10.3.0.0/24"}, ("network",)),
    ("port/x", {"network": "lan", "fixed_ips": [{"ip_address": "10.7.0.1"}]}, ("10.7.0.1",)),
    ("port/x", {"network": "lan", "security_groups": ["theirs"]}, ()),
    ("port/x", {"network": "lan", "allowed_address_pairs": [{"ip_address": "everywhere"}]}, ("ip_address",)),
    ("port/x", {"network": "lan", "allowed_address_pairs": [{"ip_address": "10.1.0.9"}, {"ip_address": "10.1.0.9"}]},
     ("allowed_address_pairs[1]", "twice")),
    ("subnet/x", {"network": "lan", "cidr": "10.3.0.0/24", "dns_nameservers": ["10.3.0.9", "10.3.0.9"]},
     ("dns_nameservers[1]", "twice")),
    ("subnet/x", {"network": "lan", "cidr": "10.3.0.0/24", "host_routes": [
        {"destination": "10.9.0.0/16", "nexthop": "10.3.0.9"}, {"destination": "10.9.0.3/16", "nexthop": "10.3.0.9"}]},
     ("host_routes[1]", "twice")),
    ("router/x", {"routes": [{"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}] * 2}, ("routes[1]", "twice")),
    ("security_group/web", {"rules": [{"protocol": "tcp", "port_range_min": 70000}]}, ("rules[0]", "65535")),
    ("security_group/web", {"rules": [{"port_range_min": 7}]}, ("protocol",)),
    ("security_group/web", {"rules": [{"protocol": "tcp", "port_range_min": 9, "port_range_max": 8}]}, ("<=",)),
    ("security_group/new", {"rules": [{"protocol": "tcp", "port_range_min": 9, "port_range_max": 8}]}, ("<=",)),
    ("security_group/web", {"rules": [{"remote_ip_prefix": "fd00::/64"}]}, ("ethertype",)),
    ("router/edge", {"routes": [{"destination": "10.9.0.0/16", "nexthop": "10.1.0.1"}]}, ("routes", "router itself")),
    ("router/edge", {"routes": [{"destination": "10.9.0.0/16", "nexthop": "10.8.0.1"}]}, ("routes",)),
    ("router/x", {"enable_snat": False}, ("enable_snat", "external_network")),
    ("router/x", {"external_network": "lan"}, ()), ("floating_ip/x", {"network": "lan"}, ()),
    ("network/x", {"mode": "ovn", "mtu": 1500}, ("mtu",))])
def test_what_cannot_be_changes_nothing(ann: Caller, path: str, want: dict[str, Any], words: tuple[str, ...]) -> None:
    """A dry run assumes what is named and not there, so that alone is refused in truth only."""
    if words:
        refused(ann, path, want, *words)
    assert ensure(ann, path, want).status == 400
    if path.endswith(("/x", "/new", "/lan4b")):
        assert ann.get(f"/v1/{path}").status == 404


def test_routers_send_nothing_round(ann: Caller) -> None:
    ensured(ann, "router/back", {"external_network": "ext"})
    (there,), (back,) = (ann.get(f"/v1/router/{name}").json["external_addresses"] for name in ("edge", "back"))
    ensured(ann, "router/edge", {"routes": [{"destination": "10.9.0.0/16", "nexthop": back}]})
    refused(ann, "router/back", {"routes": [{"destination": "10.9.0.0/16", "nexthop": there}]},
            "10.9.0.0/16", "loop", "router edge", "router back", status=409)
    ensured(ann, "router/edge", {"routes": []})
    assert ann.delete("/v1/router/back").json["changed"]


def test_what_is_in_use_or_anothers(cloud: Cloud, ann: Caller) -> None:
    bob = cloud.caller("bob", "mill")
    theirs = ensured(bob, "security_group/theirs", {})
    assert ensure(ann, "security_group/theirs2", {"rules": [{"remote_group": theirs["id"]}]}).status == 400
    assert ann.get("/v1/security_group/theirs2").status == ann.get(f"/v1/security_group/{theirs['id']}").status == 404
    assert not ann.delete(f"/v1/security_group/{theirs['id']}").json["changed"]
    ensured(ann, "port/one", {"network": "lan"})
    ensured(ann, "floating_ip/first", {"network": "ext", "port": "one"})
    refused(ann, "floating_ip/second", {"network": "ext", "port": "one"}, "already has a floating IP", status=409)
    refused(ann, "router/edge", {"external_network": "none"}, "needed by floating IP", status=409)
    refused(ann, "router/edge", {"interfaces": []}, "needed by floating IP", status=409)
    fixed = ensure(ann, "subnet/lan4", {"cidr": "10.8.0.0/24"})
    assert fixed.json["error"]["code"] == "immutable"
    assert ensure(ann, "subnet/lan4", {"cidr": "10.8.0.0/24"}, on_immutable="recreate").status == 409
    assert ann.get("/v1/subnet/lan4").json["cidr"] == "10.1.0.0/24"
    ensured(ann, "security_group/held", {})
    ensured(ann, "port/one", {"security_groups": ["held"]})
    assert ann.delete("/v1/security_group/held").status == 409
    for path in ("floating_ip/first", "port/one", "security_group/held"):
        assert ann.delete(f"/v1/{path}").json["changed"]


def test_modules(folder: Path) -> None:
    """The examples, with those of the page; and a task in check mode, in truth, and again."""
    tasks = [task for noun in NOUNS for name in (noun, f"{noun}_info") for task in examples(name)]
    text = (ROOT / "docs/howto/declare-networks-with-ansible.md").read_text()
    blocks = re.findall(r"^```yaml\n(- .*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    tasks += yaml.safe_load("".join(blocks))
    results = play(folder, tasks, {}, "--diff")
    assert len(results) == len(tasks)
    more: list[dict[str, Any]] = [
        {"network": {"name": "n2", "mode": "ovn"}}, {"subnet": {"name": "s2", "network": "n2", "cidr": "10.7.0.0/24"}},
        {"security_group": {"name": "g2", "rules": [{"protocol": "tcp", "port_range_min": 22}]}},
        {"security_group": {"name": "g2", "rules": []}},
        {"port": {"name": "p2", "network": "n2", "security_groups": ["g2"]}},
        {"router": {"name": "r2", "external_network": "ext", "interfaces": ["s2"]}},
        {"floating_ip": {"name": "f2", "network": "ext", "port": "p2"}},
        {"floating_ip": {"name": "f2", "network": "ext", "port": "none", "port_forwardings": [
            {"external_port": 22, "port": "p2"}]}},
        {"address_group": {"name": "a2", "addresses": ["192.0.2.1"]}},
        {"address_scope": {"name": "sc2"}}, {"subnet_pool": {"name": "po2", "prefixes": ["10.60.0.0/16"],
                                                             "address_scope": "sc2"}},
        {"network": {"name": "n3", "mode": "ovn"}}, {"subnet": {"name": "s3", "network": "n3", "subnet_pool": "po2",
                                                                "prefix_length": 24}},
        {"port": {"name": "v2", "network": "n2"}},
        {"trunk": {"name": "t2", "port": "p2", "subports": [{"port": "v2", "segmentation_id": 7}]}},
        {"qos_policy": {"name": "q2", "rules": [{"type": "bandwidth_limit", "max_kbps": 5}]}},
        {"port": {"name": "p2", "network": "n2", "qos_policy": "q2"}},
        {"default_security_group_rule": {"protocol": "tcp", "port_range_min": 25, "remote_ip_prefix": "192.0.2.0/24"}},
        {"default_security_group_rule": {"protocol": "tcp", "port_range_min": 25, "remote_ip_prefix": "192.0.2.0/24",
                                         "state": "absent"}},
        {"rbac_policy": {"object_type": "network", "object": "n2", "target_project": PROJECT}},
        {"rbac_policy": {"object_type": "network", "object": "n2", "target_project": PROJECT, "state": "absent"}},
        *({noun: {"name": name, "state": "absent"}} for noun, name in (
            ("trunk", "t2"), ("port", "v2"), ("floating_ip", "f2"), ("router", "r2"), ("port", "p2"),
            ("security_group", "g2"), ("address_group", "a2"), ("qos_policy", "q2"), ("subnet", "s2"),
            ("network", "n2"), ("subnet", "s3"), ("network", "n3"), ("subnet_pool", "po2"), ("address_scope", "sc2")))]
    thrice(folder, more, {"cloud": "mycloud"})
    whole = play(folder, more[:18], {"cloud": "mycloud"}, "--check")
    assert all(one["changed"] for one in whole)  # each assumes those before
