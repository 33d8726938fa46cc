# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of hosts (whose sysfs is made up) as providers below them: what Placement shows of them follows from what
servers claim and have."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.store.claims import host_counters
from magnetar_control.store.hosts import hosts
from tests.support.agent.pci_providers import PF
from tests.support.control.hardware import act
from tests.support.control.pci_providers import GPU_CLASS, VF_CLASS, Equipped, candidates, get, ids_of
from tests.support.control.placement import OPENSTACK, call
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
FIRST, SECOND = "kvm1_0000:10:00.0", "kvm1_0000:11:00.0"
#: What they are near.
CELL = "kvm1_NUMA0"
FLAVORS = {"gpu": {"pci_passthrough:alias": "gpu:1"}, "vf": {"pci_passthrough:alias": "vf:2"}, "plain": {},
           "class": {f"resources:{GPU_CLASS}": "1"}}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Equipped]:
    with Equipped(hosts=2, host_down_after=600.0) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        for name, specs in FLAVORS.items():
            made.admin.flavor(name, specs)
        made.admin.image()
        yield made


@pytest.fixture
def server(cloud: Equipped) -> Iterator[Any]:
    """Makes a server of a flavor on a host, which goes with the test; returns its uuid."""
    ids = []

    def make(flavor: str, host: str) -> str:
        made = cloud.admin.boot(f"{flavor}{len(ids)}", "2.74", flavorRef=flavor, networks="none", host=host)
        ids.append(str(made["id"]))
        assert made["status"] == "ACTIVE", made
        return ids[-1]

    yield make
    for id in ids:
        cloud.admin.delete(f"/v2.1/servers/{id}")
        assert cloud.admin.settled(id) is None


def used(cloud: Equipped) -> dict[str, int]:
    """What is used of each device of which something is."""
    found = {}
    for name, id in ids_of(cloud).items():
        usages = get(cloud, f"/resource_providers/{id}/usages")["usages"]
        if "_" in name and sum(usages.values()):
            found[name] = sum(usages.values())
    return found


def heard(cloud: Equipped, *ids: str) -> None:
    """Wait until the hosts have told that these servers have devices, and no others."""
    def seen() -> bool:
        with cloud.parts.api_database.read() as connection:
            told = [row.info.get("providers") or () for row in hosts.fetch_host_rows(connection)]
        return {id for each in told for one in each for id in one["held"]} == set(ids)
    eventually(seen)


def test_devices_are_below_their_host(cloud: Equipped) -> None:
    ids = ids_of(cloud)
    assert list(ids) == ["kvm1", CELL, FIRST, SECOND, f"kvm1_{PF}", "kvm2", "kvm2_NUMA0", "kvm2_0000:20:00.0"]
    assert get(cloud, f"/resource_providers?in_tree={ids[SECOND]}")["resource_providers"] == get(
        cloud, f"/resource_providers?in_tree={ids['kvm1']}")["resource_providers"]
    shown = get(cloud, f"/resource_providers/{ids[FIRST]}")
    assert (shown["parent_provider_uuid"], shown["root_provider_uuid"]) == (ids[CELL], ids["kvm1"])
    assert "root_provider_uuid" not in get(cloud, f"/resource_providers/{ids[FIRST]}", "1.13")
    assert get(cloud, f"/resource_providers/{ids[f'kvm1_{PF}']}/inventories")["inventories"] == {VF_CLASS: {
        "total": 2, "reserved": 0, "min_unit": 1, "max_unit": 2, "step_size": 1, "allocation_ratio": 1.0}}
    assert get(cloud, f"/resource_providers/{ids[FIRST]}/traits")["traits"] == [
        "COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_NVLINK"]
    assert [one["name"] for one in get(cloud, f"/resource_providers?resources={VF_CLASS}:2")[
        "resource_providers"]] == [f"kvm1_{PF}"]
    assert {GPU_CLASS, VF_CLASS} <= {one["name"] for one in get(cloud, "/resource_classes")["resource_classes"]}


def test_what_servers_have_is_used(cloud: Equipped, server: Any) -> None:
    held, both = server("gpu", "kvm1"), server("vf", "kvm1")
    heard(cloud, held, both)
    ids = ids_of(cloud)
    assert used(cloud) == {FIRST: 1, f"kvm1_{PF}": 2}
    mine = get(cloud, f"/allocations/{held}")["allocations"]
    assert {id: one["resources"] for id, one in mine.items()} == {
        ids["kvm1"]: {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}, ids[FIRST]: {GPU_CLASS: 1}}
    assert get(cloud, f"/resource_providers/{ids[f'kvm1_{PF}']}/allocations")["allocations"] == {
        both: {"resources": {VF_CLASS: 2}, "consumer_generation": 1}}
    usage = get(cloud, f"/usages?project_id={cloud.admin.project_id}&consumer_type=all")["usages"]["all"]
    assert (usage[GPU_CLASS], usage[VF_CLASS], usage["VCPU"]) == (1, 2, 2)
    assert candidates(cloud, f"resources={VF_CLASS}:1") == []


