# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices in a cloud: claimed, chosen by hosts (whose sysfs is made up), moved, and free again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_control.store.hosts import hosts
from tests.support.agent.pci import GPU, device
from tests.support.control.hardware import act
from tests.support.waiting import eventually
from tests.unit.control.evacuate.evacuating import Evacuating
from tests.unit.control.moves.clouds import check, claims, remove
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow

#: How many GPUs each host has.
GPUS = {"kvm1": 2, "kvm2": 1, "kvm3": 0}


class Equipped(Inside):
    """With GPUs, at other addresses of each host."""

    def agent_of(self, name: str) -> dict[str, Any]:
        sysfs = self.folder / f"{name}-sys"
        for at in range(GPUS[name]):
            device(sysfs, f"0000:{name[-1]}{at}:00.0", GPU)
        kind = {"vendor_id": GPU[0], "product_id": GPU[1]}
        return {"sysfs": sysfs, "pci_device_spec": [kind],
                "pci_alias": [{"name": "gpu", **kind}] if GPUS[name] else []}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Equipped]:
    with Equipped(hosts=3, host_down_after=600.0, allow_resize_to_same_host=True) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        for name, ram, aliases in (("gpu", 64, "gpu:1"), ("gpu-large", 128, "gpu:1"), ("both", 64, "gpu:2"),
                                   ("plain", 64, ""), ("odd", 64, "gpu:1,fpga:1")):
            made.admin.flavor(name, {"pci_passthrough:alias": aliases} if aliases else {}, ram=ram)
        made.admin.image()
        yield made


class Servers:
    """Servers that go with the test."""

    def __init__(self, cloud: Equipped) -> None:
        self.cloud, self.ids = cloud, list[str]()

    def make(self, flavor: str, host: str = "", status: str = "ACTIVE") -> str:
        """A server, on that host where one is named."""
        where = {"host": host} if host else {}
        made = self.cloud.admin.boot(f"web{len(self.ids)}", "2.74", flavorRef=flavor, networks="none", **where)
        self.ids.append(made["id"])
        assert made["status"] == status, made
        return str(made["id"])

    def has(self, id: str, waits: bool = False) -> tuple[str, list[str]]:
        """Its host, and the addresses of its devices; what is claimed is what it has."""
        found = check(self.cloud, id, waits)
        host = claims(self.cloud, id)["server"][0]
        assert len(ET.fromstring(self.cloud.kvm[host].fake.xml(id)).findall("devices/hostdev")) == len(
            found["pci_devices"])
        return host, sorted(found["pci_devices"])


@pytest.fixture
def servers(cloud: Equipped) -> Iterator[Servers]:
    found = Servers(cloud)
    yield found
    remove(cloud, found.ids)


def free(cloud: Equipped) -> dict[str, int]:
    """How many GPUs hosts say that are free."""
    return {name: found["gpu"]["free"] for name, kvm in cloud.kvm.items()
            if (found := kvm.side().host["pci_devices"])}


def test_the_last_device_is_one_server_s(cloud: Equipped, servers: Servers) -> None:
    with ThreadPoolExecutor(5) as threads:
        made = list(threads.map(lambda at: cloud.admin.boot(f"gpu{at}", flavorRef="gpu", networks="none"), range(5)))
    servers.ids += [one["id"] for one in made]
    assert sorted(one["status"] for one in made) == ["ACTIVE"] * 3 + ["ERROR"] * 2
    had = [servers.has(one["id"]) for one in made if one["status"] == "ACTIVE"]
    assert sorted(address for _host, [address] in had) == ["0000:10:00.0", "0000:11:00.0", "0000:20:00.0"]
    assert free(cloud) == {"kvm1": 0, "kvm2": 0}


def test_an_alias_that_nobody_knows(cloud: Equipped) -> None:
    body = {"name": "odd", "flavorRef": "odd", "networks": "none", "imageRef": cloud.admin.image()}
    reply = cloud.admin.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400
    assert reply.json["badRequest"]["message"].startswith(
        "PCI alias fpga is not defined: flavor odd asks for it (pci_passthrough:alias), and no host knows it; they "
        "know gpu.")
    assert cloud.admin.get("/v2.1/servers?name=odd").json["servers"] == []


def test_a_resize_to_an_alias_that_nobody_knows(cloud: Equipped, servers: Servers) -> None:
    id = servers.make("plain")
    reply = cloud.admin.act(id, "resize", {"flavorRef": "odd"})
    assert reply.status == 400 and "PCI alias fpga is not defined" in reply.json["badRequest"]["message"]


def test_administrators_read_what_is_lacking(cloud: Equipped, servers: Servers) -> None:
    servers.make("gpu", "kvm1")

    def fault() -> str:
        """Return the fault of another server."""
        servers.make("both", status="ERROR")
        return cloud.admin.server(servers.ids[-1])["fault"]["details"]

    # Until the host tells again, a claim counts beside what it has told.
    eventually(lambda: "PCI devices of alias gpu: the server needs 2, and 1 of 2 are free" in fault())


