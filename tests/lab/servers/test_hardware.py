# SPDX-License-Identifier: GPL-3.0-or-later
"""Hardware that flavors, images and servers ask for, as a guest sees it and as the host limits it."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt
import pytest

from magnetar_agent.virt.domain.tpm import SWTPM
from magnetar_core.errors import InvalidField
from magnetar_core.hardware.machines import is_machine_upgrade, machine_version
from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually

pytestmark = pytest.mark.lab

RATE = 1 << 20  # bytes a second that the guest may read
#: What the flavor asks for.
SPECS = {"hw:cpu_sockets": "1", "hw:cpu_threads": "2", "hw:serial_port_count": "2", "hw:hide_hypervisor_id": "true",
         "hw_rng:allowed": "false", "quota:disk_read_bytes_sec": str(RATE), "quota:cpu_shares": "512",
         "quota:cpu_period": "50000", "quota:cpu_quota": "40000", "hw:cpu_policy": "mixed",
         "hw:cpu_dedicated_mask": "1", "hw:numa_nodes": "1", "hw:mem_page_size": "small"}  # fmt: skip
#: What the image asks for.
PROPERTIES = {"hw_disk_bus": "scsi", "hw_machine_type": "pc", "hw_watchdog_action": "poweroff", "hw_time_hpet": "true",
              "hw_qemu_guest_agent": "no", "hw_video_model": "cirrus", "hw_vif_model": "rtl8139",
              "hw_virtio_packed_ring": "true"}  # fmt: skip


def test_a_guest_has_what_flavor_image_and_server_ask_for(guest_image: dict[str, Path]) -> None:
    with LabAgent(cpu_dedicated_set="1", cpu_shared_set="0") as lab:
        lab.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        lab.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk", properties=PROPERTIES,
                         cmdline=guest.KERNEL_ARGS)  # fmt: skip
        lab.ensure("network", f"iso-{lab.mark}", {"mode": "isolated", "cidr": lab.cidr})
        lab.ensure("flavor", "odd", {"vcpus": 2, "ram": 128, "disk": 1, "extra_specs": SPECS})
        want = {"flavor": "odd", "image": "kernel", "networks": [{"network": f"iso-{lab.mark}"}],
                "hardware": {"boot_menu": True}}
        made = lab.ensure("server", "odd", want)["resource"]
        assert made["hardware"]["cpu_threads"] == 2 and made["hardware"]["boot_menu"]
        assert made["machine"] == _newest("pc")
        lab.up("odd")
        assert _of_one_socket(lab) == "0-1"
        assert "hypervisor" not in lab.sh("odd", "grep -m1 ^flags /proc/cpuinfo").split()
        assert "hpet" in lab.sh("odd", "cat /sys/devices/system/clocksource/clocksource0/available_clocksource")
        assert lab.sh("odd", "ls /sys/block | grep ^sd").split() == ["sda"]  # no virtio disk; the config drive is a CD
        assert not lab.sh("odd", "ls /sys/block | grep ^vd; true").strip()
        assert "1: uart:16550A" in lab.sh("odd", "cat /proc/tty/driver/serial")
        cards = lab.sh("odd", "cat /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/device")
        for pci in ("0x8139", "0x25ab", "0x00b8"):  # NIC, watchdog, graphics card
            assert pci in cards
        assert "0x1005" not in cards and "0x1044" not in cards  # virtio random numbers
        assert not lab.sh("odd", "cat /sys/class/virtio-ports/*/name 2>/dev/null; true").strip()
        _limits_of_the_host(lab)
        assert lab.sh("odd", "cat /sys/devices/system/node/online").strip() == "0"
        assert lab.sh("odd", "cat /sys/devices/system/node/node0/cpulist").strip() == "0-1"
        assert _where_it_runs(lab) == {"CPU 0": "0", "CPU 1": "1"}
        assert _free(lab) == ""
        assert not lab.ensure("server", "odd", want)["changed"]
        lab.ensure("flavor", "plain", {"vcpus": 2, "ram": 128, "disk": 1})
        lab.ensure("server", "odd", {"flavor": "plain"}, allow_reboot=True)
        lab.up("odd", 2)
        assert _of_one_socket(lab) == "0"
        root = ET.fromstring(lab.domain("odd").XMLDesc())
        assert root.find("cputune") is None and root.find("vcpu").get("cpuset") == "0"
        assert _free(lab) == "1"


def _newest(machine: str) -> str:
    """The version that a machine type is with this QEMU."""
    root = ET.fromstring(libvirt.open("qemu:///system").getDomainCapabilities(None, None, machine, "qemu"))
    return str(root.findtext("machine"))


@pytest.mark.deep(shard="one host")  # libvirt has the type by its XML, which tests/cases/xml shows
def test_a_guest_keeps_its_machine_type_and_gets_a_later_one(guest_image: dict[str, Path]) -> None:
    """The agent's setting has it be an earlier version than QEMU's newest; it is that one once it is asked for."""
    newest = _newest("q35")
    known = ET.fromstring(libvirt.open("qemu:///system").getCapabilities())
    types = {str(one.text) for one in known.iterfind("guest/arch[@name='x86_64']/machine")} - {newest}
    old = max((one for one in types if is_machine_upgrade(one, newest)), key=machine_version)
    with LabAgent(hw_machine_type=[f"x86_64={old}"]) as lab:
        lab.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        lab.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                         cmdline=guest.KERNEL_ARGS)  # fmt: skip
        lab.ensure("network", f"iso-{lab.mark}", {"mode": "isolated", "cidr": lab.cidr})
        want = {"flavor": {"vcpus": 1, "ram": 128}, "image": "kernel", "networks": [{"network": f"iso-{lab.mark}"}]}
        assert lab.ensure("server", "odd", want)["resource"]["machine"] == old
        lab.up("odd")
        assert lab.sh("odd", "cat /sys/class/dmi/id/product_version").strip() == old
        assert not lab.ensure("server", "odd", {**want, "machine": "q35"})["changed"]
        lab.ensure("server", "odd", {"machine": newest}, allow_reboot=True)
        lab.up("odd", 2)
        assert lab.sh("odd", "cat /sys/class/dmi/id/product_version").strip() == newest
        assert lab.domain("odd").XMLDesc().count(f'machine="{newest}"') + lab.domain("odd").XMLDesc().count(
            f"machine='{newest}'") == 1
        with pytest.raises(InvalidField, match="must be a machine type that QEMU of host"):
            lab.ensure("server", "other", {**want, "machine": "pc-q35-99.0"})


def _tpm(id: str) -> int:
    """The process of the server's swtpm."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_text(errors="replace").split("\0")
            if words[0].endswith("swtpm") and any(str(SWTPM / id) in word for word in words):
                return int(path.parent.name)
    raise AssertionError("there is no swtpm")


