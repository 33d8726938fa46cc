# SPDX-License-Identifier: GPL-3.0-or-later
"""What every ``LocalHypervisor`` does: the same cases against the fake and, marked ``lab``, this host's libvirt.

The guests have nothing to boot; cases which need a guest that answers are in ``tests/lab/servers/test_hypervisor.py``.
"""

from __future__ import annotations

import re
import uuid as uuids
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.hardware import devices
from magnetar_agent.hardware.cpu import CpuMode
from magnetar_agent.hardware.firmware import Firmware
from magnetar_agent.hardware.numa import GuestNode, Numa
from magnetar_agent.host.networks import NetworkSpec, Nic
from magnetar_agent.host.storage import Backing, Disk, NetworkSource
from magnetar_core.errors import Conflict, HypervisorError
from magnetar_core.power import CRASHED, OFF, PAUSED, RUNNING, SUSPENDED

from .place import HOSTILE, MIB, Place


def test_host(place: Place) -> None:
    assert place.hypervisor.connected()
    facts = place.hypervisor.host()
    assert {"id", "name", "hypervisor_type", "hypervisor_version", "libvirt_version", "cpu_model", "vcpus", "memory_mb",
            "architecture", "virt_types", "kvm"} <= set(facts)
    cpu = facts["cpu_info"]
    assert {"arch", "model", "vendor", "topology", "features"} <= cpu.keys() and cpu["arch"] == facts["architecture"]
    assert "sse2" in cpu["features"] or cpu["arch"] != "x86_64"  # also what libvirt tells as part of its model only
    assert facts["vcpus"] > 0 and facts["memory_mb"] > 0 and "qemu" in facts["virt_types"]
    kvm = place.hypervisor.kvm()
    assert set(kvm) == {"usable", "reason", "checked_at"} and kvm["checked_at"]
    assert ("kvm" in place.hypervisor.host()["virt_types"]) == kvm["usable"]


def test_a_defined_domain_is_seen_as_it_was_asked_for(place: Place) -> None:
    spec = place.spec(nics=(Nic("52:54:00:00:00:01", network="no-such-net", tag="a&b"),
                            Nic("52:54:00:00:00:02", "e1000e", bridge="br0")))
    place.hypervisor.define(spec)
    seen = place.hypervisor.domain(spec.uuid)
    assert seen is not None
    assert (seen.uuid, seen.name, seen.title, seen.description) == (spec.uuid, spec.name, HOSTILE, HOSTILE)
    assert (seen.state, seen.owned, seen.persistent) == (OFF, True, True)
    assert (seen.vcpus, seen.ram_mib, seen.virt_type) == (1, 32, "qemu") and "q35" in seen.machine
    assert seen.disks == spec.disks and seen.nics == spec.nics
    assert place.happened(spec.uuid, "defined")


@pytest.mark.parametrize("hardware", [
    {"cpu_sockets": 1, "cpu_cores": 2, "cpu_threads": 1, "pmu": False, "hide_hypervisor_id": True, "hpet": True,
     "cpu_shares": 512, "cpu_period": 50000, "cpu_quota": 20000, "boot_menu": True, "watchdog": "reset",
     "rng_bytes": 100, "video_model": "qxl", "video_ram": 32, "serial_ports": 4, "packed_ring": True, "pointer": "usb",
     "disk_total_bytes_sec": 10**15, "disk_total_iops_sec": 5, "disk_total_iops_sec_max": 10},
    {"disk_bus": "scsi", "scsi_model": "lsisas1068", "rng": False, "video_model": "none", "pointer": "ps2",
     "guest_agent": False, "watchdog": "none"},
    {"viommu": "intel", "maxphysaddr_mode": "emulate", "maxphysaddr_bits": 42}, {"viommu": "virtio"},
    {"disk_bus": "sata", "video_model": "cirrus", "watchdog": "pause", "disk_read_bytes_sec": 1}], ids=str)
