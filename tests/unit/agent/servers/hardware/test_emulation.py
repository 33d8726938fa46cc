# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests of another architecture than their host's: what they get, what they cannot have, and hosts that lack it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]
import pytest

from magnetar_agent.host.hypervisor import Domain
from magnetar_agent.virt.host import capabilities
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.rescue import rescue_device_of_image
from tests.support.agent.hardware import image
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import SMALL, Host

ARM = {"hw_emulation_architecture": "aarch64"}
#: What an aarch64 guest has where nothing else is said.
USUAL = {"architecture": "aarch64", "firmware": "uefi", "cdrom_bus": "scsi", "video_model": "virtio"}


@pytest.fixture
def emulating(host: Host) -> Host:
    host.fake.emulated_architectures, host.fake._kvm = ("aarch64",), True
    return host


def domain(host: Host, name: str = "web1") -> Domain:
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    found = host.fake.domain(document.id)
    assert found is not None
    return found


def test_a_server_of_such_an_image_is_emulated(emulating: Host) -> None:
    want = {"flavor": SMALL, **image(emulating, **ARM)}
    found = emulating.ensure("server", "web1", want).resource
    assert found and found["hardware"] == USUAL and found["machine"] == "virt-7.2" and found["virt_type"] == "qemu"
    made = domain(emulating)
    assert (made.machine, made.virt_type, made.cpu) == ("virt-7.2", "qemu", "custom cortex-a57")
    assert made.hardware == USUAL
    assert not emulating.ensure("server", "web1", want).changed
    assert emulating.server("web2").resource["virt_type"] == "kvm"


def test_its_own_words_count_as_well(emulating: Host) -> None:
    hardware = {"architecture": "aarch64", "viommu": "smmuv3", "video_model": "none", "disk_bus": "scsi",
                "tpm_version": "2.0"}
    found = emulating.server(hardware=hardware, machine="virt").resource
    assert found["hardware"] == {**USUAL, **hardware} and found["machine"] == "virt-7.2"


def test_the_hosts_own_is_not_emulated(host: Host) -> None:
    host.fake._kvm = True
    found = host.server(hardware={"architecture": "x86_64"}).resource
    assert found["virt_type"] == "kvm" and found["machine"] == "pc-q35-7.2"


def test_settings_of_cpus_and_machines_speak_of_the_hosts_own(tmp_path: Path) -> None:
    host = Host(tmp_path, cpu_mode="host-passthrough", hw_machine_type=("x86_64=pc", "aarch64=virt-7.2"))
    host.start()
    host.fake.emulated_architectures, host.fake._kvm = ("aarch64",), True
    host.ensure("server", "web1", {"flavor": SMALL, **image(host, **ARM)})
    assert domain(host).cpu == "custom cortex-a57" and domain(host).machine == "virt-7.2"
    host.agent.close()


def test_who_asks_for_nothing_of_what_its_machine_has_not_got_is_not_refused(emulating: Host) -> None:
    nothing = {"cpu_traits": [], "vgpus": 0}
    found = emulating.ensure("server", "web1", {"flavor": SMALL, **image(emulating, **ARM), "hardware": nothing})
    assert found.resource["machine"].startswith("virt-")


