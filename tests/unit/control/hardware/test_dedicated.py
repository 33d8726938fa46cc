# SPDX-License-Identifier: GPL-3.0-or-later
"""Dedicated CPUs in a cloud: claimed, chosen by hosts, moved, and free again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.hardware import act, on_host
from tests.unit.control.moves.clouds import check

#: Of each host's 16 CPUs.
AGENT = {"cpu_dedicated_set": "8-11", "cpu_shared_set": "0-7"}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2, links=True, agent=AGENT) as made:
        yield made


def pcpus(cloud: Cloud) -> dict[str, tuple[int, int, int]]:
    """Dedicated CPUs of each host, those that are claimed, and those that its agent has given away."""
    found = {one["name"]: one for one in cloud.admin.get("/v1/hypervisor").json["hypervisors"]}
    free = {}
    for name in cloud.hosts:
        with cloud.parts.agents.client(cloud.hosts[name]) as client:
            text = client.get("host")["numa_cells"][0]["free"]["cpus_dedicated"]
            free[name] = sum(int(high or low) - int(low) + 1 for low, _dash, high in (
                part.partition("-") for part in text.split(",") if part))
    return {name: (one["pcpus"], one["pcpus_used"], one["pcpus"] - free[name]) for name, one in found.items()}


def settled(cloud: Cloud, wanted: dict[str, tuple[int, int, int]]) -> None:
    """Wait until it is so."""
    for _tenth in range(600):
        if (found := pcpus(cloud)) == wanted:
            return
        time.sleep(0.1)
    assert found == wanted


def pinned(cloud: Cloud, name: str, vcpus: int, **specs: str) -> str:
    """A flavor of dedicated CPUs."""
    return cloud.admin.flavor(name, {"hw:cpu_policy": "dedicated", **specs}, vcpus=vcpus)


def test_a_server_claims_dedicated_cpus_wherever_it_goes(cloud: Cloud) -> None:
    caller, three = cloud.admin, pinned(cloud, "three", 3)
    web = caller.boot("web", flavorRef=three, networks="none")
    assert on_host(cloud, web["id"])["hardware"] == {"cpu_policy": "dedicated"}
    home = check(cloud, web["id"])["host"]
    [other] = set(cloud.hosts) - {home}
    settled(cloud, {home: (4, 3, 3), other: (4, 0, 0)})
    found = caller.get(f"/v2.1/servers/{web['id']}/topology", "2.78").json
    assert found == {"pagesize_kb": None, "nodes": [{
        "memory_mb": 64, "vcpu_set": [0, 1, 2], "siblings": [], "host_node": 0,
        "cpu_pinning": {"0": 8, "1": 9, "2": 10}}]}
    act(caller, web["id"], "migrate", None, "VERIFY_RESIZE")
    assert pcpus(cloud)[home][1] == pcpus(cloud)[other][1] == 3  # of both while it moves
    act(caller, web["id"], "confirmResize", None, "ACTIVE")
    settled(cloud, {home: (4, 0, 0), other: (4, 3, 3)})
    act(caller, web["id"], "os-migrateLive", {
        "host": None, "block_migration": True, "disk_over_commit": False}, "ACTIVE")
    settled(cloud, {home: (4, 3, 3), other: (4, 0, 0)})
    check(cloud, web["id"])
    caller.delete(f"/v2.1/servers/{web['id']}")
    settled(cloud, {home: (4, 0, 0), other: (4, 0, 0)})


@pytest.mark.parametrize(("specs", "why"), [
    ({"resources:PCPU": "1"}, "must have extra spec resources:PCPU=2"),
    ({"resources:PCPU": "2", "resources:VCPU": "2"}, "resources:VCPU=2 together with resources:PCPU=2"),
    ({"resources:PCPU": "2", "hw:cpu_policy": "mixed"}, "hw:cpu_policy=mixed together with resources:PCPU=2"),
    ({"resources:PCPU": "two"}, "it must match [0-9]+")])
def test_dedicated_cpus_in_other_numbers_are_refused(cloud: Cloud, specs: dict[str, str], why: str) -> None:
    name = "odd-" + "-".join(specs.values())
    pinned(cloud, name, 2)
    cloud.admin.delete(f"/v2.1/flavors/{name}/os-extra_specs/hw:cpu_policy")
    assert cloud.admin.post(f"/v2.1/flavors/{name}/os-extra_specs", {"extra_specs": specs}).status == 200
    body = {"name": "odd", "flavorRef": name, "networks": "none", "imageRef": cloud.admin.image()}
    reply = cloud.admin.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400 and why in str(reply.json), reply


def test_placement_s_words_for_dedicated_cpus(cloud: Cloud) -> None:
    caller = cloud.admin
    named = pinned(cloud, "words", 2, **{"resources:PCPU": "2", "resources:VCPU": "0"})
    caller.delete(f"/v2.1/flavors/{named}/os-extra_specs/hw:cpu_policy")
    web = caller.boot("words", flavorRef=named, networks="none")
    found = check(cloud, web["id"])
    assert found["hardware"] == {"cpu_policy": "dedicated"} and len(found["placement"]["cells"][0]["pins"]) == 2
    assert sum(claimed for _there, claimed, _given in pcpus(cloud).values()) == 2
    caller.delete(f"/v2.1/servers/{web['id']}")
    assert caller.settled(web["id"]) is None


def test_a_rebuild_keeps_the_cpus_that_it_has_claimed(cloud: Cloud) -> None:
    caller = cloud.admin
    web = caller.boot("plain", networks="none")
    for properties in ({"hw_cpu_policy": "dedicated"}, {"hw_numa_nodes": "1"}):
        other = caller.image("-".join(properties), **properties)
        reply = caller.act(web["id"], "rebuild", {"imageRef": other})
        assert reply.status == 400 and "NUMA topology cannot be changed" in reply.json["badRequest"]["message"]
    pinned_image = caller.image("hw_cpu_policy")
    found = caller.boot("by-image", networks="none", imageRef=pinned_image)
    assert found["status"] == "ACTIVE" and sum(one[1] for one in pcpus(cloud).values()) == 1
    for id in (web["id"], found["id"]):
        caller.delete(f"/v2.1/servers/{id}")
    settled(cloud, dict.fromkeys(cloud.hosts, (4, 0, 0)))


def test_no_host_gives_more_than_it_has_and_admins_read_what_is_lacking(cloud: Cloud) -> None:
    caller, two, many = cloud.admin, pinned(cloud, "two", 2), pinned(cloud, "many", 5)
    caller.image()
    with ThreadPoolExecutor(6) as threads:
        made = list(threads.map(lambda at: caller.boot(f"two{at}", flavorRef=two, networks="none"), range(6)))
    assert sorted(one["status"] for one in made) == ["ACTIVE"] * 4 + ["ERROR"] * 2
    settled(cloud, dict.fromkeys(cloud.hosts, (4, 4, 4)))
    wide = caller.boot("wide", flavorRef=many, networks="none")
    assert wide["status"] == "ERROR" and "PcpuFilter 2" in wide["fault"]["details"]
    assert "has room for 0 of 5 dedicated CPUs" in wide["fault"]["details"]
    for one in (*made, wide):
        caller.delete(f"/v2.1/servers/{one['id']}")
    settled(cloud, dict.fromkeys(cloud.hosts, (4, 0, 0)))