def test_a_resize_on_the_same_host_keeps_the_device(cloud: Equipped, servers: Servers) -> None:
    servers.make("both", "kvm1")
    id = servers.make("gpu", "kvm2")
    act(cloud.admin, id, "resize", {"flavorRef": "gpu-large"}, "VERIFY_RESIZE")
    assert servers.has(id, waits=True) == ("kvm2", ["0000:20:00.0"])
    act(cloud.admin, id, "revertResize", None, "ACTIVE")
    assert servers.has(id) == ("kvm2", ["0000:20:00.0"])
    act(cloud.admin, id, "resize", {"flavorRef": "gpu-large"}, "VERIFY_RESIZE")
    act(cloud.admin, id, "confirmResize", None, "ACTIVE")
    assert servers.has(id) == ("kvm2", ["0000:20:00.0"]) and free(cloud) == {"kvm1": 0, "kvm2": 0}


def test_a_server_gets_devices_that_its_host_lacks(cloud: Equipped, servers: Servers) -> None:
    servers.make("gpu", "kvm2")
    id = servers.make("plain", "kvm3")
    act(cloud.admin, id, "resize", {"flavorRef": "both"}, "VERIFY_RESIZE")
    assert servers.has(id, waits=True) == ("kvm1", ["0000:10:00.0", "0000:11:00.0"])
    act(cloud.admin, id, "revertResize", None, "ACTIVE")
    assert servers.has(id) == ("kvm3", []) and free(cloud) == {"kvm1": 2, "kvm2": 0}


def test_a_server_gives_its_devices_up_for_a_host_without(cloud: Equipped, servers: Servers) -> None:
    id = servers.make("gpu", "kvm2")
    for name in ("kvm1", "kvm2"):
        with cloud.parts.api_database.write() as connection:
            hosts.update_host_row(connection, name, disabled=True)
        cloud.parts.working.read_host(name)
    try:
        act(cloud.admin, id, "resize", {"flavorRef": "plain"}, "VERIFY_RESIZE")
        assert servers.has(id, waits=True) == ("kvm3", [])
    finally:
        for name in ("kvm1", "kvm2"):
            with cloud.parts.api_database.write() as connection:
                hosts.update_host_row(connection, name, disabled=False)
            cloud.parts.working.read_host(name)
    servers.make("gpu", "kvm1")
    servers.make("gpu", "kvm1")
    servers.make("gpu", status="ERROR")  # kvm2's is kept for the way back
    act(cloud.admin, id, "revertResize", None, "ACTIVE")
    assert servers.has(id) == ("kvm2", ["0000:20:00.0"])


def test_a_cold_move_gives_it_a_device_of_the_other_host(cloud: Equipped, servers: Servers) -> None:
    id = servers.make("gpu", "kvm1")
    act(cloud.admin, id, "migrate", None, "VERIFY_RESIZE")
    assert servers.has(id, waits=True) == ("kvm2", ["0000:20:00.0"])
    act(cloud.admin, id, "confirmResize", None, "ACTIVE")
    assert free(cloud) == {"kvm1": 2, "kvm2": 0}


def test_it_is_not_asked_to_be_suspended(cloud: Equipped, servers: Servers) -> None:
    """Which its host would refuse later."""
    reply = cloud.admin.act(servers.make("gpu"), "suspend", None)
    assert reply.status == 409 and "PCI devices (pci_passthrough:alias), whose state cannot be saved. Stop it" in str(
        reply.json), reply


def test_a_rebuild_keeps_the_device(cloud: Equipped, servers: Servers) -> None:
    id = servers.make("gpu", "kvm2")
    act(cloud.admin, id, "rebuild", {"imageRef": cloud.admin.image("other")}, "ACTIVE")
    assert servers.has(id) == ("kvm2", ["0000:20:00.0"])


def test_a_shelved_server_gives_its_device_up(cloud: Equipped, servers: Servers) -> None:
    id = servers.make("gpu", "kvm2")
    act(cloud.admin, id, "shelve", None, "SHELVED_OFFLOADED")
    assert free(cloud) == {"kvm1": 2, "kvm2": 1}
    servers.make("gpu", "kvm2")
    act(cloud.admin, id, "unshelve", None, "ACTIVE")
    assert servers.has(id) == ("kvm1", ["0000:10:00.0"])


def test_an_evacuated_server_gets_another_device(cloud: Equipped, servers: Servers) -> None:
    admin = Evacuating(cloud)
    id = servers.make("gpu", "kvm2")
    admin.down("kvm2")
    try:
        assert admin.evacuate(id, "2.90").status == 200
        found = cloud.admin.settled(id)
        assert found and found["status"] == "ACTIVE", found
        assert claims(cloud, id)["server"][0] == "kvm1"
    finally:
        admin.up("kvm2")
    eventually(lambda: free(cloud) == {"kvm1": 1, "kvm2": 1})
    eventually(lambda: "migration" not in claims(cloud, id))
    assert servers.has(id) == ("kvm1", ["0000:10:00.0"])