def test_a_domain_has_its_hardware_and_tells_it(place: Place, hardware: dict[str, Any]) -> None:
    spec = place.spec()
    spec = replace(spec, vcpus=2, hardware=hardware,
                   disks=tuple(devices.apply_disk_hardware(hardware, devices.own_disk(hardware, one))
                               for one in spec.disks))
    place.hypervisor.define(spec)
    place.hypervisor.start(spec.uuid)
    seen = place.hypervisor.domain(spec.uuid)
    assert seen is not None and (seen.state, seen.hardware, seen.disks) == (RUNNING, hardware, spec.disks)
    place.hypervisor.destroy(spec.uuid)
    place.hypervisor.define(replace(spec, hardware={}))
    assert place.hypervisor.domain(spec.uuid).hardware == {}


def test_the_cpu_models_of_guests(place: Place) -> None:
    hypervisor = place.hypervisor
    found = hypervisor.cpu_choices("qemu")
    assert {"custom", "host-model", "maximum"} <= found.modes and "host-passthrough" not in found.modes
    assert {"qemu64", "Nehalem"} <= set(found.usable) <= set(found.models) and "no-such" not in found.models
    features = hypervisor.cpu_features("qemu", "Nehalem")
    assert {"sse2", "ssse3"} <= features and "avx2" not in features
    changed = hypervisor.cpu_features("qemu", "Nehalem", (("require", "avx2"), ("disable", "ssse3")))
    assert changed == (features | {"avx2"}) - {"ssse3"}
    assert "sse2" in hypervisor.cpu_features("qemu")
    for model, besides in (("no-such", ()), ("Nehalem", (("require", "no-such"),))):
        with pytest.raises(HypervisorError, match="CPU"):
            hypervisor.cpu_features("qemu", model, besides)


@pytest.mark.parametrize("mode", [
    CpuMode("maximum"), CpuMode("host-model", "", (("disable", "avx2"),)),
    CpuMode("custom", "Nehalem", (("require", "avx2"), ("disable", "ssse3")))], ids=str)
def test_a_domain_runs_on_its_cpu_and_keeps_a_note(place: Place, mode: CpuMode) -> None:
    spec = place.spec(cpu=mode)
    place.hypervisor.define(spec)
    place.hypervisor.start(spec.uuid)
    assert place.hypervisor.domain(spec.uuid).cpu == mode.note
    place.hypervisor.destroy(spec.uuid)
    place.hypervisor.define(replace(spec, cpu=None))
    assert place.hypervisor.domain(spec.uuid).cpu == ""


def test_serial_numbers_of_cards(place: Place) -> None:
    """Of which few machines have any."""
    for address, serial in place.hypervisor.card_serials().items():
        assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", address) and serial


def test_a_domain_is_told_of_a_mediated_device_that_is_made_later(place: Place) -> None:
    """None can be made without such a device, so only what needs none is asked for here."""
    uuid = "3b1e2f60-9d0e-4c6c-8a1f-2b3d8c7d3c0e"
    spec = replace(place.spec(), hardware={"vgpus": 1}, mdev=uuid)
    place.hypervisor.define(spec)
    assert place.hypervisor.domain(spec.uuid).hardware == {"vgpus": 1}
    assert uuid in place.hypervisor.render(spec)
    place.hypervisor.remove_mdev(uuid)
    assert place.hypervisor.mdevs() == []


def test_the_host_tells_its_numa_cells(place: Place) -> None:
    cells = place.hypervisor.numa_cells()
    cpus = [cpu for cell in cells for cpu in cell.shared]
    assert len(cpus) == len(set(cpus)) == place.hypervisor.host()["vcpus"]
    assert all(cell.memory_mb > 0 and not cell.dedicated for cell in cells)