def test_a_guest_sees_secure_boot_and_its_tpm(guest_image: dict[str, Path]) -> None:
    """Its kernel is locked down, so that none of the guest's drivers, which are not signed, is loaded; firmware has
    measured into the TPM what it booted. CPU and memory are as the settings say. When swtpm is killed, the guest runs
    on, and has its TPM again from its next start on. When the server goes, nothing of it is left."""
    trusted = {"firmware": "uefi", "secure_boot": "required", "tpm_version": "2.0", "tpm_model": "tpm-crb"}
    cpu = {"cpu_mode": "custom", "cpu_models": ["Nehalem"], "cpu_model_extra_flags": ["+rdrand", "-cx16"]}
    with LabAgent(shutdown_timeout=0, file_backed_memory=256, ram_allocation_ratio=1.0, **cpu) as lab:
        assert lab.show("host")["memory_mb"] == 256
        assert {"uefi"} <= set(lab.show("host")["firmware"]) and lab.show("host")["secure_boot"]
        lab.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        lab.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                         cmdline=guest.KERNEL_ARGS)  # fmt: skip
        want = {"flavor": {"vcpus": 1, "ram": 256, "disk": 1}, "image": "kernel", "hardware": trusted}
        id = lab.ensure("server", "safe", want)["resource"]["id"]
        lab.up("safe")
        assert "secureboot: Secure boot enabled" in lab.sh("safe", "dmesg | grep secureboot")
        assert not lab.sh("safe", "cat /proc/modules").strip()
        assert "/var/lib/libvirt/qemu/ram/" in Path(f"/proc/{lab.qemu('safe')}/maps").read_text()
        shown = lab.sh("safe", "cat /proc/cpuinfo")
        assert "Nehalem" in shown and " rdrand " in shown and " cx16 " not in shown
        assert lab.sh("safe", "cat /sys/class/dmi/id/product_name").strip() == "OpenStack Nova"
        assert lab.sh("safe", "cat /sys/class/tpm/tpm0/tpm_version_major").strip() == "2"
        measured = lab.sh("safe", "cat /sys/class/tpm/tpm0/pcr-sha256/7").strip()
        assert len(measured) == 64 and set(measured) != {"0"}
        os.kill(_tpm(id), signal.SIGKILL)
        assert float(lab.sh("safe", "cat /proc/uptime").split()[0]) and lab.show("server", "safe")["status"] == "ACTIVE"
        kept = [lab.state / "servers" / id / "uefi.secure", SWTPM / id / "tpm2"]
        lab.power("safe", "off")
        assert all(path.exists() for path in kept)
        lab.power("safe", "running")
        assert _tpm(id), "it has its TPM again"
        lab.power("safe", "off")
        lab.delete("server", "safe")
        assert not any(path.exists() for path in kept)


