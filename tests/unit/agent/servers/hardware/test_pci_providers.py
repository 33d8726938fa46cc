# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices and virtual GPUs as providers that a host tells of, and what settings call them. Its sysfs is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.api import serve
from magnetar_agent.hardware.pci import allowed_devices, check_parents, device_aliases
from magnetar_agent.host import inventory
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import InvalidSettings
from tests.support.agent.pci import GPU, device
from tests.support.agent.pci_providers import PF, VIRTUAL, physical
from tests.unit.agent.conftest import SMALL, Host


def told(host: Host) -> dict[str, dict[str, Any]]:
    """What the host tells of its providers, by name."""
    return {one["name"]: one for one in inventory.host_usage(host.agent.host)["providers"]}


def counted(total: int, reserved: int = 0) -> dict[str, int]:
    return {"total": total, "reserved": reserved, "max_unit": total}


def test_devices_are_providers(tmp_path: Path) -> None:
    """Row XPCI-08: each device is one, virtual functions are one with their parent; what nobody may have is none."""
    sysfs = tmp_path / "sys"
    device(sysfs, "0000:81:00.0", GPU, 0)
    device(sysfs, "0000:c1:00.0", GPU, 1)
    device(sysfs, "0000:41:00.0", ("1234", "5678"))
    physical(sysfs, 2)
    host = Host(tmp_path, sysfs=sysfs, pci_device_spec=[
        {"address": "0000:c1:*", "resource_class": "big gpu", "traits": "nvlink, HW_GPU_API_VULKAN"},
        {"vendor_id": GPU[0]}, {"vendor_id": "8086", "traits": "fast"}], pci_alias=[
        {"name": "gpu", "vendor_id": GPU[0], "product_id": GPU[1]},
        {"name": "vf", "resource_class": "CUSTOM_PCI_8086_1889", "device_type": "type-VF"}])
    host.start()
    try:
        host.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": "vf:2,gpu:1"}})
        held = host.show()["id"]
        found = told(host)
        assert next(iter(found)) == "NUMA0" and found.pop("NUMA0")["held"] == {}
        assert found == {
            PF: {"name": PF, "parent": "NUMA0", "traits": ["COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_FAST"],
                 "inventories": {"CUSTOM_PCI_8086_1889": counted(2)}, "held": {held: {"CUSTOM_PCI_8086_1889": 2}}},
            "0000:81:00.0": {
                "name": "0000:81:00.0", "parent": "NUMA0", "traits": ["COMPUTE_MANAGED_PCI_DEVICE"],
                "inventories": {"CUSTOM_PCI_10DE_1EB8": counted(1)}, "held": {held: {"CUSTOM_PCI_10DE_1EB8": 1}}},
            "0000:c1:00.0": {
                "name": "0000:c1:00.0", "parent": "", "inventories": {"CUSTOM_BIG_GPU": counted(1)}, "held": {},
                "traits": ["COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_NVLINK", "HW_GPU_API_VULKAN"]}}
        pools = inventory.host_usage(host.agent.host)["pci_pools"]
        assert [(one["aliases"], one["provider"], one["total"], one["free"]) for one in pools] == [
            (["gpu"], "0000:81:00.0", 1, 0), (["gpu"], "0000:c1:00.0", 1, 1), (["vf"], PF, 2, 0)]
    finally:
        host.agent.close()


def test_a_device_that_was_given_once_is_reserved(tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    device(sysfs, "0000:81:00.0", GPU, 0)
    host = Host(tmp_path, sysfs=sysfs, pci_device_spec=[{"vendor_id": GPU[0], "one_time_use": True}],
                pci_alias=[{"name": "gpu", "vendor_id": GPU[0]}])
    host.start()
    try:
        assert told(host)["0000:81:00.0"]["inventories"] == {"CUSTOM_PCI_10DE_1EB8": counted(1)}
        host.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": "gpu:1"}})
        assert inventory.host_usage(host.agent.host)["pci_devices"] == {"gpu": {"total": 1, "free": 0}}
        host.ensure("server", "web1", None)
        found = told(host)["0000:81:00.0"]
        assert found["inventories"] == {"CUSTOM_PCI_10DE_1EB8": counted(1, 1)} and found["held"] == {}
        assert inventory.host_usage(host.agent.host)["pci_devices"] == {"gpu": {"total": 0, "free": 0}}
        (host.agent.host.settings.state_dir / "used_devices/0000:81:00.0").unlink()
        assert told(host)["0000:81:00.0"]["inventories"] == {"CUSTOM_PCI_10DE_1EB8": counted(1)}
    finally:
        host.agent.close()


def test_aliases_name_devices_by_class_and_traits(tmp_path: Path) -> None:
    device(tmp_path, "0000:81:00.0", GPU)
    device(tmp_path, "0000:c1:00.0", GPU)
    aliases = [{"name": "fast", "resource_class": "gpu", "traits": "nvlink"}, {"name": "gpu", "resource_class": "gpu"},
               {"name": "kind", "vendor_id": GPU[0]}, {"name": "other", "resource_class": "fpga"}]
    settings = AgentSettings(sysfs=tmp_path, pci_alias=aliases, pci_device_spec=[
        {"address": "0000:81:*", "resource_class": "gpu", "traits": "nvlink,big"},
        {"address": "0000:c1:*", "resource_class": "gpu"}])
    assert {one.address[5:7]: device_aliases(one, settings.pci_alias)
            for one in allowed_devices(settings.sysfs, settings.pci_device_spec)} == {
        "81": ("fast", "gpu", "kind"), "c1": ("gpu", "kind")}


@pytest.mark.parametrize(("more", "why"), [
    ({"traits": "a"}, "cannot differ in traits.* 0000:31:02.0 has CUSTOM_A and 0000:31:02.1 has none"),
    ({"resource_class": "a"}, "cannot differ in resource class.* 0000:31:02.0 has CUSTOM_A and 0000:31:02.1 has CUSTOM_"
                              "PCI_8086_1889")], ids=str)
def test_virtual_functions_of_a_parent_are_alike(tmp_path: Path, more: dict[str, str], why: str) -> None:
    """Row XPCI-10."""
    physical(tmp_path, 2)
    settings = AgentSettings(sysfs=tmp_path, pci_device_spec=[{"address": "0000:31:02.0", **more},
                                                              {"vendor_id": VIRTUAL[0]}])
    with pytest.raises(InvalidSettings, match=why):
        serve.check_settings(settings)
    check_parents(allowed_devices(tmp_path, [{"vendor_id": VIRTUAL[0], **more}]))
