# SPDX-License-Identifier: GPL-3.0-or-later
"""Dedicated CPUs, NUMA cells and pages of a host: who gets which, when they are free again, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import inventory
from magnetar_agent.servers import guest_data
from magnetar_agent.servers.hardware import placement
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.host.capabilities import host_cells
from magnetar_core.errors import Conflict, InvalidField, InvalidSettings, MagnetarError
from magnetar_core.hardware import numa_providers
from magnetar_core.hardware.cpus import cpu_set
from magnetar_core.hardware.numa import HostCell, held_cpus
from tests.support.agent.pair import WAY, Kvm, Pair
from tests.support.agent.placement import CELLS, placed
from tests.unit.agent.conftest import Host, made_at_once

TWO = {"vcpus": 2, "ram": 256}
PINNED = {"flavor": TWO, "hardware": {"cpu_policy": "dedicated"}, "image": None}
SETTINGS: dict[str, Any] = {"cpu_dedicated_set": "1-3,5-7", "cpu_shared_set": "0,4"}


@pytest.fixture(autouse=True)
def two_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of these tests have two cells."""
    monkeypatch.setattr(FakeHypervisor, "cells", CELLS)


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Host]:
    """A host that keeps CPUs for dedicated use."""
    host = Host(tmp_path, **SETTINGS)
    host.start()
    yield host
    host.agent.close()