def test_a_guest_has_persistent_memory(guest_image: dict[str, Path]) -> None:
    """A file stands for a namespace. What was in it is gone when the guest starts, and what is in it when it goes."""
    size, labels = 64 << 20, 2 << 20
    place = Path("/var/lib/magnetar-lab-pmem")
    place.write_bytes(b"another's" + bytes(size - 9))
    try:
        with LabAgent(shutdown_timeout=0, pmem_namespaces={"64MB": [str(place)]}) as lab:
            lab.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
            lab.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                             cmdline=guest.KERNEL_ARGS)  # fmt: skip
            want = {"flavor": {"vcpus": 2, "ram": 128, "disk": 1}, "image": "kernel", "hardware": {"pmem": "64MB"}}
            lab.ensure("server", "kept", want)
            lab.up("kept")
            table = bytes.fromhex(lab.sh("kept", "od -An -v -tx1 /sys/firmware/acpi/tables/NFIT"))
            ranges = list(_ranges(table))
            assert ranges == [size - labels], ranges
            assert lab.sh("kept", "cat /sys/devices/system/node/node0/cpulist").strip() == "0-1"
            assert str(place) in Path(f"/proc/{lab.qemu('kept')}/maps").read_text()
            with place.open("rb") as file:
                assert file.read(9) == bytes(9)
            assert not lab.ensure("server", "kept", want)["changed"]
            assert lab.show("host")["pmem"] == {"64MB": {"total": 1, "free": 0, "sizes_mb": [64]}}
            with place.open("r+b") as file:
                file.write(b"the guest's")
            lab.delete("server", "kept")
            assert place.read_bytes() == bytes(size)
    finally:
        place.unlink()


def _ranges(table: bytes) -> Iterator[int]:
    """The sizes of ranges of persistent memory in the firmware's table (ACPI's NFIT, structures of type 0)."""
    at = 40
    while at < len(table):
        kind, length = struct.unpack_from("<HH", table, at)
        if kind == 0:
            yield struct.unpack_from("<Q", table, at + 40)[0]
        at += length


def _of_one_socket(lab: LabAgent) -> str:
    """The CPUs beside the first one. A guest on QEMU's usual CPU takes threads for cores."""
    return lab.sh("odd", "cat /sys/devices/system/cpu/cpu0/topology/core_siblings_list").strip()


def _where_it_runs(lab: LabAgent) -> dict[str, str]:
    """The CPUs of this machine that the kernel lets each virtual CPU of the guest run on."""
    process = Path(f"/run/libvirt/qemu/{lab.domain('odd').name()}.pid").read_text().strip()
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        name = (task / "comm").read_text().partition("/")[0].strip()
        if name.startswith("CPU "):
            allowed = (task / "status").read_text().partition("Cpus_allowed_list:")[2]
            found[name] = allowed.splitlines()[0].strip()
    return found


def _free(lab: LabAgent) -> str:
    """The dedicated CPUs that the agent has not given away."""
    with lab.client() as client:
        return str(client.get("host")["numa_cells"][0]["free"]["cpus_dedicated"])


def _limits_of_the_host(lab: LabAgent) -> None:
    """libvirt has them from the cgroup of the running guest, and from its QEMU."""
    tune = eventually(lambda: lab.domain("odd").schedulerParameters(), "the scheduler's parameters")
    assert (tune["cpu_shares"], tune["vcpu_period"], tune["vcpu_quota"]) == (512, 50000, 40000)
    assert lab.domain("odd").blockIoTune("sda")["read_bytes_sec"] == RATE