def test_what_can_be_claimed(cloud: Equipped, server: Any) -> None:
    heard(cloud, server("gpu", "kvm1"))
    one, other = {GPU_CLASS: 1}, "kvm2_0000:20:00.0"
    whole = {"kvm1": {"VCPU": 1}, SECOND: one}, {"kvm2": {"VCPU": 1}, other: one}
    assert candidates(cloud, f"resources=VCPU:1,{GPU_CLASS}:1") == list(whole)
    assert candidates(cloud, f"resources=VCPU:1&resources1={GPU_CLASS}:1&required1=CUSTOM_NVLINK") == list(whole)
    assert candidates(cloud, f"resources=VCPU:1,{GPU_CLASS}:1&required=CUSTOM_NVLINK&limit=1") == [whole[0]]
    assert candidates(cloud, f"resources={GPU_CLASS}:1&in_tree={ids_of(cloud)['kvm2']}") == [{other: one}]
    assert candidates(cloud, f"resources=VCPU:1,{GPU_CLASS}:1", "1.28") == []
    assert candidates(cloud, f"resources={GPU_CLASS}:1", "1.28") == [{SECOND: one}, {other: one}]
    # One provider gives a group; two groups may have to have two.
    assert candidates(cloud, f"resources={GPU_CLASS}:2") == []
    for policy in ("none", "isolate"):
        assert candidates(cloud, f"resources1={GPU_CLASS}:1&resources2={GPU_CLASS}:1&group_policy={policy}") == []
        assert candidates(cloud, f"resources1={VF_CLASS}:1&resources2={VF_CLASS}:1&group_policy={policy}") == (
            [{f"kvm1_{PF}": {VF_CLASS: 2}}] if policy == "none" else [])
    groups = f"resources_a=VCPU:1&resources_b={GPU_CLASS}:1&resources_c={VF_CLASS}:1&group_policy=isolate"
    assert candidates(cloud, groups) == [{"kvm1": {"VCPU": 1}, SECOND: one, f"kvm1_{PF}": {VF_CLASS: 1}}]
    assert candidates(cloud, f"{groups}&same_subtree=_a,_b,_c") == candidates(cloud, groups)
    assert candidates(cloud, f"{groups}&same_subtree=_b,_c") == []  # neither is above the other
    near = f"resources_b={GPU_CLASS}:1&resources_c=NUMA_MEMORY_MB:64&required_c=HW_NUMA_ROOT&group_policy=none"
    assert candidates(cloud, f"{near}&same_subtree=_b,_c") == [
        {SECOND: one, CELL: {"NUMA_MEMORY_MB": 64}}, {other: one, "kvm2_NUMA0": {"NUMA_MEMORY_MB": 64}}]
    assert candidates(cloud, f"resources_b={GPU_CLASS}:1&required_r=COMPUTE_NODE&group_policy=none"
                             "&same_subtree=_b,_r") == [{SECOND: one}, {other: one}]
    found = get(cloud, f"/allocation_candidates?resources=VCPU:1&resources1={GPU_CLASS}:1&limit=1")
    ids = ids_of(cloud)
    assert found["allocation_requests"][0]["mappings"] == {"": [ids["kvm1"]], "1": [ids[SECOND]]}
    assert found["provider_summaries"].keys() == {
        ids["kvm1"], ids[CELL], ids[FIRST], ids[SECOND], ids[f"kvm1_{PF}"]}
    assert found["provider_summaries"][ids[FIRST]] == {
        "resources": {GPU_CLASS: {"capacity": 1, "used": 1}}, "traits": ["COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_NVLINK"],
        "parent_provider_uuid": ids[CELL], "root_provider_uuid": ids["kvm1"]}


def test_a_move_holds_devices_of_both_hosts(cloud: Equipped, server: Any) -> None:
    id = server("gpu", "kvm1")
    heard(cloud, id)
    act(cloud.admin, id, "migrate", None, "VERIFY_RESIZE")
    eventually(lambda: used(cloud) == {FIRST: 1, "kvm2_0000:20:00.0": 1})
    held = get(cloud, f"/allocations/{id}")["allocations"]
    assert ids_of(cloud)["kvm2_0000:20:00.0"] in held and ids_of(cloud)[FIRST] not in held
    act(cloud.admin, id, "confirmResize", None, "ACTIVE")
    eventually(lambda: used(cloud) == {"kvm2_0000:20:00.0": 1})