def domain(host: Host | Kvm, name: str = "web1") -> ET.Element:
    """What libvirt has of a server."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    return ET.fromstring(host.fake.xml(document.id))


def pins(root: ET.Element) -> list[str]:
    """Where each virtual CPU is."""
    return [one.get("cpuset", "") for one in root.iterfind("cputune/vcpupin")]


def cpuset(root: ET.Element) -> str:
    """Where the others are."""
    found = root.find("vcpu")
    assert found is not None
    return found.get("cpuset", "")


def told(host: Host) -> list[dict[str, Any]]:
    """What the host says is free."""
    return [one["free"] for one in inventory.host_usage(host.agent.host)["numa_cells"]]


# Who gets what ------------------------------------------------------------------------------------------------------
def test_a_server_has_cpus_for_itself(big: Host) -> None:
    big.ensure("server", "web1", PINNED)
    root = domain(big)
    assert pins(root) == ["1", "2"] and held_cpus(placed(big)) == {1, 2} and cpuset(root) == "0,4"
    assert [one.get("nodeset") for one in root.iterfind("numatune/memnode")] == ["0"]
    assert not big.ensure("server", "web1", PINNED).changed
    assert not big.ensure("server", "web1", {"power": "running"}).changed
    assert big.show()["hardware"] == {"cpu_policy": "dedicated"}
    document = big.agent.host.documents.find("server", "web1")
    assert document is not None and guest_data.build_guest(big.agent.host, document).dedicated_cpus == (0, 1)


def test_the_others_keep_off_them(big: Host) -> None:
    big.server("plain")
    assert cpuset(domain(big, "plain")) == "0,4"
    big.settings["cpu_shared_set"] = "0"
    big.restart()
    assert cpuset(domain(big, "plain")) == "0"


def test_a_host_without_such_settings_is_as_it_was(host: Host) -> None:
    host.server("plain")
    root = domain(host, "plain")
    assert cpuset(root) == "" and root.find("cputune") is None and root.find("numatune") is None
    seen = inventory.host_usage(host.agent.host)
    assert (seen["vcpus"], seen["pcpus"]) == (8, 0)


def test_what_is_free_is_told_and_given_again(big: Host) -> None:
    seen = inventory.host_usage(big.agent.host)
    assert (seen["vcpus"], seen["pcpus"]) == (2, 6)
    assert [one["cpus_dedicated"] for one in told(big)] == ["1-3", "5-7"]
    for at in range(2):
        big.ensure("server", f"web{at}", PINNED)
    assert [one["cpus_dedicated"] for one in told(big)] == ["3", "7"]
    with pytest.raises(Conflict, match="it needs 2 dedicated CPUs in a cell, and 1 are free there"):
        big.ensure("server", "web2", PINNED)
    big.ensure("server", "web0", None)
    assert [one["cpus_dedicated"] for one in told(big)] == ["1-3", "7"]
    big.ensure("server", "web2", PINNED)


def test_numa_cells_and_pages(big: Host) -> None:
    big.ensure("server", "web1", {**PINNED, "hardware": {
        "cpu_policy": "mixed", "cpu_dedicated_mask": "0", "numa_nodes": 2, "mem_page_size": "large",
        "locked_memory": True, "emulator_threads": "isolate"}})
    root = domain(big)
    assert [one.get("memory") for one in root.iterfind("cpu/numa/cell")] == ["128", "128"]
    assert pins(root) == ["1", "4"] and root.find("cputune/emulatorpin").get(
        "cpuset") == "2"  # type: ignore[union-attr]
    assert [one.get("size") for one in root.iterfind("memoryBacking/hugepages/page")] == ["2048", "2048"]
    assert root.find("memoryBacking/locked") is not None
    assert [one["pages"] for one in told(big)] == [{"2048": 448}, {"2048": 448}]
    assert [one["memory_mb"] for one in told(big)] == [2048, 2048]


def test_reserved_pages_are_nobody_s(tmp_path: Path) -> None:
    host = Host(tmp_path, **SETTINGS, reserved_huge_pages={0: {2048: 500}, 1: {2048: 512}})
    host.start()
    with pytest.raises(Conflict, match="free in the cell are: 0 of 2048 KiB|free in the cell are: 12 of 2048 KiB"):
        host.ensure("server", "web1", {**PINNED, "hardware": {"mem_page_size": "2MB", "cpu_policy": "dedicated"}})
    host.agent.close()


def test_two_that_start_at_once_never_have_the_same(big: Host) -> None:
    done = made_at_once(big, PINNED, 8)
    assert sum(done) == 2
    had = [held_cpus(placed(big, f"web{at}")) for at, well in enumerate(done) if well]
    assert len(frozenset().union(*had)) == 4 and len(big.agent.host.documents.list("server")) == 2


# Changes ------------------------------------------------------------------------------------------------------------
def test_a_resize_holds_both_until_the_guest_is_off(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    big.ensure("server", "web1", PINNED)
    during: list[dict[str, Any]] = []
    shutdown = FakeHypervisor.shutdown

    def stop(fake: FakeHypervisor, uuid: str) -> None:
        during.append(placed(big))
        shutdown(fake, uuid)
    monkeypatch.setattr(FakeHypervisor, "shutdown", stop)
    big.ensure("server", "web1", {"flavor": {"vcpus": 3, "ram": 256}}, allow_reboot=True)
    assert held_cpus(during[0][placement.BEFORE]) == {1, 2} and held_cpus(during[0]) == {1, 2, 3}
    assert placement.BEFORE not in placed(big) and pins(domain(big)) == ["1", "2", "3"]
    big.ensure("server", "web1", {"hardware": {}}, allow_reboot=True)
    assert during[1] == {"cells": [], placement.BEFORE: {**placed_without(during[1])}}
    document = big.agent.host.documents.find("server", "web1")
    assert document and placement.FIELD not in document.want and pins(domain(big)) == []
    assert [one["cpus_dedicated"] for one in told(big)] == ["1-3", "5-7"]


def placed_without(found: dict[str, Any]) -> dict[str, Any]:
    """What is held of before."""
    before: dict[str, Any] = found[placement.BEFORE]
    assert held_cpus(before) == {1, 2, 3}
    return before


def test_a_dry_run_tells_it_and_takes_nothing(big: Host) -> None:
    assert big.ensure("server", "web1", PINNED, dry_run=True).changed
    assert [one["cpus_dedicated"] for one in told(big)] == ["1-3", "5-7"]
    with pytest.raises(Conflict, match="it needs 4 dedicated CPUs in a cell, and 3 are free there"):
        big.ensure("server", "web1", {**PINNED, "flavor": {"vcpus": 4, "ram": 64}}, dry_run=True)


@pytest.mark.parametrize(("hardware", "field", "why"), [
    ({"cpu_policy": "mixed", "cpu_dedicated_mask": "0-2"}, "hardware.cpu_dedicated_mask", "0 to 1"),
    ({"numa_nodes": 2, "numa_cpus": ["0", "1"], "numa_mem": [1, 2]}, "hardware.numa_mem", "add up to the 256 MiB"),
    ({"mem_page_size": "lots"}, "hardware.mem_page_size", "must be small, large, any"),
    ({"numa_nodes": 2, "numa_cpus": ["0", "1,x"], "numa_mem": [1, 2]}, "hardware.numa_cpus[1]", "list of CPUs")],
    ids=str)
def test_what_makes_no_sense_is_refused(big: Host, hardware: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(InvalidField, match=why) as refused:
        big.ensure("server", "web1", {**PINNED, "hardware": hardware})
    assert refused.value.details["field"] == field
    assert big.agent.host.documents.find("server", "web1") is None


def test_a_host_without_dedicated_cpus_says_so(host: Host) -> None:
    with pytest.raises(Conflict, match="has no dedicated CPUs. Name some in its agent's setting cpu_dedicated_set"):
        host.ensure("server", "web1", PINNED)
    with pytest.raises(Conflict, match="mem_page_size 4096 KiB, and free in the cell are: 512 of 2048 KiB"):
        host.ensure("server", "web1", {**PINNED, "hardware": {"mem_page_size": "4MB"}})
    assert host.agent.host.documents.find("server", "web1") is None


# A host that has less -----------------------------------------------------------------------------------------------
def test_a_host_with_other_cpus_gives_others_at_the_next_start(big: Host) -> None:
    big.ensure("server", "web1", {**PINNED, "power": "off"})
    big.settings["cpu_dedicated_set"] = "2-3,5-7"
    big.restart()
    big.ensure("server", "web1", {"power": "running"})
    assert pins(domain(big)) == ["2", "3"] and held_cpus(placed(big)) == {2, 3}


def test_a_host_with_too_few_cpus_refuses_the_start_and_keeps_the_server(
        big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    big.ensure("server", "web1", PINNED)
    big.ensure("server", "web2", PINNED)
    big.goes_down()
    monkeypatch.setattr(FakeHypervisor, "cells", (CELLS[0]._replace(shared=frozenset((0, 1, 2, 3))),))
    monkeypatch.setattr("magnetar_agent.host.power_sync.boot_id", lambda: "another")
    big.restart()
    assert pins(domain(big)) == ["1", "2"] and big.show("web1")["power_state"] == "running"
    with pytest.raises(Conflict, match="it needs 2 dedicated CPUs, and 1 are free"):
        big.ensure("server", "web2", {"power": "running"})
    assert big.show("web2")["power_state"] == "off" and held_cpus(placed(big, "web2")) == {5, 6}
    monkeypatch.setattr(FakeHypervisor, "cells", CELLS)
    big.ensure("server", "web2", {"power": "running"})
    assert pins(domain(big, "web2")) == ["5", "6"]


def test_saved_memory_is_bound_to_its_cpus(big: Host) -> None:
    big.ensure("server", "web1", {**PINNED, "power": "suspended"})
    big.settings["cpu_dedicated_set"] = "2-3,5-7"
    big.restart()
    with pytest.raises(Conflict, match="bound to CPUs and pages that it cannot have any more: CPUs 1"):
        big.ensure("server", "web1", {"power": "running"})
    assert big.show()["power_state"] == "suspended"


# Moves --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def pinned(pair: Pair) -> Pair:
    """Two hosts that keep different CPUs for dedicated use."""
    for kvm, text in ((pair.one, "1-3"), (pair.two, "5-7")):
        object.__setattr__(kvm.agent.host.settings, "cpu_dedicated_set", text)
        object.__setattr__(kvm.agent.host.settings, "cpu_shared_set", "0" if kvm is pair.one else "4")
    return pair


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_move_gives_it_those_of_the_other_host(pinned: Pair, kind: str) -> None:
    id = pinned.make(**{name: PINNED[name] for name in ("flavor", "hardware")})
    assert pins(domain(pinned.one)) == ["1", "2"]
    assert pinned.migrate(type=kind) == WAY
    assert held_cpus(placed(pinned.two)) == {5, 6} and pins(domain(pinned.two)) == ["5", "6"]
    live = pinned.two.fake.running(id)
    assert live and live.cpuset == "4"
    assert pins(ET.fromstring(pinned.two.fake._domains[id].live)) == ["5", "6"]
    assert list(placement.held_placements(pinned.one.agent.host)) == []


def test_a_target_without_room_refuses_before_anything_moves(pinned: Pair) -> None:
    pinned.two.side().client.ensure("server", "other", {**PINNED, "networks": []})
    id = pinned.make(flavor=TWO, hardware={"cpu_policy": "dedicated"})
    with pytest.raises(MagnetarError, match="it needs 2 dedicated CPUs, and 1 are free"):
        pinned.migrate()
    pinned.check(id, pinned.one)


def test_what_is_on_its_way_holds_its_cpus(pinned: Pair) -> None:
    id = pinned.make(flavor=TWO, hardware={"cpu_policy": "dedicated"})
    pinned.two.fake.fail_next("permit", MagnetarError("no"))
    with pytest.raises(MagnetarError):
        pinned.migrate(type="cold")
    assert [held_cpus(one) for one in placement.held_placements(pinned.two.agent.host)] == [{5, 6}]
    with pytest.raises(Conflict, match="1 are free"):
        pinned.two.side().client.ensure("server", "other", {**PINNED, "networks": []})
    pinned.migrate(type="cold")
    pinned.check(id, pinned.two)


# Settings and the host ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("settings", "why"), [
    ({"cpu_dedicated_set": "1-x"}, "cpu_dedicated_set: must be a list of CPUs"),
    ({"cpu_dedicated_set": "1-3", "cpu_shared_set": "3-4"}, "must not name CPUs of cpu_dedicated_set: 3"),
    ({"reserved_huge_pages": {"0": {"2048": 1}}}, "must be a mapping of NUMA cells")], ids=str)
def test_settings_that_make_no_sense(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        AgentSettings(**settings)


def test_cells_as_libvirt_tells_them() -> None:
    root = ET.fromstring("""<capabilities><host><topology><cells num="2">
      <cell id="1"><memory unit="KiB">2097152</memory><pages unit="KiB" size="4">1</pages>
        <pages unit="KiB" size="2048">7</pages><cpus num="2">
        <cpu id="1" socket_id="0" die_id="0" core_id="1" siblings="1,3"/>
        <cpu id="3" socket_id="0" die_id="0" core_id="1" siblings="1,3"/></cpus></cell>
      <cell id="0"><memory unit="KiB">1048576</memory><cpus num="1">
        <cpu id="0" socket_id="0" die_id="0" core_id="0" siblings="0"/></cpus></cell>
    </cells></topology></host></capabilities>""")
    assert host_cells(root) == [
        HostCell(0, frozenset(), frozenset([0]), 1024, {}, (frozenset([0]),), frozenset([0])),
        HostCell(1, frozenset(), frozenset([1, 3]), 2048, {2048: 7}, (frozenset([1, 3]),), frozenset([0]))]
    assert host_cells(ET.fromstring("<capabilities/>"))[0].shared


def test_cpus_in_real_time(big: Host) -> None:
    fast = {"flavor": {"vcpus": 2, "ram": 64}, "hardware": {"cpu_realtime": True, "emulator_threads": "share"}}
    big.settings["realtime_scheduler_priority"] = 5
    big.restart()
    with pytest.raises(Conflict, match=r"hardware.emulator_threads: host .* has no shared CPUs .* cpu_shared_set"):
        big.settings["cpu_shared_set"] = None
        big.restart()
        big.ensure("server", "web1", fast)
    big.settings["cpu_shared_set"] = "0,4"
    big.restart()
    made = big.ensure("server", "web1", fast).resource
    assert made and made["hardware"] == {"cpu_policy": "dedicated", **fast["hardware"]}
    scheduler = domain(big).find("cputune/vcpusched")
    assert scheduler is not None and scheduler.attrib == {"vcpus": "0-1", "scheduler": "fifo", "priority": "5"}
    assert not big.ensure("server", "web1", fast).changed


# Cells as providers -------------------------------------------------------------------------------------------------
def provided(host: Host) -> list[dict[str, Any]]:
    return [one for one in inventory.host_usage(host.agent.host)["providers"] if numa_providers.is_cell_provider(one)]


def test_cells_are_providers(big: Host) -> None:
    """Issue 18, section 2: dedicated CPUs, small pages and large ones of each cell, and what servers have of them."""
    def counted(total: int) -> dict[str, int]:
        return {"total": total, "reserved": 0, "max_unit": total}
    big.settings["reserved_huge_pages"] = {1: {2048: 100}}
    big.restart()
    assert provided(big) == [{
        "name": f"NUMA{at}", "parent": "", "traits": ["HW_NUMA_ROOT"], "held": {},
        "inventories": {"NUMA_THREAD": counted(3), "NUMA_MEMORY_MB": counted(2048),
                        "CUSTOM_HUGEPAGES_2048KB": counted(512 - 100 * at)}} for at in range(2)]
    big.ensure("server", "plain", {"flavor": TWO, "image": None})
    assert [one["held"] for one in provided(big)] == [{}, {}]
    big.ensure("server", "web1", PINNED)
    big.ensure("server", "web2", {"flavor": {"vcpus": 2, "ram": 512}, "image": None, "hardware": {
        "numa_nodes": 2, "cpu_policy": "dedicated", "emulator_threads": "isolate", "mem_page_size": "large"}})
    ids = {name: big.show(name)["id"] for name in ("web1", "web2")}
    found = [one["held"] for one in provided(big)]
    assert sum((Counter(one[ids["web1"]]) for one in found if ids["web1"] in one), Counter()) == {
        "NUMA_THREAD": 2, "NUMA_MEMORY_MB": 256}
    mine = [one[ids["web2"]] for one in found]
    assert sorted(one["NUMA_THREAD"] for one in mine) == [1, 2]  # one cell has QEMU's own threads, too
    assert [one["CUSTOM_HUGEPAGES_2048KB"] for one in mine] == [128, 128]
    for cell, free in zip(provided(big), told(big), strict=True):  # nothing else is free than what is not held
        used = sum(map(Counter, cell["held"].values()), Counter())
        assert cell["inventories"]["NUMA_MEMORY_MB"]["total"] - used["NUMA_MEMORY_MB"] == free["memory_mb"]
        assert cell["inventories"]["CUSTOM_HUGEPAGES_2048KB"]["total"] - used["CUSTOM_HUGEPAGES_2048KB"] == free[
            "pages"]["2048"]
        assert cell["inventories"]["NUMA_THREAD"]["total"] - used["NUMA_THREAD"] == len(cpu_set(
            free["cpus_dedicated"])) if free["cpus_dedicated"] else True
    big.ensure("server", "web1", None)
    assert all(ids["web1"] not in one["held"] for one in provided(big))


def test_a_server_that_changes_has_a_cpu_once() -> None:
    """While its guest runs on what it had, memory counts for both, and CPUs that it keeps once."""
    [cell] = numa_providers.cell_providers([HostCell(0, frozenset(range(4)), frozenset(), 1024)], {"a": [
        {"cells": [{"host": 0, "memory_mb": 64, "page": 4, "pins": {"0": 1, "1": 2}}], "emulator": 3},
        {"cells": [{"host": 0, "memory_mb": 32, "page": 4, "pins": {"0": 2}}]}]})
    assert cell["held"] == {"a": {"NUMA_THREAD": 3, "NUMA_MEMORY_MB": 96}}
    assert [numa_providers.is_cell_class(name) for name in (
        "NUMA_THREAD", "CUSTOM_HUGEPAGES_2048KB", "CUSTOM_HUGEPAGES_KB", "CUSTOM_HUGEPAGES_02KB", "PCPU")] == [
        True, True, False, False, False]