def test_a_domain_is_on_the_cpus_and_cells_that_it_is_given(place: Place) -> None:
    cell = place.hypervisor.numa_cells()[0]
    cpu, spec = str(min(cell.shared)), place.spec()
    spec = replace(spec, vcpus=2, numa=Numa(cpu, ((0, cpu), (1, cpu)), cpu, (GuestNode(0, "0-1", 32, cell.id, 0),)))
    place.hypervisor.define(spec)
    place.hypervisor.start(spec.uuid)
    seen, runs = place.hypervisor.domain(spec.uuid), place.hypervisor.running(spec.uuid)
    assert seen is not None and runs is not None and (seen.state, seen.cpuset, runs.cpuset) == (RUNNING, cpu, cpu)
    place.hypervisor.destroy(spec.uuid)
    place.hypervisor.define(replace(spec, numa=Numa()))
    assert place.hypervisor.domain(spec.uuid).cpuset == ""


@pytest.mark.parametrize("secure", [False, True])
def test_uefi_keeps_its_variables_until_the_domain_is_undefined(place: Place, secure: bool) -> None:
    facts, spec = place.hypervisor.host(), place.spec()
    assert facts["firmware"] == ["bios", "uefi"] and facts["secure_boot"]
    variables = spec.console_log.with_name("uefi")
    spec = replace(spec, ram_mib=64, firmware=Firmware(variables, secure))
    place.hypervisor.define(spec)
    assert not variables.exists()
    place.hypervisor.start(spec.uuid)
    place.hypervisor.destroy(spec.uuid)
    inode = variables.stat().st_ino
    place.hypervisor.define(replace(spec, title="another"))
    place.hypervisor.start(spec.uuid)
    place.hypervisor.destroy(spec.uuid)
    assert variables.stat().st_ino == inode
    place.hypervisor.undefine(spec.uuid, keep_nvram=True)  # the folder is another host's
    assert variables.stat().st_ino == inode and place.hypervisor.domain(spec.uuid) is None
    place.hypervisor.define(spec)
    place.hypervisor.undefine(spec.uuid)
    assert not variables.exists()


def test_a_tpm_keeps_what_is_in_it_and_goes_with_it(place: Place, tmp_path: Path) -> None:
    """It is encrypted with the domain's secret; another domain of that uuid, as at another host, has it by a copy."""
    assert place.hypervisor.host()["tpm_versions"] == ["1.2", "2.0"]
    spec = replace(place.spec(), hardware={"tpm_version": "2.0", "tpm_model": "tpm-crb"})
    uuid, copy, secret = spec.uuid, tmp_path / "tpm", "0123456789abcdef" * 4
    place.hypervisor.define(spec)
    copy.write_text("of an attempt before")
    place.hypervisor.save_tpm(uuid, copy)
    assert not copy.exists()
    place.hypervisor.load_tpm(uuid, copy)
    place.hypervisor.start(uuid, secret=secret)
    place.hypervisor.destroy(uuid)
    place.hypervisor.define(replace(spec, title="another"))
    place.hypervisor.save_tpm(uuid, copy)
    assert copy.stat().st_size > 0
    place.hypervisor.undefine(uuid)
    place.hypervisor.define(spec)
    place.hypervisor.save_tpm(uuid, left := tmp_path / "left")
    assert not left.exists()
    for _twice in range(2):
        place.hypervisor.load_tpm(uuid, copy)
    with pytest.raises(HypervisorError):
        place.hypervisor.start(uuid, secret=secret[::-1])
    place.hypervisor.start(uuid, secret=secret)
    place.hypervisor.destroy(uuid)
    place.hypervisor.undefine(uuid)


def test_a_tpm_of_version_1_2(place: Place) -> None:
    spec = replace(place.spec(), hardware={"tpm_version": "1.2"})
    place.hypervisor.define(spec)
    place.hypervisor.start(spec.uuid, secret="0123456789abcdef" * 4)


def test_what_it_lacks_to_limit_nics_is_a_text(place: Place) -> None:
    assert isinstance(place.hypervisor.lacks_traffic_control(), str)