def test_a_live_move_takes_devices_of_the_other_host(cloud: Equipped, server: Any) -> None:
    id = server("gpu", "kvm1")
    body = {"host": None, "block_migration": "auto"}
    assert cloud.admin.act(id, "os-migrateLive", body, "2.100").status == 202
    found = cloud.admin.settled(id)
    assert found and (found["status"], found["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", "kvm2"), found
    eventually(lambda: used(cloud) == {"kvm2_0000:20:00.0": 1})


def test_by_hand_devices_can_be_given_up_only(cloud: Equipped, server: Any) -> None:
    id = server("gpu", "kvm1")
    heard(cloud, id)
    ids, found = ids_of(cloud), get(cloud, f"/allocations/{id}")
    known = {name: found[name] for name in ("project_id", "user_id", "consumer_type")}

    def put(held: Any) -> Any:
        now = get(cloud, f"/allocations/{id}")["consumer_generation"]
        return call(cloud, "PUT", f"/allocations/{id}", {**known, "consumer_generation": now, "allocations": held})

    same = {one: {"resources": held["resources"]} for one, held in found["allocations"].items()}
    assert put(same).status == 204 and used(cloud) == {FIRST: 1}
    reply = put({**same, ids[SECOND]: {"resources": {GPU_CLASS: 1}}})
    assert reply.status == 400 and "servers claim devices by their flavor" in reply.json["errors"][0]["detail"]
    assert used(cloud) == {FIRST: 1}
    assert put({ids["kvm1"]: same[ids["kvm1"]]}).status == 204 and used(cloud) == {}
    parts, periodic = cloud.parts, Periodic(cloud.parts.working)
    found = audit.run_with_state(parts.store, parts.agents, cloud.services, pause=0.1)[0]
    assert {one.kind for one in found} == {"unclaimed"}
    for _look in range(3):
        periodic.audit()
    assert used(cloud) == {FIRST: 1}
    with cloud.parts.api_database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []


def test_what_is_below_a_host_is_its_agent_s_to_say(cloud: Equipped) -> None:
    id = ids_of(cloud)[FIRST]
    for path, body in (("traits", {"traits": []}), ("inventories", {"inventories": {}}),
                       (f"inventories/{GPU_CLASS}", {"total": 1}), ("aggregates", {"aggregates": []})):
        reply = call(cloud, "PUT", f"/resource_providers/{id}/{path}", {"resource_provider_generation": 1, **body})
        assert reply.status == 400 and "is a part of host kvm1" in reply.json["errors"][0]["detail"], reply
    reply = call(cloud, "DELETE", f"/resource_classes/{GPU_CLASS}")
    assert reply.status == 409 and "in use" in reply.json["errors"][0]["detail"]


def test_a_flavor_asks_for_devices_by_alias(cloud: Equipped) -> None:
    body = {"name": "odd", "flavorRef": "class", "networks": "none", "imageRef": cloud.admin.image()}
    reply = cloud.admin.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400 and "a server gets them by the extra spec pci_passthrough:alias" in str(reply.json)


COMMANDS = [
    ("resource provider list --in-tree {kvm1} -f value -c name", f"^kvm1\n{CELL}\n{FIRST}\n{SECOND}\nkvm1_{PF}\n$"),
    ("resource provider inventory list {first} -f value -c resource_class -c total", f"^{GPU_CLASS} 1\n$"),
    ("resource provider trait list {first} -f value", "CUSTOM_NVLINK"),
    ("resource provider show {first} -f value -c parent_provider_uuid", "^{cell}\n$"),
    ("resource provider list --resource {kind}=1 -f value -c name", f"^{FIRST}\n{SECOND}\nkvm2_0000:20:00.0\n$"),
    ("allocation candidate list --resource VCPU=1 --resource {kind}=1 -f json", "(?s){first}.*{second}")]


@pytest.mark.deep(shard="images and clients of one host")
@pytest.mark.parametrize(("command", "says"), COMMANDS)
def test_osc_placement_reads_them(cloud: Equipped, command: str, says: str, tmp_path: Path) -> None:
    ids = ids_of(cloud)
    names = {"kvm1": ids["kvm1"], "cell": ids[CELL], "first": ids[FIRST], "second": ids[SECOND], "kind": GPU_CLASS}
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "OS_CLOUD": "magnetar",
                   "OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml")}
    words = [*OPENSTACK, "--os-placement-api-version", "1.39", *command.format(**names).split()]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900, check=False)
    wanted = says
    for name, value in names.items():
        wanted = wanted.replace(f"{{{name}}}", value)
    assert found.returncode == 0 and re.search(wanted, found.stdout), found
