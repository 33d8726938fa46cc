# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent memory in a cloud: claimed by label, chosen by hosts, and free again. The namespaces are files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.control.hardware import act
from tests.unit.control.moves.clouds import at, check, remove
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow
#: Files of each host.
SMALL = {"kvm1": 2, "kvm2": 1, "kvm3": 0}
CLASS = "CUSTOM_PMEM_NAMESPACE_SMALL"


class Equipped(Inside):
    """Hosts with namespaces."""

    def agent_of(self, name: str) -> dict[str, Any]:
        paths = [self.folder / f"{name}-pmem{number}" for number in range(SMALL[name])]
        for path in paths:
            with path.open("wb") as file:
                file.truncate(8 << 20)
        return {"pmem_namespaces": {"small": [str(path) for path in paths]} if paths else {}}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Equipped]:
    with Equipped(hosts=3, host_down_after=600.0) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        for name, specs in (("one", {"hw:pmem": "small"}), ("two", {"hw:pmem": "small,small"}), ("plain", {}),
                            ("other", {"hw:pmem": "small,huge"}), ("raw", {f"resources:{CLASS}": "1"})):
            made.admin.flavor(name, specs)
        made.admin.image()
        yield made


@pytest.fixture
def ids(cloud: Equipped) -> Iterator[list[str]]:
    found = list[str]()
    yield found
    remove(cloud, found)
    assert sum(used(cloud).values()) == 0


def used(cloud: Equipped) -> dict[str, int]:
    """How many are claimed, by host, as Placement tells."""
    with cloud.parts.api_database.read() as connection:
        return dict(connection.exec_driver_sql(
            f"SELECT name, used FROM inventories JOIN hosts ON hosts.id = host_id WHERE resource_class = '{CLASS}'"
        ).tuples().all())


def test_the_last_one_is_one_server_s(cloud: Equipped, ids: list[str]) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: cloud.admin.boot(f"p{n}", flavorRef="one", networks="none"), range(4)))
    ids += [one["id"] for one in made]
    assert sorted(one["status"] for one in made) == ["ACTIVE"] * 3 + ["ERROR"]
    assert used(cloud) == {"kvm1": 2, "kvm2": 1}
    had = [name for one in made if one["status"] == "ACTIVE"
           for found in at(cloud, one["id"]).values() for name in found["pmem_namespaces"]]
    assert len(set(had)) == 3
    [failed] = [one for one in made if one["status"] == "ERROR"]
    assert f"{CLASS} left for one server" in str(failed["fault"]), failed["fault"]


def test_two_of_one_host(cloud: Equipped, ids: list[str]) -> None:
    made = cloud.admin.boot("two", flavorRef="two", networks="none")
    ids.append(made["id"])
    found = check(cloud, made["id"])
    assert (found["host"], len(found["pmem_namespaces"])) == ("kvm1", 2)
    assert found["hardware"] == {"pmem": "small,small"}


def test_it_goes_cold_only(cloud: Equipped, ids: list[str]) -> None:
    made = cloud.admin.boot("cold", "2.74", flavorRef="one", networks="none", host="kvm1")
    ids.append(made["id"])
    for action, args in (("os-migrateLive", {"host": None, "block_migration": False, "disk_over_commit": False}),
                         ("suspend", None)):
        reply = cloud.admin.act(made["id"], action, args)
        assert reply.status == 409 and "which has persistent memory (hw:pmem)" in str(reply.json), reply
    act(cloud.admin, made["id"], "migrate", None, "VERIFY_RESIZE")
    assert used(cloud) == {"kvm1": 1, "kvm2": 1}
    act(cloud.admin, made["id"], "confirmResize", None, "ACTIVE")
    found = check(cloud, made["id"])
    assert found["host"] == "kvm2" and found["pmem_namespaces"] == [str(cloud.folder / "kvm2-pmem0")]
    assert used(cloud) == {"kvm1": 0, "kvm2": 1}


@pytest.mark.parametrize(("flavor", "why"), [
    ("other", "persistent memory (hw:pmem) with the label huge, which no host has"),
    ("raw", "a server gets them by the extra spec hw:pmem")])
def test_what_nobody_gets(cloud: Equipped, flavor: str, why: str) -> None:
    body = {"name": "odd", "flavorRef": flavor, "networks": "none", "imageRef": cloud.admin.image()}
    reply = cloud.admin.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400 and why in str(reply.json), reply
