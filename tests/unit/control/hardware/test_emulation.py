# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of another architecture than most hosts': they go where it is emulated, and keep it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control import cloud as clouds
from tests.support.control.cloud import Cloud
from tests.support.control.hardware import act, on_host
from tests.support.control.specs import flavor, image

#: The second host emulates it.
EMULATES = "fake.FakeHypervisor.emulated_architectures = ('aarch64',) if name == 'kvm2' else (); "


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clouds, "AGENT", clouds.AGENT.replace("fake.FakeHypervisor = ",
                                                            f"{EMULATES}fake.FakeHypervisor = "))
        with Cloud(hosts=2, links=True) as made:
            yield made


def test_a_server_goes_to_a_host_that_emulates_it(cloud: Cloud) -> None:
    caller = cloud.admin
    arm = image(caller, "arm", hw_emulation_architecture="aarch64", hw_viommu_model="smmuv3")
    want = {"architecture": "aarch64", "firmware": "uefi", "cdrom_bus": "scsi", "video_model": "virtio",
            "viommu": "smmuv3"}
    for number in range(2):
        made = caller.boot(f"arm{number}", imageRef=arm)
        seen = on_host(cloud, made["id"])
        assert (seen["hardware"], seen["machine"], seen["virt_type"]) == (want, "virt-7.2", "qemu")
        assert caller.server(made["id"])["OS-EXT-SRV-ATTR:host"] == "kvm2"
    reply = caller.act(made["id"], "rebuild", {"imageRef": image(caller, "plain")})
    assert reply.status == 400 and "it is aarch64, and would be that of its host" in reply.json["badRequest"]["message"]
    act(caller, made["id"], "rebuild", {"imageRef": arm}, "ACTIVE")
    assert on_host(cloud, made["id"])["hardware"] == want


def test_what_it_cannot_have_is_refused_before_anything_is_made(cloud: Cloud) -> None:
    caller = cloud.admin
    arm = image(caller, "arm2", hw_emulation_architecture="aarch64")
    for specs, given, why in (
            ({"hw:serial_port_count": "2"}, arm, "hardware.serial_ports must be 1 where the architecture is aarch64"),
            ({"hw:viommu_model": "smmuv3"}, image(caller, "x86"), "cannot be had on machine q35; use machine virt"),
            ({}, image(caller, "m", hw_emulation_architecture="mipsel"),
             "hw_emulation_architecture=mipsel: guests of")):
        caller.delete("/v2.1/flavors/odd")
        body = {"name": "odd", "networks": "none", "flavorRef": flavor(caller, "odd", specs), "imageRef": given}
        reply = caller.post("/v2.1/servers", {"server": body}, "2.60")
        assert reply.status == 400 and why in reply.json["badRequest"]["message"].replace(": must", " must"), reply


def test_volumes_are_on_a_bus_that_it_has(cloud: Cloud) -> None:
    caller = cloud.admin
    arm, sizes = image(caller, "arm3", hw_emulation_architecture="arm64"), flavor(caller, "plain", {})
    data = {"source_type": "blank", "destination_type": "volume", "volume_size": 1}
    roots = [{"uuid": arm, "source_type": "image", "destination_type": "volume", "volume_size": 1, "boot_index": 0},
             {"uuid": arm, "source_type": "image", "destination_type": "local", "boot_index": 0}]
    for mapping, given in (([{**roots[0], "disk_bus": "sata"}], ""), ([roots[0], {**data, "disk_bus": "sata"}], ""),
                           ([roots[1], {**data, "disk_bus": "sata"}], arm)):
        body = {"name": "odd", "networks": "none", "flavorRef": sizes, "imageRef": given,
                "block_device_mapping_v2": mapping}
        reply = caller.post("/v2.1/servers", {"server": body}, "2.60")
        assert reply.status == 400 and ("Block Device Mapping is Invalid: disk_bus: cannot be sata, which no machine "
                                        "of aarch64 has; use virtio or scsi") in reply.json["badRequest"]["message"]
