# SPDX-License-Identifier: GPL-3.0-or-later
"""The definition of an export: what stays of the golden domains, and what goes with a note."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.servers.exporting.portable_domain import PortableFiles, make_portable, networks_of_domain
from magnetar_core.errors import Conflict

GOLDEN = Path(__file__).parents[4] / "cases/xml"
#: Words that no definition of another host may have: of Magnetar, and of places of the old host.
OURS = ("magnetar", "/state/", "/var/lib", "cpuset", "numatune", "hugepages", "<filesystem", "<hostdev", "<log",
        "backingStore", "<auth", "<encryption", "emulator")


def golden() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.xml") if path.read_text().lstrip().startswith("<domain"))


def portable(xml: str) -> tuple[ET.Element, str, list[str]]:
    """The definition as an export in /exp has it, with all of its disks and files."""
    before = ET.fromstring(xml)
    disks = {target.get("dev", ""): (Path(f"/exp/{target.get('dev')}.qcow2"), "qcow2")
             for target in before.iterfind("devices/disk/target")}
    others = {name: Path(f"/exp/{name}") for name in ("nvram", "kernel", "initrd") if before.find(f"os/{name}") is not
              None}
    text, notes = make_portable(xml, "web1", PortableFiles(disks, others))
    return ET.fromstring(text), text, notes


@pytest.mark.parametrize("name", golden())
def test_nothing_of_the_host_or_of_magnetar_stays(name: str) -> None:
    xml = (GOLDEN / f"{name}.xml").read_text()
    before, (root, text, _notes) = ET.fromstring(xml), portable(xml)
    assert root.findtext("name") == "web1"
    assert not [word for word in OURS if word in text.replace("<emulatorpin", "<")], text
    assert {source.get("file", "").partition("/exp/")[0] for source in root.iterfind("devices/disk/source")} <= {""}
    for path in ("uuid", "vcpu", "memory", "os/type", "sysinfo", "features", "clock", "devices/video/model"):
        old, new = before.find(path), root.find(path)
        assert (old is None) == (new is None) and (old is None or new is None or old.text == new.text or
                                                   not (old.text or "").strip()), path
    for old, new in zip(before.iterfind("devices/interface"), root.iterfind("devices/interface"), strict=True):
        for part in ("mac", "source", "model", "virtualport"):
            assert [one.attrib for one in old.findall(part)] == [one.attrib for one in new.findall(part)]


@pytest.mark.skipif(not shutil.which("virt-xml-validate"), reason="needs libvirt's schemas")
@pytest.mark.parametrize("name", golden())
def test_the_definition_fits_the_schema_of_libvirt(name: str, tmp_path: Path) -> None:
    path = tmp_path / "domain.xml"
    path.write_text(portable((GOLDEN / f"{name}.xml").read_text())[1])
    done = subprocess.run(["virt-xml-validate", path, "domain"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_parts_that_go_are_noted() -> None:
    assert "The share files is left out." in portable((GOLDEN / "shares.xml").read_text())[2]
    assert "The host's device 0000:5e:00.0 is left out." in portable((GOLDEN / "functions.xml").read_text())[2]


def test_a_tpm_and_uefi_are_noted() -> None:
    root, text, notes = portable("""<domain type='kvm'><name>x</name><os firmware='efi'><type>hvm</type>
        <loader type='pflash'>/usr/share/OVMF.fd</loader><nvram template='/usr/share/VARS.fd'>/state/uefi</nvram></os>
        <devices><tpm model='tpm-crb'><backend type='emulator'><encryption secret='5f'/></backend></tpm></devices>
        </domain>""")
    assert root.find("os/loader") is None and root.findtext("os/nvram") == "/exp/nvram" and "template" not in text
    assert root.find("devices/tpm/backend/encryption") is None
    assert any("TPM" in note for note in notes) and any("UEFI" in note for note in notes)


def test_disks_that_differ_from_the_definition() -> None:
    xml = """<domain><name>x</name><devices><disk type='network'><driver name='qemu' type='raw' cache='writeback'
        io='native'/><source protocol='rbd' name='pool/image'/><auth/><target dev='vda'/><shareable/></disk>
        <disk type='file'><source file='/gone'/><target dev='vdb'/></disk>
        <interface type='bridge'><source bridge='br0'/></interface></devices></domain>"""
    text, notes = make_portable(xml, "x", PortableFiles({"vda": (Path("/exp/vda"), "qcow2")}, {}))
    (disk,) = ET.fromstring(text).iterfind("devices/disk")
    assert [child.tag for child in disk] == ["driver", "source", "target"] and disk.get("type") == "file"
    driver = disk.find("driver")
    assert driver is not None and driver.attrib == {"name": "qemu", "type": "qcow2", "cache": "writeback"}
    assert [note.split()[2] for note in notes] == ["vda", "vdb"] and networks_of_domain(text) == ["bridge br0"]
    with pytest.raises(Conflict, match="lacks its disk vdc"):
        make_portable(xml, "x", PortableFiles({"vda": (Path("/a"), "raw"), "vdc": (Path("/c"), "raw")}, {}))
