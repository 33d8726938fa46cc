# SPDX-License-Identifier: GPL-3.0-or-later
"""The field ``hardware`` of a server: from flavor, image and itself into the domain, and back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from magnetar_agent.hardware import devices
from magnetar_agent.hardware import numa as domain_numa
from magnetar_agent.hardware.firmware import guest_firmware
from magnetar_agent.hardware.pci import PciDevice
from magnetar_agent.hardware.pmem import GuestPmem
from magnetar_agent.hardware.sev import launch_security
from magnetar_agent.host.hypervisor import DomainSpec
from magnetar_agent.host.networks import Nic
from magnetar_agent.host.storage import Disk
from magnetar_agent.servers import spec
from magnetar_agent.servers.disks import encryption
from magnetar_agent.virt.domain.domain import render_domain
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware import machines, merge, numa
from magnetar_core.hardware.rows import FIELDS
from magnetar_core.hardware.traits import SEV
from tests.support.agent.hardware import flavor, image
from tests.support.agent.server_hardware import canonical, domain
from tests.unit.agent.conftest import SMALL, Host


def test_a_host_of_its_own_takes_the_server_s_word(host: Host) -> None:
    want = {"flavor": {**SMALL, "vcpus": 4}, "hardware": {"cpu_sockets": 2, "watchdog": "reset"}, "power": "off"}
    made = host.server(**want)
    assert made.resource and made.resource["hardware"] == {
        "cpu_sockets": 2, "cpu_cores": 2, "cpu_threads": 1, "watchdog": "reset"}
    topology = domain(host).find("cpu/topology")
    assert topology is not None and (topology.get("sockets"), topology.get("cores")) == ("2", "2")
    assert not host.server(**want).changed
    assert not host.ensure("server", "web1", {"power": "off"}).changed


def test_its_word_is_over_that_of_flavor_and_image(host: Host) -> None:
    want = {**image(host, hw_video_model="qxl", hw_machine_type="pc", hw_vif_model="e1000", hw_disk_bus="sata"),
            **flavor(host, "odd", **{"hw:watchdog_action": "pause", "hw:boot_menu": "true"}),
            "hardware": {"watchdog": "disabled", "hpet": True}, "networks": [{"bridge": "br0"}], "power": "off"}
    made = host.ensure("server", "web1", want).resource
    assert made and made["machine"] == "pc-i440fx-7.2" and made["networks"][0]["model"] == "e1000"
    assert made["hardware"] == {"video_model": "qxl", "nic_model": "e1000", "disk_bus": "sata", "boot_menu": True,
                                "hpet": True}
    root = domain(host)
    assert root.find("devices/watchdog") is None
    assert [one.get("bus") for one in root.iterfind("devices/disk/target")] == ["sata", "sata"]
    assert not host.ensure("server", "web1", want).changed
    host.ensure("server", "web1", {"name": "web1", "description": "x"})
    assert host.show()["hardware"] == made["hardware"]


def test_a_resize_brings_the_hardware_of_the_other_flavor(host: Host) -> None:
    host.ensure("server", "web1", {**flavor(host, "dog", **{"hw:watchdog_action": "reset"}), "image": None,
                                   "hardware": {"hpet": True}})
    cat = flavor(host, "cat", **{"hw:serial_port_count": "3"})
    with pytest.raises(Conflict, match=r"hardware: can change only while server 'web1' is off") as refused:
        host.ensure("server", "web1", cat)
    assert refused.value.details["fields"] == ["hardware"]
    done = host.ensure("server", "web1", cat, allow_reboot=True)
    assert done.resource and done.resource["hardware"] == {"serial_ports": 3, "hpet": True}
    assert [step.verb for step in done.steps] == ["record", "stop", "define", "drive", "start"]
    assert len(domain(host).findall("devices/serial")) == 3
    assert not host.ensure("server", "web1", cat).changed


def test_a_flavor_that_changes_leaves_its_servers_as_they_are(host: Host) -> None:
    want = {**flavor(host, "dog", **{"hw:watchdog_action": "reset"}), "image": None}
    host.ensure("server", "web1", want)
    host.ensure("flavor", "dog", {"extra_specs": {}})
    assert not host.ensure("server", "web1", want).changed


def test_a_domain_that_was_defined_with_other_hardware_is_defined_anew(host: Host) -> None:
    host.server(power="off", hardware={"hpet": True})
    document = host.agent.host.documents.find("server", "web1")
    assert document
    host.fake.define(spec.domain_spec(host.agent.host, document.copy()).__class__(**{
        **vars(spec.domain_spec(host.agent.host, document)), "hardware": {}}))
    assert [step.verb for step in host.ensure("server", "web1", {"power": "off"}).steps] == ["define"]


@pytest.mark.parametrize(("want", "field", "why"), [
    ({"hardware": {"cpu_sockets": 3}}, "hardware", "multiply to the 2 virtual CPUs"),
    ({"hardware": {"cpu_sockets": 0}}, "hardware.cpu_sockets", "must be from 1"),
    ({"hardware": {"vif_inbound_peak": 5}}, "hardware.vif_inbound_peak", "needs vif_inbound_average"),
    ({"hardware": {"disk_total_iops_sec": 5, "disk_read_iops_sec": 5}}, "hardware.disk_total_iops_sec",
     "together with"),
    ({"hardware": {"disk_read_iops_sec_max": 5}}, "hardware.disk_read_iops_sec_max", "needs disk_read_iops_sec"),
    ({"hardware": {"cpu_quota": 5}}, "hardware.cpu_quota", "must be 0 or from 1000"),
    ({"hardware": {"cpu_shares": 1}}, "hardware.cpu_shares", "must be 0 or from 2"),
    ({"hardware": {"rng_period": 5}}, "hardware.rng_period", "needs rng_bytes"),
    ({"hardware": {"rng": False, "rng_bytes": 5}}, "hardware.rng_bytes", "needs a random number generator"),
    ({"hardware": {"video_ram": 24}}, "hardware.video_ram", "power of two"),
    ({"hardware": {"disk_bus": "ide"}, "machine": "q35"}, "hardware.disk_bus", "cannot be ide on machine q35"),
    ({"hardware": {"disk_bus": "ide", "viommu": "intel"}}, "hardware.viommu", "use machine q35"),
    ({"hardware": {"secure_boot": "required"}}, "hardware.secure_boot", "needs firmware uefi"),
    ({"hardware": {"secure_boot": "required", "firmware": "uefi"}, "machine": "pc"}, "hardware.secure_boot",
     "cannot be required on machine pc"),
    ({"hardware": {"maxphysaddr_bits": 42}}, "hardware.maxphysaddr_bits", "needs maxphysaddr_mode"),
    ({"hardware": {"maxphysaddr_mode": "emulate"}}, "hardware.maxphysaddr_mode",
     "must be emulate with maxphysaddr_bits"),
    ({"hardware": {"maxphysaddr_mode": "passthrough"}}, "hardware.maxphysaddr_mode", "which lacks KVM"),
    ({"hardware": {"viommu": "intel"}, "machine": "pc"}, "hardware.viommu", "use machine q35"),
    ({"hardware": {"viommu": "smmuv3"}}, "hardware.viommu", "cannot be had on machine pc-q35-7.2; use machine virt"),
    ({"hardware": {"tpm_model": "tpm-tis"}}, "hardware.tpm_model", "needs tpm_version"),
    ({"hardware": {"tpm_model": "tpm-crb", "tpm_version": "1.2"}}, "hardware.tpm_model",
     "only for a TPM of version 2.0"),
    ({"hardware": {"colour": "red"}}, "hardware.colour", "is not a known field")], ids=str)
def test_what_does_not_go_together_is_refused(host: Host, want: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(InvalidField, match=why) as refused:
        host.ensure("server", "web1", {"flavor": {**SMALL, "vcpus": 2}, "image": None, **want})
    assert refused.value.details["field"] == field
    assert host.agent.host.documents.find("server", "web1") is None


def test_a_host_that_cannot_limit_nics_says_so(host: Host) -> None:
    host.fake.no_traffic_control = "no sfq"
    with pytest.raises(InvalidField, match=r"which lacks what limits NICs: no sfq"):
        host.server(hardware={"vif_inbound_average": 100})


CASES = yaml.safe_load((Path(__file__).parents[4] / "cases/hardware/domain.yml").read_text(encoding="utf-8"))


#: The domain's uuid.
ID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
#: NUMA cells of the host that domains are drawn for.
CELLS = [numa.HostCell(0, frozenset((2, 4)), frozenset((0, 6)), 4096, {2048: 100}),
         numa.HostCell(1, frozenset((3, 5)), frozenset((1, 7)), 4096, {2048: 100})]


def drawn(hardware: dict[str, Any], kvm: bool) -> ET.Element:
    """The XML of a domain with two CPUs, a disk, a CD and a NIC."""
    asked = numa.numa_needs(hardware, 2, 64)
    placed = numa.place_guest(CELLS, asked) if asked else None
    key = encryption.disk_key_by_id(hardware, ID)
    disks = (Disk(Path("/s/disk"), "vda", key=key), Disk(Path("/s/base"), "sda", "raw", "cdrom", "sata", True))
    nic = Nic("52:54:00:00:00:01", hardware.get("nic_model", "virtio"), network="lan")
    return ET.fromstring(render_domain(DomainSpec(
        uuid=ID, name="magnetar-1", title="one", vcpus=2, ram_mib=64,
        virt_type="kvm" if kvm else "qemu", machine=machines.default_machine(hardware),
        disks=tuple(devices.apply_disk_hardware(hardware, devices.own_disk(hardware, one)) for one in disks),
        nics=(devices.apply_nic_hardware(hardware, nic, 2),), console_log=Path("/s/console.log"), hardware=hardware,
        numa=domain_numa.guest_numa(hardware, 2, 64, placed, CELLS, "0-1,6-7" if asked else ""),
        firmware=guest_firmware(hardware, "q35", {"secure_boot": True}, Path("/s")),
        pci=(PciDevice("0000:81:00.1", "10de", "1eb8", 0),) if "pci_alias" in hardware else (),
        mdev="3b1e2f60-9d0e-4c6c-8a1f-2b3d8c7d3c0e" if "vgpus" in hardware else "",
        pmem=(GuestPmem(Path("/dev/dax0.1"), 6291456, 2048), GuestPmem(Path("/srv/a&b"), 132096, 0))
        if "pmem" in hardware else (),
        security=launch_security(hardware, {name: {"cbitpos": 47, "reduced_phys_bits": 1} for name in SEV}))))


def test_a_nic_has_a_queue_for_each_cpu() -> None:
    asked = {"multiqueue": True}
    for vcpus, queues in ((1, 1), (16, 16), (300, 256)):
        assert devices.apply_nic_hardware(asked, Nic(mac="52:54:00:00:00:01", bridge="br0"), vcpus).queues == queues
    assert devices.apply_nic_hardware({}, Nic(mac="52:54:00:00:00:01", bridge="br0"), 16).queues == 1


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one['field']}-{one['value']}-{one['at']}")
def test_what_a_field_is_in_the_domain(case: dict[str, Any]) -> None:
    more, kvm = case.get("with", {}), case.get("kvm", False)
    hardware = merge.merge_server_hardware({}, {**more, case["field"]: case["value"]}, 2)
    beside: dict[str, Any] = {}
    with suppress(InvalidField):  # what needs it in turn
        beside = merge.merge_server_hardware({}, case.get("without", more), 2)
    found, without = (drawn(one, kvm).find(case["at"]) for one in (hardware, beside))
    if case.get("gone"):
        assert found is None and without is not None
        return
    assert found is not None and canonical(ET.tostring(found, "unicode")) == canonical(case["xml"])
    if case["field"] not in merge.TOPOLOGY and not case.get("same"):
        assert without is None or canonical(ET.tostring(without, "unicode")) != canonical(case["xml"])


def test_every_field_has_such_a_case() -> None:
    assert {case["field"] for case in CASES} == set(FIELDS)