@pytest.mark.parametrize(("properties", "own", "why"), [
    ({}, {"virt_type": "kvm"}, "virt_type: cannot be kvm for a guest of aarch64"),
    ({}, {"machine": "q35"}, "must be x86_64 .* on machine q35"),
    ({"hw_machine_type": "pc"}, {}, "must be x86_64 .* on machine pc"),
    ({"hw_firmware_type": "bios"}, {}, "hardware.firmware: must be uefi where the architecture is aarch64"),
    ({"hw_firmware_type": "uefi", "os_secure_boot": "required"}, {},
     "hardware.secure_boot: must be disabled or optional where"),
    ({"hw_disk_bus": "sata"}, {}, "hardware.disk_bus: must be virtio or scsi where"),
    ({"hw_cdrom_bus": "sata"}, {}, "hardware.cdrom_bus: must be scsi where"),
    ({"hw_video_model": "vga"}, {}, "hardware.video_model: must be virtio or bochs or none where"),
    ({"hw_pointer_model": "ps2mouse"}, {}, "hardware.pointer: must be virtio or usb where"),
    ({"hw_time_hpet": "true"}, {}, "hardware.hpet: must be false where"),
    ({"img_hide_hypervisor_id": "true"}, {}, "hardware.hide_hypervisor_id: must be false where"),
    ({"hw_tpm_version": "1.2"}, {}, "hardware.tpm_version: must be 2.0 where"),
    ({"hw_viommu_model": "intel"}, {}, "hardware.viommu: cannot be had on machine virt"),
    ({}, {"hardware": {"serial_ports": 2}}, "hardware.serial_ports: must be 1 where"),
    ({}, {"hardware": {"pci_alias": "gpu:1"}}, "hardware.pci_alias: cannot be had where the architecture is aarch64"),
    ({"trait:HW_CPU_X86_SSE2": "required"}, {}, "hardware.cpu_traits: cannot be had where")], ids=str)
def test_what_its_machine_has_not_got_is_refused(emulating: Host, properties: dict[str, str], own: dict[str, Any],
                                                 why: str) -> None:
    with pytest.raises((InvalidField, Conflict), match=why):
        emulating.ensure("server", "web1", {"flavor": SMALL, **image(emulating, **ARM, **properties), **own})
    assert emulating.agent.host.documents.find("server", "web1") is None


@pytest.mark.parametrize("word", ["mipsel", "riscv64"])
def test_an_architecture_that_is_not_made_here_is_refused_by_name(emulating: Host, word: str) -> None:
    with pytest.raises(InvalidField, match=f"hw_emulation_architecture={word}: guests of other architectures have "):
        emulating.ensure("server", "web1", {"flavor": SMALL, **image(emulating, hw_emulation_architecture=word)})


#: What guests of other architectures have where nothing else is said.
OTHERS = {"ppc64le": ("pseries-7.2", {"cdrom_bus": "scsi", "pointer": "usb"}),
          "s390x": ("s390-ccw-virtio-7.2", {"cdrom_bus": "scsi", "video_model": "virtio"})}


@pytest.mark.parametrize("name", OTHERS)
def test_machines_of_others(host: Host, name: str) -> None:
    host.fake.emulated_architectures, host.fake._kvm = (name,), True
    machine, usual = OTHERS[name]
    want = {"flavor": SMALL, **image(host, hw_emulation_architecture=name)}
    found = host.ensure("server", "web1", want).resource
    assert found["hardware"] == {"architecture": name, **usual} and found["virt_type"] == "qemu"
    assert domain(host).machine == found["machine"] == machine and domain(host).cpu == "none"
    assert not host.ensure("server", "web1", want).changed
    # Nothing asked of what it cannot have is nothing to be made.
    nothing = {"pmu": False, "vgpus": 0, "cpu_traits": [], "cpu_policy": "shared", "firmware": "bios"}
    found = host.ensure("server", "web2", {**want, "hardware": nothing}).resource
    assert found["hardware"] == {"architecture": name, **usual}


