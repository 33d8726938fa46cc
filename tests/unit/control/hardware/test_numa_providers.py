# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of hosts as providers below them: what Placement shows of them, offers, and lets nobody change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from magnetar_agent.fake import FakeHypervisor
from magnetar_control.conductor.periodic import audit
from magnetar_control.store.hosts import hosts
from magnetar_core.hardware.numa import HostCell
from tests.support.control.audited import read_state
from tests.support.control.hardware import act
from tests.support.control.pci_providers import candidates, get, ids_of
from tests.support.control.placement import call
from tests.support.waiting import eventually
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow
PAGES = "CUSTOM_HUGEPAGES_2048KB"
CELLS = (HostCell(0, frozenset(), frozenset(range(4)), 3072, {2048: 512}),
         HostCell(1, frozenset(), frozenset(range(4, 8)), 3072, {2048: 512}))
FLAVORS = {"plain": {}, "two": {"hw:numa_nodes": "2", "hw:cpu_policy": "dedicated", "hw:mem_page_size": "2MB"},
           "pages": {f"resources:{PAGES}": "1"}}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    class Divided(Inside):
        def agent_of(self, name: str) -> dict[str, Any]:
            return {"cpu_dedicated_set": "1-3,5-7", "cpu_shared_set": "0,4"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeHypervisor, "cells", CELLS)
        with Divided(hosts=2, host_down_after=600.0) as made:
            made.parts.working.settling = lambda: False  # type: ignore[method-assign]
            for name, specs in FLAVORS.items():
                made.admin.flavor(name, specs, vcpus=2)
            made.admin.image()
            yield made


@pytest.fixture
def server(cloud: Inside) -> Iterator[str]:
    """One on both cells of kvm1, of which its host has told."""
    made = cloud.admin.boot("two", "2.74", flavorRef="two", networks="none", host="kvm1")
    assert made["status"] == "ACTIVE", made
    heard(cloud, {"kvm1": {made["id"]}})
    yield str(made["id"])
    cloud.admin.delete(f"/v2.1/servers/{made['id']}")
    assert cloud.admin.settled(made["id"]) is None
    heard(cloud, {})


def heard(cloud: Inside, wanted: dict[str, set[str]]) -> None:
    """Wait until the hosts have told that these servers have something of their cells."""
    def seen() -> bool:
        with cloud.parts.api_database.read() as connection:
            told = {row.name: row.info["providers"] for row in hosts.fetch_host_rows(connection)}
        return all({id for one in each for id in one["held"]} == wanted.get(name, set()) for name, each in told.items())
    eventually(seen)


def usages(cloud: Inside, name: str) -> dict[str, int]:
    found: dict[str, int] = get(cloud, f"/resource_providers/{ids_of(cloud)[name]}/usages")["usages"]
    return found


def test_cells_are_below_their_host(cloud: Inside) -> None:
    ids = ids_of(cloud)
    assert list(ids) == ["kvm1", "kvm1_NUMA0", "kvm1_NUMA1", "kvm2", "kvm2_NUMA0", "kvm2_NUMA1"]
    shown = get(cloud, f"/resource_providers/{ids['kvm1_NUMA1']}")
    assert (shown["parent_provider_uuid"], shown["root_provider_uuid"]) == (ids["kvm1"], ids["kvm1"])
    assert shown["generation"] == get(cloud, f"/resource_providers/{ids['kvm1']}")["generation"]
    assert get(cloud, f"/resource_providers/{ids['kvm1_NUMA1']}/traits")["traits"] == ["HW_NUMA_ROOT"]
    found = get(cloud, f"/resource_providers/{ids['kvm1_NUMA1']}/inventories")["inventories"]
    assert {name: one["total"] for name, one in found.items()} == {
        "NUMA_THREAD": 3, "NUMA_MEMORY_MB": 2048, PAGES: 512}
    assert found[PAGES] == {"total": 512, "reserved": 0, "min_unit": 1, "max_unit": 512, "step_size": 1,
                            "allocation_ratio": 1.0}
    # The host has what it had.
    assert get(cloud, f"/resource_providers/{ids['kvm1']}/inventories")["inventories"].keys() == {
        "VCPU", "MEMORY_MB", "DISK_GB", "PCPU"}
    for query, names in (("required=HW_NUMA_ROOT", ["kvm1_NUMA0", "kvm1_NUMA1", "kvm2_NUMA0", "kvm2_NUMA1"]),
                         (f"resources={PAGES}:512&in_tree={ids['kvm2_NUMA0']}", ["kvm2_NUMA0", "kvm2_NUMA1"]),
                         (f"resources={PAGES}:513", [])):
        found = get(cloud, f"/resource_providers?{query}")["resource_providers"]
        assert [one["name"] for one in found] == names
    classes = [one["name"] for one in get(cloud, "/resource_classes")["resource_classes"]]
    assert {"NUMA_THREAD", "NUMA_MEMORY_MB", PAGES} <= {*classes} and len({*classes}) == len(classes)


