# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with ports that ask for bandwidth, over fake hosts: ``tests/cases/scheduler/bandwidth.yml``. Each of two
hosts has 1 Mbit/s of physnet0."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from magnetar_control import serve
from magnetar_control.conductor.periodic.audit import findings_of_checks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.store.hosts.hosts import child_provider_id
from tests.support.control.audited import read_state
from tests.support.control.cloud import Cloud
from tests.support.control.placement import filled, get, holds

pytestmark = pytest.mark.slow
CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/scheduler/bandwidth.yml").read_text(encoding="utf-8"))
CLASSES = {"egress": "NET_BW_EGR_KILOBIT_PER_SEC", "ingress": "NET_BW_IGR_KILOBIT_PER_SEC"}


@pytest.fixture(scope="module")
def cloud():
    with patch.object(serve, "engine_of", lambda _settings: FakeEngine()), Cloud(
            links=True, agent={"resource_provider_bandwidths": ["physnet0:1000:1000"]}) as made:
        yield made


@pytest.fixture(scope="module")
def place(cloud):
    """The uuids of a network on physnet0, a policy of 600 kbit/s, and of hosts and what is below them."""
    admin = cloud.admin
    network = admin.post("/network/v2.0/networks", {"network": {
        "name": "paid", "provider:network_type": "flat", "provider:physical_network": "physnet0"}}).json["network"]
    network = network["id"]
    assert admin.post("/network/v2.0/subnets", {"subnet": {
        "network_id": network, "cidr": "10.7.0.0/24", "ip_version": 4}}).status == 201
    policy = admin.post("/network/v2.0/qos/policies", {"policy": {"name": "paid"}}).json["policy"]["id"]
    for way in CLASSES:
        assert admin.post(f"/network/v2.0/qos/policies/{policy}/minimum_bandwidth_rules", {
            "minimum_bandwidth_rule": {"min_kbps": 600, "direction": way}}).status == 201
    with cloud.parts.api_database.read() as connection:
        hosts = {row.name: row.id for row in connection.exec_driver_sql("SELECT id, name FROM hosts")}
    below = {f"{name}_physnet0": child_provider_id(id, "physnet0") for name, id in hosts.items()}
    return {"network": network, "policy": policy, **hosts, **below}


def port_of(cloud, place, **more):
    return cloud.admin.post("/network/v2.0/ports", {"port": {
        "network_id": place["network"], "qos_policy_id": place["policy"], **more}}).json["port"]["id"]


def used(cloud, place, host):
    """What is claimed of a host's bandwidth: the same in both directions."""
    found = get(cloud, f"/resource_providers/{place[f'{host}_physnet0']}/usages", "1.0").json["usages"]
    assert found.keys() == set(CLASSES.values()) and len(set(found.values())) == 1
    return found.popitem()[1]


@contextmanager
def served(cloud, place, host):
    """A server with such a port; afterwards nothing is claimed, and the audit finds nothing."""
    port = port_of(cloud, place)
    server = cloud.admin.boot("web1", networks=[{"port": port}], host=host, version="2.74")
    assert server["status"] == "ACTIVE", server
    yield server["id"], port
    assert findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents, cloud.services)) == []
    assert cloud.admin.delete(f"/v2.1/servers/{server['id']}").status == 204
    assert cloud.admin.settled(server["id"]) is None
    assert {used(cloud, place, one) for one in ("kvm1", "kvm2")} == {0}
    assert cloud.admin.delete(f"/network/v2.0/ports/{port}").status == 204


@pytest.mark.parametrize("case", CASES["empty"], ids=[case["get"][:70] for case in CASES["empty"]])
def test_what_placement_shows_of_it(cloud, place, case):
    answer = get(cloud, filled(case["get"], place), case["version"])
    assert answer.status == case.get("status", 200), answer
    if "shows" in case:
        assert holds(filled(case["shows"], place), answer.json), answer
    if "providers" in case:
        assert [one["name"] for one in answer.json["resource_providers"]] == case["providers"]
    if "held" in case:
        assert [{id: one["resources"] for id, one in found["allocations"].items()}
                for found in answer.json["allocation_requests"]] == filled(case["held"], place)


