# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices in a cloud: chosen by hosts, whose sysfs is made up, moved, and free again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .cloud import Cloud
from .moves.clouds import check
from .test_hardware import act, on_host


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Two hosts with a GPU each."""
    sysfs: Path = tmp_path_factory.mktemp("sys")
    folder = sysfs / "bus/pci/devices/0000:81:00.0"
    folder.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("device", "0x1eb8"), ("numa_node", "-1"), ("class", "0x030200")):
        (folder / name).write_text(text)
    kind = {"vendor_id": "10de", "product_id": "1eb8"}
    with Cloud(hosts=2, links=True, agent={"sysfs": str(sysfs), "pci_device_spec": [kind],
                                           "pci_alias": [{"name": "gpu", **kind}]}) as made:
        yield made


def flavor(cloud: Cloud, name: str, aliases: str) -> str:
    """A flavor that asks for devices."""
    cloud.admin.post("/v2.1/flavors", {"flavor": {"id": name, "name": name, "ram": 64, "vcpus": 1, "disk": 1}})
    reply = cloud.admin.post(f"/v2.1/flavors/{name}/os-extra_specs", {
        "extra_specs": {"pci_passthrough:alias": aliases}})
    assert reply.status == 200, reply
    return name


def test_the_last_device_is_one_server_s(cloud: Cloud) -> None:
    caller, gpu = cloud.admin, flavor(cloud, "gpu", "gpu:1")
    caller.image()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda at: caller.boot(f"gpu{at}", flavorRef=gpu, networks="none"), range(4)))
    assert sorted(one["status"] for one in made) == ["ACTIVE"] * 2 + ["ERROR"] * 2
    there = [one for one in made if one["status"] == "ACTIVE"]
    assert {check(cloud, one["id"])["host"] for one in there} == set(cloud.hosts)
    for one in made:
        caller.delete(f"/v2.1/servers/{one['id']}")


def test_a_cold_move_gives_it_the_device_of_the_other_host(cloud: Cloud) -> None:
    caller, gpu = cloud.admin, flavor(cloud, "moving", "gpu:1")
    web = caller.boot("web", flavorRef=gpu, networks="none")
    assert web["status"] == "ACTIVE", web
    home = check(cloud, web["id"])["host"]
    assert on_host(cloud, web["id"])["pci_devices"] == {"0000:81:00.0": "gpu"}
    act(caller, web["id"], "migrate", None, "VERIFY_RESIZE")
    act(caller, web["id"], "confirmResize", None, "ACTIVE")
    assert check(cloud, web["id"])["host"] != home
    assert on_host(cloud, web["id"])["pci_devices"] == {"0000:81:00.0": "gpu"}
    caller.delete(f"/v2.1/servers/{web['id']}")


def test_admins_read_what_is_lacking(cloud: Cloud) -> None:
    for aliases, why in (("fpga:1", "lacks PCI devices of alias fpga"), ("gpu:2", "of alias gpu: the server needs 2")):
        wide = cloud.admin.boot("wide", flavorRef=flavor(cloud, aliases.replace(":", "-"), aliases), networks="none")
        assert wide["status"] == "ERROR" and why in wide["fault"]["details"], wide["fault"]
        cloud.admin.delete(f"/v2.1/servers/{wide['id']}")
