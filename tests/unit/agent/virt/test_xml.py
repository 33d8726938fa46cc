# SPDX-License-Identifier: GPL-3.0-or-later
"""Golden XML: ``tests/cases/xml/*.yml`` (a spec) against ``*.xml``; and how libvirt's words become ours.

After a change of a template: ``UPDATE_GOLDEN=1 pytest tests/unit/agent/virt/test_xml.py``, and read the difference.
"""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import libvirt
import pytest
import yaml
from jinja2 import UndefinedError

from magnetar_agent.hardware.cpu import CpuMode
from magnetar_agent.hardware.firmware import Firmware
from magnetar_agent.host.hypervisor import DomainSpec
from magnetar_agent.host.networks import NetworkSpec, Nic
from magnetar_agent.host.storage import Backing, Disk, DiskKey, NetworkSource, SharedFolder
from magnetar_agent.virt.domain.domain import DomainState, domain_state, parse_domain_xml, render_device, render_domain
from magnetar_agent.virt.domain.power import FREE
from magnetar_agent.virt.host.probe import PROVED, probe_firmware, probe_kvm
from magnetar_agent.virt.tools.templates import NAMESPACE, fill_template

CASES = sorted(Path(__file__).parents[3].glob("cases/xml/*.yml"))
SCHEMAS = Path("/usr/share/libvirt/schemas")
#: The passphrase of encrypted disks, which no definition has.
HIDDEN = "0123456789abcdef" * 4
HOSTILE = "</title><devices/>&amp;<>\"'"


def spec_of(case: dict[str, Any]) -> DomainSpec:
    """The DomainSpec that a case writes down."""
    paths = {f.name for f in fields(DomainSpec) if "Path" in str(f.type)}
    disks = tuple(Disk(**{**disk, "path": Path(disk["path"]), "remote": remote_of(disk.get("remote")),
                          "backing": backing_of(disk.get("backing")),
                          "key": DiskKey(disk["key"], HIDDEN) if "key" in disk else None})
                  for disk in case.pop("disks", ()))
    nics = tuple(Nic(**nic) for nic in case.pop("nics", ()))
    shares = tuple(SharedFolder(Path(one["path"]), one["tag"]) for one in case.pop("shares", ()))
    firmware, cpu = case.pop("firmware", None), case.pop("cpu", None)
    rest = {k: Path(v) if k in paths else v for k, v in case.items()}
    rest |= {"firmware": Firmware(Path(firmware[0]), firmware[1]) if firmware else None,
             "cpu": CpuMode(*cpu) if cpu else None}
    return DomainSpec(disks=disks, nics=nics, shares=shares, **rest)


def backing_of(given: dict[str, Any] | None) -> Backing | None:
    """What a disk of a case stands on."""
    return Backing(Path(given["path"]), given["format"]) if given else None


def remote_of(given: dict[str, Any] | None) -> NetworkSource | None:
    """The source by a protocol that a case writes down."""
    if given is None:
        return None
    hosts = tuple((host, port) for host, port in given.pop("hosts", ()))
    return NetworkSource(**{**given, "hosts": hosts, "socket": Path(given["socket"]) if "socket" in given else None})


def xml_of(path: Path) -> str:
    """What the template makes of a case."""
    case = yaml.safe_load(path.read_text())
    if "network" in case:
        return fill_template("network.xml.j2", {"spec": NetworkSpec(**case["network"]),
                                                "hosts_file": case.get("hosts_file")})
    cache = case.pop("cache", "none")
    return render_domain(spec_of(case), cache).replace(f'arch="{platform.machine()}"', 'arch="x86_64"')


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    golden, made = path.with_suffix(".xml"), xml_of(path)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(made)
    assert made == golden.read_text() and HIDDEN not in made


