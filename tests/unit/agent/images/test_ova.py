# SPDX-License-Identifier: GPL-3.0-or-later
"""Images from OVA archives: their disk is taken in, and hostile archives are refused with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from magnetar_agent.images import importing, unpacking
from magnetar_core.errors import ImageRefused, InvalidField, NoSpace
from tests.support.agent.hostile_qemu import Hypervisor
from tests.support.agent.image import digest, file, kept, receive
from tests.support.agent.ova import archive, description, entry, make_ova, vmware_description
from tests.unit.agent.conftest import Host
from tests.unit.core.images import qcow2, sparse_vmdk, vmdk

DISK = sparse_vmdk(capacity=2**21)


@pytest.mark.parametrize("way", ["path", "upload"])
@pytest.mark.parametrize("manifest", [True, False])
def test_the_disk_of_an_ova_becomes_the_image(host: Host, way: str, manifest: bool) -> None:
    data = make_ova(DISK, manifest)
    want = file(host, data) if way == "path" else {"source": {"upload": True}, "checksum": digest(data)}
    if way == "path":
        assert host.ensure("image", "img", want, dry_run=True).resource["disk_format"] in (None, "vmdk")  # type: ignore[index]
    host.ensure("image", "img", want)
    if way == "upload":
        receive(host, data)
    shown = host.ensure("image", "img", want).resource
    assert shown is not None
    assert (shown["status"], shown["disk_format"], shown["virtual_size"]) == ("active", "vmdk", 2**30)
    assert shown["checksum"] == digest(data) and not host.ensure("image", "img", want).changed
    path, format = importing.content_by_id(host.agent.host, str(shown["id"]))
    assert format == "qcow2" and path.read_bytes()[:4] == b"QFI\xfb" and len(kept(host)) == 2


def test_an_ova_may_have_a_qcow2(host: Host) -> None:
    good = qcow2()
    shown = host.ensure("image", "img", file(host, make_ova(good, name="web.qcow2"))).resource
    assert shown is not None and shown["disk_format"] == "qcow2" and shown["size"] == len(good)
    assert importing.content_by_id(host.agent.host, str(shown["id"]))[0].read_bytes() == good


OVF = description("web.vmdk")
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/shadow">]>'


def pax(key: str) -> bytes:
    """An OVA whose disk has an extended header with *key*."""
    info = tarfile.TarInfo("web.vmdk")
    info.size, info.pax_headers = len(DISK), {key: "x"}
    header = info.tobuf(tarfile.PAX_FORMAT)
    ovf = archive(("web.ovf", OVF))[:512 + -(-len(OVF) // 512) * 512]
    return ovf + header + DISK


def broken(data: bytes, at: int, text: bytes) -> bytes:
    return data[:at] + text + data[at + len(text):]


HOSTILE = {
    "path above": (archive(("web.ovf", OVF), ("../web.vmdk", DISK)), "lies in a folder"),
    "absolute path": (archive(("web.ovf", OVF), ("/etc/cron.d/x", DISK)), "lies in a folder"),
    "folder": (archive(("web.ovf", OVF), entry("d", tarfile.DIRTYPE)), "'d/' in it is a folder"),
    "symbolic link": (archive(("web.ovf", OVF), entry("web.vmdk", tarfile.SYMTYPE, "/etc/shadow")),
                      "'web.vmdk' in it is a symbolic link"),
    "hard link": (archive(("web.ovf", OVF), entry("web.vmdk", tarfile.LNKTYPE, "/etc/shadow")), "is a hard link"),
    "device": (archive(("web.ovf", OVF), entry("web.vmdk", tarfile.BLKTYPE)), "is a device"),
    "pipe": (archive(("web.ovf", OVF), entry("web.vmdk", tarfile.FIFOTYPE)), "is a pipe"),
    "same name twice": (archive(("web.ovf", OVF), ("web.vmdk", DISK), ("web.vmdk", DISK)), "two files 'web.vmdk'"),
    "two disks": (archive(("web.ovf", description("a.vmdk", "b.vmdk")), ("a.vmdk", DISK), ("b.vmdk", DISK)),
                  r"2 disks \(a.vmdk, b.vmdk\)"),
    "no disk": (archive(("web.ovf", description())), "it has 0 disks"),
    "no description": (archive(("web.vmdk", DISK)), "0 files .ovf"),
    "two descriptions": (archive(("a.ovf", OVF), ("b.ovf", OVF), ("web.vmdk", DISK)), "2 files .ovf"),
    "disk elsewhere": (archive(("web.ovf", description("http://192.0.2.1/web.vmdk"))), "not in the archive"),
    "disk of the host": (archive(("web.ovf", description("/etc/shadow"))), "not in the archive"),
    "entities": (archive(("web.ovf", description("web.vmdk", before=BOMB, inside="&b;")), ("web.vmdk", DISK)),
                 "document type"),
    "entity of a file": (archive(("web.ovf", description("web.vmdk", before=OUTSIDE, inside="&a;")),
                                 ("web.vmdk", DISK)), "document type"),
    "deep": (archive(("web.ovf", description("web.vmdk", inside="<a>" * 2000 + "</a>" * 2000)), ("web.vmdk", DISK)),
             "nested too deeply"),
    "long description": (archive(("web.ovf", OVF.ljust(2 << 20)), ("web.vmdk", DISK)), "1048576 are allowed"),
    "no XML": (archive(("web.ovf", b"<Envelope>"), ("web.vmdk", DISK)), "is no XML"),
    "parent": (archive(("web.ovf", description("web.vmdk", disk='ovf:parentRef="x"')), ("web.vmdk", DISK)), "a parent"),
    "compressed": (archive(("web.ovf", description("web.vmdk", file='ovf:compression="gzip"')), ("web.vmdk", DISK)),
                   "compressed or in pieces"),
    "pieces": (archive(("web.ovf", description("web.vmdk", file='ovf:chunkSize="9"')), ("web.vmdk", DISK)),
               "in pieces"),
    "cut short": (make_ova(DISK, False)[:4096], "behind the end of the archive"),
    "damaged header": (broken(make_ova(DISK), 0, b"X"), "damaged"),
    "many files": (archive(*[(f"f{number}", b"") for number in range(300)]), "more than 64 files"),
    "other size": (pax("size"), "extended header in it sets 'size'"),
    "other name": (pax("path"), "extended header in it sets 'path'"),
    "raw disk": (make_ova(b"\0" * 4096), "'web.vmdk' of the OVA is raw"),
    "disk that names files": (make_ova(vmdk("/etc/shadow")), "VMDK"),
    "archive inside": (make_ova(make_ova(DISK)), "tar archive"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("way", ["path", "upload"])
def test_hostile_archives_are_refused_by_name(host: Host, name: str, way: str) -> None:
    data, why = HOSTILE[name]
    with pytest.raises(ImageRefused, match=why):
        if way == "path":
            host.ensure("image", "img", file(host, data))
        else:
            host.ensure("image", "img", {"source": {"upload": True}})
            receive(host, data)
    assert not [path for path in kept(host) if "." in path or len(path) > 40]


def test_a_disk_that_differs_from_the_manifest_is_refused(host: Host) -> None:
    data = make_ova(DISK)
    at = data.index(DISK) + len(DISK) - 1
    with pytest.raises(ImageRefused, match="another digest"):
        host.ensure("image", "img", file(host, broken(data, at, bytes([data[at] ^ 1]))))
    assert kept(host) == []


def test_a_full_host_refuses_before_it_unpacks(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "copy_archived_disk", lambda *_args: pytest.fail("it was unpacked"))
    want, usage, calls = file(host, make_ova(DISK)), shutil.disk_usage(host.root), []

    def full(_path: Path) -> object:
        calls.append(1)
        return usage._replace(free=usage.free if len(calls) == 1 else 10)

    monkeypatch.setattr(shutil, "disk_usage", full)
    with pytest.raises(NoSpace):
        host.ensure("image", "img", want)
    assert kept(host) == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("qemu-img"), reason="needs root and qemu-img")
def test_a_real_disk_keeps_its_content(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, made = host.root / "disk.raw", host.root / "disk.vmdk"
    raw.write_bytes(os.urandom(1 << 20).ljust(4 << 20, b"\0"))
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, made],
                   check=True)
    real = Hypervisor()
    monkeypatch.setattr(host.fake, "copy_disk", real.copy_disk)
    shown = host.ensure("image", "img", file(host, make_ova(made.read_bytes()))).resource
    assert shown is not None and shown["virtual_size"] == 4 << 20
    path, _format = importing.content_by_id(host.agent.host, str(shown["id"]))
    answer = subprocess.run(["qemu-img", "compare", raw, path], check=True, capture_output=True, text=True)
    assert "identical" in answer.stdout


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("qemu-img"), reason="needs root and qemu-img")
def test_each_real_disk_of_an_ova_becomes_an_image(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = {"a.vmdk": host.root / "a.raw", "b.vhd": host.root / "b.raw"}
    contents = {}
    for (name, raw), format in zip(disks.items(), (["vmdk", "-o", "subformat=streamOptimized"],
                                                   ["vpc", "-o", "force_size=on"]), strict=True):
        raw.write_bytes(os.urandom(1 << 20).ljust(4 << 20, b"\0"))
        subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", *format, raw, host.root / name], check=True)
        contents[name] = (host.root / name).read_bytes()
    data = archive(("web.ovf", vmware_description(dict.fromkeys(contents, 4 << 20))), *contents.items())
    monkeypatch.setattr(host.fake, "copy_disk", Hypervisor().copy_disk)
    paths = []
    for name, raw in disks.items():
        shown = host.ensure("image", name, file(host, data, ova_disk=name)).resource
        assert shown is not None and shown["virtual_size"] == 4 << 20 and shown["ovf"]["vcpus"] == 2
        paths.append(importing.content_by_id(host.agent.host, str(shown["id"]))[0])
        answer = subprocess.run(["qemu-img", "compare", raw, paths[-1]], check=True, capture_output=True, text=True)
        assert "identical" in answer.stdout
    assert paths[0].name != paths[1].name  # bases in Ceph are found by this name


def test_an_uploaded_archive_is_read_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, read = [], importing.read_ova
    monkeypatch.setattr(importing, "read_ova", lambda *arguments: calls.append(1) or read(*arguments))
    host.ensure("image", "img", {"source": {"upload": True}})
    receive(host, make_ova(DISK))
    assert len(calls) == 1


@pytest.mark.parametrize("way", ["path", "upload"])
def test_a_bare_description_is_refused_with_what_to_do(host: Host, way: str) -> None:
    with pytest.raises(ImageRefused, match=r"description of a guest.*tar -cf NAME.ova NAME.ovf \*.vmdk"):
        if way == "path":
            host.ensure("image", "img", file(host, vmware_description({"a.vmdk": 1 << 30})))
        else:
            host.ensure("image", "img", {"source": {"upload": True}})
            receive(host, vmware_description({"a.vmdk": 1 << 30}))


def test_a_folder_is_refused_with_what_to_do(host: Host) -> None:
    (host.root / "exported").mkdir()
    with pytest.raises(InvalidField, match=r"source.path: is a folder.*tar -cf NAME.ova"):
        host.ensure("image", "img", {"source": {"path": str(host.root / "exported")}})