def test_what_a_server_has_of_cells(cloud: Inside, server: str) -> None:
    ids = ids_of(cloud)
    mine = {"NUMA_THREAD": 1, PAGES: 16}
    for at in range(2):
        assert usages(cloud, f"kvm1_NUMA{at}") == {"NUMA_THREAD": 1, "NUMA_MEMORY_MB": 0, PAGES: 16}
        assert get(cloud, f"/resource_providers/{ids[f'kvm1_NUMA{at}']}/allocations")["allocations"] == {
            server: {"resources": mine, "consumer_generation": 1}}
    held = get(cloud, f"/allocations/{server}")
    assert {id: one["resources"] for id, one in held["allocations"].items()} == {
        ids["kvm1"]: {"PCPU": 2, "MEMORY_MB": 64, "DISK_GB": 1}, ids["kvm1_NUMA0"]: mine, ids["kvm1_NUMA1"]: mine}
    total = get(cloud, f"/usages?project_id={cloud.admin.project_id}&consumer_type=all")["usages"]["all"]
    assert total == {"consumer_count": 1, "PCPU": 2, "MEMORY_MB": 64, "DISK_GB": 1, "NUMA_THREAD": 2, PAGES: 32}
    assert audit.findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents, cloud.services)) == []


def test_a_move_takes_cells_of_the_other_host(cloud: Inside, server: str) -> None:
    act(cloud.admin, server, "migrate", None, "VERIFY_RESIZE")
    heard(cloud, {"kvm2": {server}})
    ids = ids_of(cloud)
    there = get(cloud, f"/allocations/{server}")["allocations"]
    assert there.keys() == {ids["kvm2"], ids["kvm2_NUMA0"], ids["kvm2_NUMA1"]}
    # Where it was, its migration holds what is the host's, and its agent chooses cells anew when it comes back.
    [migration] = get(cloud, f"/resource_providers/{ids['kvm1']}/allocations")["allocations"]
    assert get(cloud, f"/allocations/{migration}")["allocations"].keys() == {ids["kvm1"]}
    assert sum(usages(cloud, "kvm1_NUMA0").values()) == 0
    act(cloud.admin, server, "revertResize", None, "ACTIVE")
    heard(cloud, {"kvm1": {server}})


def test_candidates_see_cells(cloud: Inside, server: str) -> None:
    def of(*names: str, **amounts: int) -> list[dict[str, dict[str, int]]]:
        return [{name: amounts} for name in names]
    # What is asked of hosts they give, as before.
    assert candidates(cloud, "resources=PCPU:2,MEMORY_MB:64") == of("kvm1", "kvm2", PCPU=2, MEMORY_MB=64)
    assert candidates(cloud, "resources=VCPU:1&required=HW_NUMA_ROOT") == []
    threads = "resources_C=NUMA_THREAD:3&required_C=HW_NUMA_ROOT"
    assert candidates(cloud, threads) == of("kvm2_NUMA0", "kvm2_NUMA1", NUMA_THREAD=3)  # two are left on kvm1
    assert candidates(cloud, f"{threads}&in_tree_C={ids_of(cloud)['kvm1']}") == []
    assert candidates(cloud, "resources=NUMA_THREAD:3", "1.28") == of("kvm2_NUMA0", "kvm2_NUMA1", NUMA_THREAD=3)
    both = f"resources_A=NUMA_THREAD:2&resources_B=NUMA_THREAD:2,{PAGES}:496&group_policy="
    cell = {"NUMA_THREAD": 2}
    on_two = [{f"{host}_NUMA{a}": cell, f"{host}_NUMA{b}": {**cell, PAGES: 496}} for host in ("kvm1", "kvm2")
              for a, b in ((0, 1), (1, 0))]
    assert candidates(cloud, f"{both}isolate") == on_two
    assert candidates(cloud, f"{both}none") == on_two  # no cell has four
    assert candidates(cloud, f"{both}isolate&same_subtree=_A,_B") == []
    rooted = f"{both}isolate&resources_R=VCPU:1&required_R=COMPUTE_NODE&same_subtree=_A,_B,_R"
    assert candidates(cloud, rooted) == [{host: {"VCPU": 1}, **one} for host, one in zip(
        ("kvm1", "kvm1", "kvm2", "kvm2"), on_two, strict=True)]
    shown = get(cloud, "/allocation_candidates?resources=VCPU:1&limit=1")["provider_summaries"]
    assert shown[ids_of(cloud)["kvm1_NUMA0"]] == {
        "resources": {"NUMA_THREAD": {"capacity": 3, "used": 1}, "NUMA_MEMORY_MB": {"capacity": 2048, "used": 0},
                      PAGES: {"capacity": 512, "used": 16}},
        "traits": ["HW_NUMA_ROOT"], "parent_provider_uuid": ids_of(cloud)["kvm1"],
        "root_provider_uuid": ids_of(cloud)["kvm1"]}