def test_a_definition_keeps_what_all_disks_stand_on(place: Place) -> None:
    spec = place.spec()
    beside = spec.disks[0].path.with_name
    disks = (replace(spec.disks[0], backing=Backing(beside("base"), "raw")), Disk(beside("raw"), "vdb", "raw"),
             Disk(beside("cd"), "sda", "raw", "cdrom", "sata", readonly=True),
             Disk(Path("/dev/vg0/data"), "vdc", "raw", block_device=True),
             Disk(Path("far"), "vdd", "raw", remote=NetworkSource("nbd", "far", beside("socket"))))
    place.hypervisor.define(replace(spec, disks=disks))
    seen = place.hypervisor.domain(spec.uuid)
    assert seen is not None and {disk.target: disk for disk in seen.disks} == {disk.target: disk for disk in disks}
    assert not seen.probed
    place.outside.define(place.hypervisor.render(spec).replace("<backingStore/>", ""))
    assert place.hypervisor.domain(spec.uuid).probed


def test_defining_again_changes_it(place: Place) -> None:
    spec = place.spec()
    for _time in range(2):
        place.hypervisor.define(spec)
    place.hypervisor.define(replace(spec, vcpus=2, title="other"))
    seen = place.hypervisor.domain(spec.uuid)
    assert seen is not None and (seen.vcpus, seen.title) == (2, "other")


def test_a_change_from_outside_is_seen_at_once(place: Place) -> None:
    hypervisor, spec = place.hypervisor, place.spec()
    hypervisor.define(spec)
    for running in (False, True):
        if running:
            hypervisor.start(spec.uuid)
        for number in range(8):
            said = f"{running} {number}"
            place.outside.define(hypervisor.render(replace(spec, description=said)))
            assert hypervisor.domains()[spec.uuid].description == said
            assert hypervisor.domain(spec.uuid).description == said


def test_control_characters_and_line_breaks_pass(place: Place) -> None:
    uuid = place.defined(title="a\nb\x01", description="c\x00d\n\ud800", metadata={"k\x02": "v\x03\ufffe"})
    seen = place.hypervisor.domain(uuid)
    assert seen is not None and seen.title == "a b\ufffd" and seen.description == "c\ufffdd\n\ufffd"