@pytest.mark.parametrize("name", ["aarch64", *OTHERS])
def test_volumes_are_on_a_bus_that_it_has(host: Host, name: str) -> None:
    host.fake.emulated_architectures = (name,)
    want = {"flavor": SMALL, **image(host, hw_emulation_architecture=name)}
    host.ensure("volume", "data", {"size": 1})
    for at, item in enumerate(({"source_type": "blank", "volume_size": 1}, {"source_type": "volume", "uuid": "data"})):
        items = [*[{"source_type": "blank", "volume_size": 1, "destination_type": "volume"}] * at,
                 {**item, "destination_type": "volume", "disk_bus": "sata"}]
        with pytest.raises(InvalidField, match=rf"block_device_mapping\[{at}\].disk_bus: cannot be sata, which no "
                                               f"machine of {name} has; use virtio or scsi"):
            host.ensure("server", "web1", {**want, "block_device_mapping": items})
    host.ensure("server", "web1", {**want, "power": "off"})
    wish = {"server": "web1", "volume": "data"}
    with pytest.raises(InvalidField, match=f"bus: cannot be sata, which no machine of {name} has"):
        host.ensure("volume_attachment", "web1:data", {**wish, "bus": "sata"})
    assert host.ensure("volume_attachment", "web1:data", {**wish, "bus": "scsi"}).changed


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(("own", "why"), [
    ({"firmware": "uefi"}, "firmware: must be bios where"), ({"tpm_version": "2.0"}, "tpm_version: cannot be had"),
    ({"pmu": True}, "pmu: cannot be had where"), ({"viommu": "virtio"}, "viommu: cannot be had where"),
    ({"numa_nodes": 1}, "numa_nodes: cannot be had where"), ({"cpu_policy": "dedicated"}, "cpu_policy: must be shared"),
    ({"cpu_realtime": True}, "cpu_realtime: must be false"), ({"mem_page_size": "large"}, "mem_page_size: cannot"),
    ({"disk_bus": "sata"}, "disk_bus: must be virtio or scsi"), ({"video_model": "qxl"}, "video_model: must be "),
    ({"pointer": "ps2"}, "pointer: must be "), ({"serial_ports": 2}, "serial_ports: must be 1"),
    ({"pci_alias": "gpu:1"}, "pci_alias: cannot be had"), ({"pmem": "6GB"}, "pmem: cannot be had")], ids=str)
def test_what_machines_of_others_have_not_got(host: Host, name: str, own: dict[str, Any], why: str) -> None:
    host.fake.emulated_architectures = (name,)
    with pytest.raises(InvalidField, match=f"hardware.{why}"):
        host.server(hardware={"architecture": name, **own})
    assert host.agent.host.documents.find("server", "web1") is None


def test_a_host_without_its_emulator_says_what_to_install(host: Host) -> None:
    with pytest.raises(InvalidField, match="lacks an emulator of aarch64 .* qemu-system-arm and qemu-efi-aarch64"):
        host.ensure("server", "web1", {"flavor": SMALL, **image(host, **ARM)})
    for name, package in (("ppc64le", "qemu-system-ppc"), ("s390x", "qemu-system-misc")):
        with pytest.raises(InvalidField, match=f"lacks an emulator of {name} .* {package}"):
            host.server(hardware={"architecture": name})


def test_a_machine_of_arm_needs_the_architecture(emulating: Host) -> None:
    with pytest.raises(InvalidField, match="must be aarch64 .hw_emulation_architecture. on machine virt"):
        emulating.server(machine="virt", hardware={"pmu": True})


@pytest.mark.parametrize("kind", ["cold", "live"])
def test_it_moves_to_hosts_that_emulate_it(pair: Pair, kind: str) -> None:
    pair.one.fake.emulated_architectures = ("aarch64",)
    id = pair.make(hardware={"architecture": "aarch64"})
    with pytest.raises(Conflict, match="lacks an emulator of aarch64"):
        pair.migrate(type=kind)
    pair.two.fake.emulated_architectures = ("aarch64",)
    pair.migrate(type=kind)
    moved = pair.two.fake.domain(id)
    assert moved is not None and moved.machine == "virt-7.2" and moved.hardware["architecture"] == "aarch64"


@pytest.mark.parametrize(("given", "found"), [
    ({"hw_rescue_device": "cdrom"}, {"device": "cdrom", "bus": "scsi"}),
    ({"hw_rescue_device": "disk"}, {"device": "disk", "bus": "virtio"})])
def test_a_rescue_is_on_buses_that_it_has(given: dict[str, str], found: dict[str, str]) -> None:
    assert rescue_device_of_image(given, "virt-7.2") == found