@pytest.mark.parametrize("query", ["resources=VCPU:1,MEMORY_MB:64",
                                   "resources_C=NUMA_THREAD:1&required_C=HW_NUMA_ROOT"])
def test_candidates_ask_no_more_than_before(cloud: Inside, query: str) -> None:
    asked: list[str] = []

    def note(*given: Any) -> None:
        asked.append(given[2])
    engine = cloud.parts.working.store.api.reading
    event.listen(engine, "before_cursor_execute", note)
    try:
        get(cloud, f"/allocation_candidates?{query}")
    finally:
        event.remove(engine, "before_cursor_execute", note)
    tables = ("hosts", "aggregate", "inventories", "allocations", "resource_classes", "traits")
    assert len([one for one in asked if any(f"FROM {name}" in one for name in tables)]) <= 5, asked


def test_nobody_changes_cells_by_hand(cloud: Inside, server: str) -> None:
    ids = ids_of(cloud)
    cell, told = ids["kvm1_NUMA0"], "is a NUMA cell of host kvm1"
    held = get(cloud, f"/allocations/{server}")
    put = {name: held[name] for name in (
        "allocations", "project_id", "user_id", "consumer_type", "consumer_generation")}
    assert call(cloud, "PUT", f"/allocations/{server}", put).status == 204  # all of it as it is
    put["consumer_generation"] += 1
    for wrong in ({**put["allocations"], cell: {"resources": {"NUMA_THREAD": 3}}},
                  {id: one for id, one in put["allocations"].items() if id != cell}):
        reply = call(cloud, "PUT", f"/allocations/{server}", {**put, "allocations": wrong})
        assert reply.status == 400 and told in reply.json["errors"][0]["detail"] and f"16 {PAGES}" in str(reply.json)
    other = {"allocations": {cell: {"resources": {"NUMA_THREAD": 1}}}, "project_id": "p", "user_id": "u",
             "consumer_type": "TEST", "consumer_generation": None}
    reply = call(cloud, "PUT", "/allocations/00000000-0000-4000-8000-000000000001", other)
    assert reply.status == 400 and "has nothing" in reply.json["errors"][0]["detail"]
    for verb, path, body in (
            ("PUT", "/traits", {"resource_provider_generation": 1, "traits": []}),
            ("PUT", "/aggregates", {"resource_provider_generation": 1, "aggregates": []}),
            ("PUT", "/inventories/NUMA_THREAD", {"resource_provider_generation": 1, "total": 4})):
        reply = call(cloud, verb, f"/resource_providers/{cell}{path}", body)
        assert reply.status == 400 and "cannot be changed here" in reply.json["errors"][0]["detail"]
    assert call(cloud, "DELETE", "/resource_classes/NUMA_THREAD").status == 400
    assert call(cloud, "DELETE", f"/resource_classes/{PAGES}").status == 409


def test_a_flavor_asks_for_pages_otherwise(cloud: Inside) -> None:
    reply = cloud.admin.post("/v2.1/servers", {"server": {
        "name": "p", "flavorRef": "pages", "imageRef": cloud.admin.image(), "networks": "none"}}, "2.74")
    assert reply.status == 400 and "hw:mem_page_size" in reply.json["badRequest"]["message"]