def test_power(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    steps = [(hypervisor.start, RUNNING), (hypervisor.pause, PAUSED), (hypervisor.resume, RUNNING),
             (hypervisor.save, SUSPENDED), (hypervisor.start, RUNNING), (hypervisor.save, SUSPENDED),
             (hypervisor.discard_save, OFF), (hypervisor.start, RUNNING), (hypervisor.destroy, OFF)]
    for act, state in steps:
        act(uuid)
        assert place.state(uuid) == state, act
        act(uuid)  # what is as it was asked for is no error
        assert place.state(uuid) == state, act
    for what in ("started", "suspended", "resumed", "stopped"):
        assert place.happened(uuid, what)
    hypervisor.undefine(uuid)
    assert place.state(uuid) == "missing" and place.happened(uuid, "undefined")


def test_start_paused_also_from_a_save(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid, paused=True)
    assert place.state(uuid) == PAUSED
    place.hypervisor.resume(uuid)
    place.hypervisor.save(uuid)
    place.hypervisor.start(uuid, paused=True)
    assert place.state(uuid) == PAUSED


def test_undefine_forgets_a_save_and_refuses_a_running_domain(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    with pytest.raises(HypervisorError, match="runs"):
        place.hypervisor.undefine(uuid)
    assert place.state(uuid) == RUNNING
    place.hypervisor.save(uuid)
    place.hypervisor.undefine(uuid)
    place.hypervisor.undefine(uuid)
    assert place.state(uuid) == "missing"


def test_what_is_off_cannot_be_paused(place: Place) -> None:
    uuid = place.defined()
    for act in (place.hypervisor.pause, place.hypervisor.resume, place.hypervisor.save, place.hypervisor.reboot):
        with pytest.raises(HypervisorError, match="not running"):
            act(uuid)
    place.hypervisor.shutdown(uuid)
    place.hypervisor.destroy(uuid)
    assert place.state(uuid) == OFF


def test_a_missing_disk_is_named(place: Place) -> None:
    spec = place.spec()
    place.hypervisor.define(spec)
    spec.disks[0].path.unlink()
    with pytest.raises(HypervisorError, match=re.escape(str(spec.disks[0].path))):
        place.hypervisor.start(spec.uuid)
    assert place.state(spec.uuid) in (OFF, CRASHED)


def test_a_missing_network_is_named(place: Place) -> None:
    uuid = place.defined(nics=(Nic("52:54:00:00:00:03", network="no-such-net"),))
    with pytest.raises(HypervisorError, match="no-such-net"):
        place.hypervisor.start(uuid)


def test_killed_from_outside(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    place.outside.destroy(uuid)
    assert place.state(uuid) == OFF and place.hypervisor.domain(uuid).reason == "outside"
    assert place.happened(uuid, "stopped").reason == "outside"


def test_undefined_from_outside(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    place.outside.undefine(uuid)
    assert place.state(uuid) == "missing" and place.happened(uuid, "undefined")
    with pytest.raises(Conflict, match="from outside"):
        place.hypervisor.start(uuid)
    place.hypervisor.destroy(uuid)
    place.hypervisor.undefine(uuid)


def test_undefined_from_outside_while_it_runs(place: Place) -> None:
    """It would be gone when it stops, until it is defined again."""
    spec, hypervisor = place.spec(), place.hypervisor
    for again in (True, False):
        hypervisor.define(spec)
        hypervisor.start(spec.uuid)
        place.outside.forget(spec.uuid)
        seen = hypervisor.domain(spec.uuid)
        assert seen is not None and (seen.state, seen.persistent) == (RUNNING, False)
        if again:
            hypervisor.define(spec)
            seen = hypervisor.domain(spec.uuid)
            assert seen is not None and (seen.state, seen.persistent) == (RUNNING, True)
        hypervisor.destroy(spec.uuid)
        assert (hypervisor.domain(spec.uuid) is not None) == again


def test_other_peoples_domains_are_not_touched(place: Place) -> None:
    spec = place.spec()
    place.foreign(spec)
    before = place.hypervisor.domain(spec.uuid)
    assert before is not None and not before.owned
    hypervisor = place.hypervisor
    with pytest.raises(Conflict, match=spec.name):
        hypervisor.define(spec)
    with pytest.raises(Conflict, match=spec.name):
        hypervisor.define(replace(place.spec(), name=spec.name))
    for act in (hypervisor.undefine, hypervisor.start, hypervisor.shutdown, hypervisor.destroy, hypervisor.pause,
                hypervisor.resume, hypervisor.save, hypervisor.discard_save, hypervisor.reboot):
        with pytest.raises(Conflict):
            act(spec.uuid)
    assert hypervisor.domain(spec.uuid) == before


def test_a_clone_with_a_copy_of_our_metadata_is_not_ours(place: Place) -> None:
    spec = place.spec()
    other = str(uuids.uuid4())
    xml = place.hypervisor.render(spec).replace(f"<uuid>{spec.uuid}", f"<uuid>{other}")
    place.outside.define(xml)
    assert not place.hypervisor.domain(other).owned
    with pytest.raises(Conflict):
        place.hypervisor.undefine(other)


def test_devices_of_a_running_domain(place: Place) -> None:
    hypervisor, spec = place.hypervisor, place.spec()
    hypervisor.define(spec)
    assert hypervisor.running(spec.uuid) is None
    disk = Disk(spec.disks[0].path.with_name("volume"), "vdb", "raw", serial="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    hypervisor.make_disk(disk.path, "raw", 4 * MIB)
    hypervisor.permit([disk.path])
    with pytest.raises(HypervisorError, match="not running"):
        hypervisor.attach(spec.uuid, disk)
    hypervisor.start(spec.uuid)
    for _time in range(2):
        hypervisor.attach(spec.uuid, disk)
    seen = hypervisor.running(spec.uuid)
    assert [d.target for d in seen.disks] == ["vda", "vdb"] and replace(seen.disks[1], tag=None) == disk
    assert [d.target for d in hypervisor.domain(spec.uuid).disks] == ["vda"]  # the definition is another matter
    hypervisor.resize(spec.uuid, "vdb", 8 * MIB)
    assert hypervisor.disk(disk.path, "raw").virtual_size == 8 * MIB
    with pytest.raises(HypervisorError):
        hypervisor.resize(spec.uuid, "vdz", 8 * MIB)
    hypervisor.destroy(spec.uuid)
    assert hypervisor.running(spec.uuid) is None
    hypervisor.start(spec.uuid)
    assert [d.target for d in hypervisor.running(spec.uuid).disks] == ["vda"]
    hypervisor.detach(spec.uuid, disk)  # gone already
    hypervisor.attach(spec.uuid, disk)
    hypervisor.destroy(spec.uuid)
    hypervisor.detach(spec.uuid, disk)


def test_networks(place: Place) -> None:
    hypervisor, name = place.hypervisor, place.prefix
    spec = NetworkSpec(str(uuids.uuid4()), name, "isolated", name[:14], "192.168.219.1", 24, "192.168.219.2",
                       "192.168.219.99", "lab.example", 1400)
    for _time in range(2):
        hypervisor.make_network(spec)
    seen = hypervisor.networks()[name]
    assert (seen.uuid, seen.bridge) == (spec.uuid, spec.bridge) and seen.active and seen.autostart and seen.owned
    assert hypervisor.leases(name) == [] and hypervisor.leases("no-such-net") == []
    with pytest.raises(Conflict, match=name):
        hypervisor.make_network(replace(spec, uuid=str(uuids.uuid4())))
    uuid = place.defined(nics=(Nic("52:54:00:00:00:04", network=name),))
    hypervisor.start(uuid)
    assert place.state(uuid) == RUNNING
    hypervisor.destroy(uuid)
    for _time in range(2):
        hypervisor.remove_network(name)
    assert name not in hypervisor.networks()


def test_addresses_that_dhcp_gives_to_one_only(place: Place) -> None:
    name, hypervisor = place.prefix, place.hypervisor
    one, other = "52:54:00:00:00:05", "52:54:00:00:00:06"
    spec = NetworkSpec(str(uuids.uuid4()), name, "isolated", name, "192.168.219.1", 24, "192.168.219.2",
                       "192.168.219.254", hosts=((other, "192.168.219.9"),))
    hypervisor.reserve(name, one, "192.168.219.7")  # a network that is not there is made with its hosts
    hypervisor.make_network(spec)
    assert place.outside.reserved(name) == {other: "192.168.219.9"}
    for _again in range(2):
        hypervisor.reserve(name, one, "192.168.219.7")
        assert place.outside.reserved(name) == {one: "192.168.219.7", other: "192.168.219.9"}
    hypervisor.reserve(name, one, "192.168.219.8")
    hypervisor.reserve(name, other, "192.168.219.7")
    assert place.outside.reserved(name) == {one: "192.168.219.8", other: "192.168.219.7"}
    hypervisor.reserve(name, other, "192.168.219.8")  # one has lost it
    assert place.outside.reserved(name) == {other: "192.168.219.8"}
    for _again in range(2):
        hypervisor.release(name, other)
        assert place.outside.reserved(name) == {}
    hypervisor.remove_network(name)
    hypervisor.release(name, other)
    place.outside.network(f"{name}x")
    with pytest.raises(Conflict):
        hypervisor.reserve(f"{name}x", one, "192.168.219.7")


def test_other_peoples_networks_are_not_touched(place: Place) -> None:
    name = place.prefix
    place.outside.network(name)
    assert not place.hypervisor.networks()[name].owned
    with pytest.raises(Conflict, match=name):
        place.hypervisor.make_network(NetworkSpec(str(uuids.uuid4()), name, "nat", name, "192.168.218.1", 24))
    with pytest.raises(Conflict, match=name):
        place.hypervisor.remove_network(name)
    assert name in place.hypervisor.networks()
