# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of pci providers."""

from __future__ import annotations

from typing import Any

from tests.support.agent.pci import GPU, device
from tests.support.agent.pci_providers import physical
from tests.support.control.placement import call
from tests.unit.control.moves.inside import Inside

GPU_CLASS, VF_CLASS = "CUSTOM_PCI_10DE_1EB8", "CUSTOM_FAST_NIC"
#: Number of GPUs of each host; kvm1 also has a NIC with two virtual functions.
GPUS = {"kvm1": 2, "kvm2": 1}


class Equipped(Inside):
    def agent_of(self, name: str) -> dict[str, Any]:
        sysfs = self.folder / f"{name}-sys"
        for at in range(GPUS[name]):
            device(sysfs, f"0000:{name[-1]}{at}:00.0", GPU, 0)
        if name == "kvm1":
            physical(sysfs, 2)
        return {"sysfs": sysfs, "pci_device_spec": [
            {"vendor_id": GPU[0], "traits": "nvlink", "live_migratable": True},
            {"vendor_id": "8086", "resource_class": "fast-nic"}],
            "pci_alias": [{"name": "gpu", "resource_class": GPU_CLASS, "traits": "nvlink", "live_migratable": True},
                          {"name": "vf", "resource_class": "fast-nic", "device_type": "type-VF"}]}


def get(cloud: Equipped, path: str, version: str = "1.39") -> Any:
    reply = call(cloud, "GET", path, version=version)
    assert reply.status == 200, reply
    return reply.json


def ids_of(cloud: Equipped) -> dict[str, str]:
    return {one["name"]: one["uuid"] for one in get(cloud, "/resource_providers")["resource_providers"]}


def candidates(cloud: Equipped, query: str, version: str = "1.39") -> list[dict[str, dict[str, int]]]:
    names = {id: name for name, id in ids_of(cloud).items()}
    found = get(cloud, f"/allocation_candidates?{query}", version)["allocation_requests"]
    return [{names[id]: one["resources"] for id, one in each["allocations"].items()} for each in found]