if SCHEMAS.is_dir():

    @pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
    def test_libvirts_schema_accepts_it(path: Path) -> None:
        """Asked of libvirt's test driver, which has no guests of ours, and says so when the schema has let one pass."""
        made = xml_of(path)
        with closing(libvirt.open("test:///default")) as connection:
            define, flag = (connection.networkDefineXMLFlags, libvirt.VIR_NETWORK_DEFINE_VALIDATE) if made.startswith(
                "<network") else (connection.defineXMLFlags, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            try:
                define(made, flag)
            except libvirt.libvirtError as error:
                assert error.get_error_code() != libvirt.VIR_ERR_XML_INVALID_SCHEMA, error
                assert "no emulator" in str(error) or "capabilities" in str(error), error


def hostile() -> DomainSpec:
    path = Path("/images") / HOSTILE.replace("/", "_")
    return DomainSpec(
        uuid="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", name=HOSTILE, title=HOSTILE, vcpus=1, ram_mib=64,
        virt_type="kvm", machine="q35", disks=(Disk(path, "vda", tag=HOSTILE, backing=Backing(path, "raw")),),
        nics=(Nic("52:54:00:00:00:01", network=HOSTILE, tag=HOSTILE),), console_log=path, description=HOSTILE,
        kernel=path, ramdisk=path, cmdline=HOSTILE, metadata={HOSTILE: HOSTILE})


def test_hostile_names_stay_text() -> None:
    root, spec = ET.fromstring(render_domain(hostile())), hostile()
    assert len(root.findall("devices")) == 1
    assert [root.findtext(path) for path in ("name", "title", "description", "os/cmdline")] == [HOSTILE] * 4
    assert root.findtext("os/kernel") == str(spec.kernel)
    note = root.find(f"metadata/{{{NAMESPACE}}}server/{{{NAMESPACE}}}note")
    assert note is not None and (note.get("name"), note.text) == (HOSTILE, HOSTILE)


def test_what_is_rendered_is_read_back() -> None:
    spec, seen = hostile(), parse_domain_xml(render_domain(hostile()))
    assert seen.owned and seen.disks == spec.disks and seen.nics == spec.nics
    assert (seen.uuid, seen.name, seen.title, seen.vcpus, seen.ram_mib, seen.virt_type, seen.machine) == (
        spec.uuid, spec.name, spec.title, 1, 64, "kvm", "q35")


def test_volumes_are_read_back() -> None:
    spec = spec_of(yaml.safe_load((Path(__file__).parents[3] / "cases/xml/volumes.yml").read_text()))
    for disk, seen in zip(spec.disks, parse_domain_xml(render_domain(spec)).disks, strict=True):
        assert seen == (replace(disk, path=Path(disk.remote.name)) if disk.remote else disk)
    for disk in spec.disks:
        alone = ET.tostring(ET.fromstring(render_device(disk)))
        assert HIDDEN.encode() not in alone
        assert b"<target" in alone and str(disk.target).encode() in alone


def test_a_template_cannot_use_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.j2").write_text("{{ nothing }}")
    with pytest.raises(UndefinedError):
        fill_template("x.j2", {}, tmp_path)


@pytest.mark.parametrize(("unit", "mib"), [("KiB", 2), ("b", 0), ("MiB", 2048), ("GiB", 2097152), (None, 2)])
def test_memory_units(unit: str | None, mib: int) -> None:
    attribute = f' unit="{unit}"' if unit else ""
    assert parse_domain_xml(f"<domain><memory{attribute}>2048</memory></domain>").ram_mib == mib


def test_other_peoples_domains_are_read() -> None:
    seen = parse_domain_xml(
        "<domain type='lxc'><name>x</name><uuid>u</uuid><devices><disk type='network'><source name='pool/i'/>"
                            "</disk><disk device='cdrom'/><interface type='user'/></devices></domain>")
    assert (seen.name, seen.owned, seen.virt_type, len(seen.disks), len(seen.nics)) == ("x", False, "lxc", 2, 1)


@pytest.mark.parametrize(("seen", "words"), [
    (DomainState(libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED), ("running", "unknown")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTDOWN, 1), ("running", "guest")),
    (DomainState(libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER), ("paused", "unknown")),
    (DomainState(libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR), ("paused", "io-error")),
    (DomainState(libvirt.VIR_DOMAIN_CRASHED, libvirt.VIR_DOMAIN_CRASHED_PANICKED), ("crashed", "panic")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN), ("off", "guest")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED), ("off", "outside")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED), ("crashed", "failed")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_FAILED), ("off", "failed")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN), ("off", "unknown")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SAVED, saved=True), ("suspended", "saved")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN, saved=True), ("suspended", "saved")),
    (DomainState(libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SAVED), ("off", "saved")),
    (DomainState(99, 99), ("off", "unknown")),
])
def test_states(seen: DomainState, words: tuple[str, str]) -> None:
    assert domain_state(seen) == words


def test_the_firmware_of_the_kvm_probe() -> None:
    assert len(probe_firmware()) == 0x10000 and PROVED == 99


if platform.machine() == "x86_64" and shutil.which("qemu-system-x86_64"):

    def test_the_guest_of_the_kvm_probe_runs_under_emulation() -> None:
        usable, reason = probe_kvm("tcg", limit=30)
        assert usable, reason


def test_definitions_that_differ_in_names_and_numbers_have_one_form() -> None:
    def form(spec: DomainSpec) -> str:
        return FREE.sub("", render_domain(spec))

    disk, nic = Disk(Path("/s/1/disk"), "vda"), Nic("52:54:00:00:00:01", network="lan")
    one = DomainSpec(uuid="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", name="magnetar-1", title="one", vcpus=1, ram_mib=64,
                     virt_type="qemu", machine="q35", disks=(disk,), nics=(nic,), console_log=Path("/s/1/console.log"))
    assert form(one) == form(replace(
        one, uuid="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", name="magnetar-2", title=HOSTILE, vcpus=8, ram_mib=4096,
        disks=(replace(disk, path=Path("/s/'2'/disk")),), nics=(replace(nic, mac="52:54:00:00:00:02", network="wan"),),
        console_log=Path("/s/2/console.log")))
    for other in (replace(one, machine="pc"), replace(one, nics=(replace(nic, model="e1000"),)),
                  replace(one, disks=(replace(disk, bus="scsi", target="sda"),)), replace(one, virt_type="kvm"),
                  replace(one, nics=()), replace(one, description="more")):
        assert form(other) != form(one)
