# SPDX-License-Identifier: GPL-3.0-or-later
"""Images from VHD and VHDX, as qemu-img makes them: their content stays, and disks with parents are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from magnetar_agent.images import importing
from magnetar_core.errors import ImageRefused
from tests.support.agent.hostile_qemu import Hypervisor
from tests.support.agent.image import digest, file, kept, receive
from tests.support.agent.ova import make_ova
from tests.unit.agent.conftest import Host
from tests.unit.core.images import MIB, vhd, vhdx

FORMS = {"vhd": "vpc", "fixed vhd": "vpc", "vhdx": "vhdx", "fixed vhdx": "vhdx"}


def real_disk(root: Path, form: str, creator: bytes = b"") -> tuple[Path, bytes]:
    """Return a raw file, and its content as VHD or VHDX of qemu-img. *creator*: the program that the VHD names."""
    raw, made = root / "disk.raw", root / "made"
    raw.write_bytes((os.urandom(MIB).ljust(5 * MIB, b"\0") + os.urandom(4096)).ljust(7 * MIB, b"\0"))
    options = [*(["force_size=on"] if FORMS[form] == "vpc" else []), *(["subformat=fixed"] if "fixed" in form else [])]
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", FORMS[form], *(["-o", ",".join(options)] if options else [
    ]), raw, made], check=True)
    data = bytearray(made.read_bytes())
    for at in ({0, len(data) - 512} if creator else ()):
        if data[at:at + 8] == b"conectix":
            data[at + 28:at + 32], data[at + 64:at + 68] = creator, bytes(4)
            data[at + 64:at + 68] = (~sum(data[at:at + 512]) & 0xFFFFFFFF).to_bytes(4, "big")
    return raw, bytes(data)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("qemu-img"), reason="needs root and qemu-img")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("creator", [b"", b"vbox"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_real_disk_keeps_its_content(host: Host, monkeypatch: pytest.MonkeyPatch, form: str, creator: bytes,
                                       packed: bool) -> None:
    raw, content = real_disk(host.root, form, creator)
    data = make_ova(content, name="web.vhd") if packed else content
    monkeypatch.setattr(host.fake, "copy_disk", Hypervisor().copy_disk)
    shown = host.ensure("image", "img", file(host, data)).resource
    assert shown is not None
    assert (shown["disk_format"], shown["virtual_size"]) == (form.rpartition(" ")[2], 7 * MIB)
    assert shown["checksum"] == digest(data) and not host.ensure("image", "img", file(host, data)).changed
    path, format = importing.content_by_id(host.agent.host, str(shown["id"]))
    answer = subprocess.run(["qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, path], check=True,
                            capture_output=True, text=True)
    assert format == "qcow2" and "identical" in answer.stdout


@pytest.mark.parametrize("way", ["path", "upload"])
@pytest.mark.parametrize(("data", "why"), [(vhd(kind=4, parent="C:\\base.vhd"), r"differencing disk.*C:\\base.vhd"),
                                           (vhdx(flags=2), "differencing disk.*Merge")], ids=["vhd", "vhdx"])
def test_a_differencing_disk_is_refused(host: Host, way: str, data: bytes, why: str) -> None:
    with pytest.raises(ImageRefused, match=why):
        if way == "path":
            host.ensure("image", "img", file(host, data))
        else:
            host.ensure("image", "img", {"source": {"upload": True}})
            receive(host, data)
    assert not [path for path in kept(host) if "." in path or len(path) > 40]


@pytest.mark.parametrize(("data", "format"), [(vhd(), "vhd"), (vhd(kind=2), "vhd"), (vhdx(), "vhdx")])
def test_an_upload_may_name_its_format(host: Host, data: bytes, format: str) -> None:
    host.ensure("image", "img", {"source": {"upload": True}, "disk_format": format})
    shown = receive(host, data).resource
    assert (shown["status"], shown["disk_format"], shown["virtual_size"]) == ("active", format, MIB)