def test_a_server_claims_what_its_port_asks_for_and_gives_it_back(cloud, place):
    admin = cloud.admin
    port = port_of(cloud, place)
    body = {"server": {"name": "web0", "flavorRef": "1", "imageRef": admin.image(), "networks": [{"port": port}]}}
    refused = admin.post("/v2.1/servers", body, "2.71")
    assert refused.status == 400 and "not supported until microversion 2.72" in refused.json["badRequest"]["message"]
    with served(cloud, place, "kvm1") as (server, has):
        held = get(cloud, f"/allocations/{server}", "1.28").json["allocations"]
        assert held[place["kvm1_physnet0"]]["resources"] == dict.fromkeys(CLASSES.values(), 600)
        shown = admin.get(f"/network/v2.0/ports/{has}").json["port"]
        (group,) = shown["resource_request"]["request_groups"]
        assert shown["binding:profile"]["allocation"] == {group["id"]: place["kvm1_physnet0"]}
        full = admin.boot("web2", networks=[{"port": port}], host="kvm1", version="2.74")
        assert full["status"] == "ERROR" and "No valid host" in full["fault"]["message"]
        assert "has 400 of 600 NET_BW_EGR_KILOBIT_PER_SEC:physnet0 left" in full["fault"]["details"]
        assert admin.delete(f"/v2.1/servers/{full['id']}").status == 204
        admin.settled(full["id"])
        assert used(cloud, place, "kvm1") == 600
        path = f"/v2.1/servers/{server}/os-interface"
        refused = admin.post(path, {"interfaceAttachment": {"port_id": port}})
        assert refused.status == 400
        assert "has not 600 kbit/s egress on physnet0" in refused.json["badRequest"]["message"]
        assert admin.get(f"/network/v2.0/ports/{port}").json["port"]["device_id"] == ""
        assert admin.call("DELETE", f"{path}/{has}").status == 202
        admin.settled(server)
        _until(lambda: used(cloud, place, "kvm1") == 0)
        assert admin.post(path, {"interfaceAttachment": {"port_id": has}}).status == 200
        assert used(cloud, place, "kvm1") == 600
    assert admin.delete(f"/network/v2.0/ports/{port}").status == 204


@pytest.mark.parametrize("case", CASES["moves"], ids=[case["name"] for case in CASES["moves"]])
def test_it_moves_with_the_server(cloud, place, case):
    admin = cloud.admin
    with served(cloud, place, "kvm1") as (server, port):
        for step in case["steps"]:
            assert admin.act(server, *step["act"], step.get("version", "2.79")).status in (200, 202, 204), step
            _until(lambda wanted=step["status"]: admin.settled(server)["status"] == wanted)
            assert {name: used(cloud, place, name) for name in ("kvm1", "kvm2")} == step["used"], step
        bound = admin.get(f"/network/v2.0/ports/{port}").json["port"]
        assert bound["binding:profile"]["allocation"].popitem()[1] == place[f"{case['at']}_physnet0"]


def test_a_move_to_a_host_without_enough_is_refused(cloud, place):
    admin = cloud.admin
    with served(cloud, place, "kvm2"):
        port = port_of(cloud, place)
        other = admin.boot("web2", networks=[{"port": port}], host="kvm1", version="2.74")["id"]
        refused = admin.act(other, "os-migrateLive", {"host": None, "block_migration": "auto"}, "2.60")
        assert admin.settled(other)["OS-EXT-SRV-ATTR:host"] == "kvm1", refused
        assert admin.act(other, "migrate", None, "2.60").status == 202
        assert admin.settled(other)["OS-EXT-SRV-ATTR:host"] == "kvm1"
        assert (used(cloud, place, "kvm1"), used(cloud, place, "kvm2")) == (600, 600)
        assert admin.delete(f"/v2.1/servers/{other}").status == 204
        admin.settled(other)
        assert admin.delete(f"/network/v2.0/ports/{port}").status == 204


def test_who_holds_bandwidth_alone_holds_nothing_of_the_host(cloud, place):
    consumer, below = str(uuid.uuid4()), place["kvm1_physnet0"]

    def ask(amount, generation=None):
        return cloud.admin.call("PUT", f"/placement/allocations/{consumer}", {
            "allocations": {below: {"resources": {CLASSES["egress"]: amount}}}, "project_id": "p", "user_id": "u",
            "consumer_generation": generation, "consumer_type": "TEST"},
            headers={"OpenStack-API-Version": "placement 1.38"})

    assert ask(1001).status == 409
    assert ask(1000).status == 204
    assert ask(1, 1).status == 204
    for id, held in ((below, {consumer}), (place["kvm1"], set())):
        answer = get(cloud, f"/resource_providers/{id}/allocations", "1.12")
        assert answer.json["allocations"].keys() == held
    assert cloud.admin.call("DELETE", f"/placement/allocations/{consumer}").status == 204
    assert findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents, cloud.services)) == []


def _until(look):
    import time

    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)