@pytest.mark.parametrize(("given", "why"), [
    ({"hw_rescue_device": "floppy"}, "cannot be floppy: machine virt-7.2 of the server has none; use cdrom or disk"),
    ({"hw_rescue_device": "cdrom", "hw_rescue_bus": "sata"}, "must be one of scsi, usb for a rescue cdrom"),
    ({"hw_rescue_bus": "ide"}, "must be one of virtio, scsi, usb for a rescue disk")])
def test_a_rescue_on_others_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidField, match=why):
        rescue_device_of_image(given, "virt-7.2")


def test_a_machine_without_usb_has_no_rescue_on_it() -> None:
    assert rescue_device_of_image({"hw_rescue_device": "cdrom"}, "s390-ccw-virtio-7.2") == {"device": "cdrom",
                                                                                            "bus": "scsi"}
    with pytest.raises(InvalidField, match="must be one of virtio, scsi for a rescue disk"):
        rescue_device_of_image({"hw_rescue_bus": "usb"}, "s390-ccw-virtio-7.2")
    assert rescue_device_of_image({"hw_rescue_bus": "usb"}, "pseries-7.2") == {"device": "disk", "bus": "usb"}


class Libvirt:
    """Tells what domains of an architecture can have; *broken*: the error in its place."""

    def __init__(self, efi: bool, broken: Any = None, alive: bool = True) -> None:
        self.asked: list[Any] = []
        self.efi, self.broken, self.alive = efi, broken, alive

    def isAlive(self) -> bool:  # noqa: N802 - libvirt's name
        return self.alive

    def getDomainCapabilities(self, *given: Any) -> str:  # noqa: N802 - libvirt's name
        self.asked.append(given)
        if self.broken:
            raise self.broken
        value = "<value>efi</value>" if self.efi else ""
        return (f"<domainCapabilities><arch>{given[1]}</arch><os><enum name='firmware'>{value}</enum></os>"
                "</domainCapabilities>")


@pytest.mark.parametrize(("arch", "efi", "found"), [
    ("aarch64", True, ["aarch64"]), ("aarch64", False, []), ("riscv64", True, []), ("x86_64", True, []),
    ("ppc64le", False, ["ppc64le"]), ("s390x", False, ["s390x"])])
def test_what_a_host_emulates(arch: str, efi: bool, found: list[str]) -> None:
    told = ET.fromstring(f"""<capabilities><host><cpu><arch>x86_64</arch></cpu></host><guest><arch name='{arch}'>
        <domain type='qemu'/></arch></guest></capabilities>""")
    asked = Libvirt(efi)
    assert capabilities.emulated_architectures(asked, told) == found
    machine = {"aarch64": "virt", "ppc64le": "pseries", "s390x": "s390-ccw-virtio"}.get(arch)
    assert asked.asked == ([(None, arch, machine, "qemu")] if machine else [])
    broken = Libvirt(efi, libvirt.libvirtError("failed"))  # its program does not run
    assert capabilities.emulated_architectures(broken, told) == []


def test_an_emulator_that_does_not_answer_costs_what_it_emulates(caplog: pytest.LogCaptureFixture) -> None:
    """And not all that the host tells. A connection that broke is another matter."""
    told = ET.fromstring("""<capabilities><host><cpu><arch>x86_64</arch></cpu></host><guest><arch name='aarch64'>
        <domain type='qemu'/></arch></guest></capabilities>""")
    error = libvirt.libvirtError("failed")
    words = "Failed to probe QEMU:\nlibfdt.so.1 is missing"
    error.err = (libvirt.VIR_ERR_INTERNAL_ERROR, 0, words, 2, "", "", "", 0, 0)
    assert capabilities.emulated_architectures(Libvirt(True, error), told) == []
    assert "machine virt can have (Failed to probe QEMU: libfdt.so.1 is missing)" in caplog.text
    assert "it has no guests of aarch64" in caplog.text
    assert capabilities.sev_of(capabilities._of_domains(Libvirt(True, error), "q35", "encrypted memory")) == {}
    with pytest.raises(libvirt.libvirtError):
        capabilities.emulated_architectures(Libvirt(True, error, alive=False), told)
