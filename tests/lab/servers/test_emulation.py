# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest of aarch64 on this machine, by emulation: firmware, CPU, devices, console and power button are its own."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

from tests.support.lab import guest_arm
from tests.support.lab.agent import LabAgent, eventually

EMULATOR = shutil.which("qemu-system-aarch64")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="another architecture"),
    pytest.mark.skipif(not EMULATOR or platform.machine() == "aarch64", reason="needs qemu-system-aarch64 on x86"),
]
PROPERTIES = {"hw_emulation_architecture": "aarch64", "hw_viommu_model": "smmuv3", "hw_tpm_version": "2.0",
              "hw_watchdog_action": "reset", "hw_architecture": "aarch64"}  # fmt: skip
#: Where guests go on that are emulated slowly.
SLOW = 600.0


def test_a_guest_of_aarch64_boots_by_uefi() -> None:
    with LabAgent(shutdown_timeout=0) as lab:
        host = lab.show("host")
        assert "aarch64" in host["emulated_architectures"] and "virt" in host["machine_types"]["aarch64"]
        assert {"COMPUTE_ARCH_AARCH64", "COMPUTE_ARCH_X86_64", "HW_ARCH_X86_64", "COMPUTE_VIOMMU_MODEL_SMMUV3"} <= set(
            host["traits"])
        lab.import_image("arm", guest_arm.build()["disk"], properties=PROPERTIES)
        lab.ensure("network", f"iso-{lab.mark}", {"mode": "isolated", "cidr": lab.cidr})
        want = {"flavor": {"vcpus": 2, "ram": 512, "disk": 1}, "image": "arm", "config_drive": True,
                "networks": [{"network": f"iso-{lab.mark}"}]}
        made = lab.ensure("server", "arm", want)["resource"]
        assert made["machine"].startswith("virt-") and made["virt_type"] == "qemu"
        eventually(lambda: lab.boots("arm"), "the guest is up", SLOW)
        told = dict(word.partition("=")[::2] for line in lab.markers("arm") for word in line.split() if "=" in word)
        assert told["machine"] == "aarch64" and told["cpus"] == "2" and told["part"] == "0xd07"  # a Cortex-A57
        assert told["efi"] == "yes" and told["product"] == made["machine"] and told["interrupts"] == "GICv3"
        assert told["nic"] == made["networks"][0]["mac"] and told["tpm"] == "2"
        lines = lab.markers("arm")
        assert "disks=sr0 vda" in lines
        iommus = next(line for line in lines if line.startswith("iommus="))
        assert "smmu3" in iommus and int(iommus.rpartition("=")[2]) > 0
        cards = next(line for line in lines if line.startswith("cards="))
        assert {"0x1050", "0x25ab", "0x1041"} <= set(cards.split())  # graphics card, watchdog, NIC
        assert "qemu-system-aarch64" in Path(f"/proc/{lab.qemu('arm')}/cmdline").read_text()
        _answers(lab)
        assert not lab.ensure("server", "arm", want)["changed"]
        lab.ensure("server", "arm", {"power": "off", "shutdown_timeout": 120})
        assert "power button" in lab.markers("arm")


@pytest.mark.parametrize(("name", "machine", "says"), [
    ("ppc64le", "pseries-", "FW Version"), ("s390x", "s390-ccw-virtio-", "LOADPARM")])
def test_the_firmware_of_others_runs(name: str, machine: str, says: str) -> None:
    """It looks for a system on the guest's disk, which is empty, and says so on the console."""
    if not shutil.which(f"qemu-system-{name}"):
        pytest.skip(f"needs qemu-system-{name}")
    with LabAgent(shutdown_timeout=0) as lab:
        assert name in lab.show("host")["emulated_architectures"]
        want = {"flavor": {"vcpus": 1, "ram": 512, "disk": 1}, "image": None, "networks": [],
                "hardware": {"architecture": name, "watchdog": "reset"}}
        made = lab.ensure("server", "other", want)["resource"]
        assert made["machine"].startswith(machine) and made["virt_type"] == "qemu"
        eventually(lambda: says in lab.console("other"), "its firmware runs", SLOW)
        assert not lab.ensure("server", "other", want)["changed"]


def _answers(lab: LabAgent) -> None:
    """What is typed into the serial console reaches the guest."""
    terminal = lab.terminal("arm")
    try:
        def said() -> bool:
            os.write(terminal, b"hello\n")
            return "said hello" in lab.markers("arm")
        eventually(said, "the guest hears what is typed")
    finally:
        os.close(terminal)
