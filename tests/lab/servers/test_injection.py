# SPDX-License-Identifier: GPL-3.0-or-later
"""libguestfs writes into the root disk of a server before its guest has seen it: what debugfs then finds there."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import guest
from tests.support.lab.agent import LabAgent
from tests.support.lab.guest_data import SIZES, TOLD

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = Path("/usr/lib/python3/dist-packages/guestfs.py")
pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="injection into disks"),
    pytest.mark.skipif(not (MODULE.exists() and shutil.which("supermin")),
                       reason="needs libguestfs, which ./check deep installs"),
]

KEY, SECRET = TOLD["keys"][0]["data"], "Sesame-42"
#: A file system in which libguestfs sees a Linux.
LINUX = {"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
         "etc/shadow": "root:*:19000:0:99999:7:::\ndaemon:*:19000::::::\n",
         "etc/fstab": "/dev/vda / ext4 defaults 0 1\n", "etc/os-release": "ID=debian\nNAME=Debian\nVERSION_ID=12\n",
         "etc/debian_version": "12.0\n", "bin/sh": "", "usr/bin/true": "", "root/.profile": "", "etc/hosts": ""}
#: Seconds: the appliance boots under emulation, as the lab's guests do.
LIMIT = 900.0


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A kernel for the appliance, where the machine has none in /boot."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(Path("/boot").glob("vmlinu?-*")):
            tree = guest.unpack(tmp_path_factory.mktemp("kernel"))
            modules = next((tree / "lib/modules").iterdir())
            guest.run("depmod", "-b", tree, modules.name)
            Path("/lib/modules").mkdir(exist_ok=True)  # of which supermin takes the owner
            patch.setenv("SUPERMIN_KERNEL", str(tree / f"boot/vmlinuz-{modules.name}"))
            patch.setenv("SUPERMIN_MODULES", str(modules))
        yield


@pytest.fixture(scope="module")
def lab(kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAgent]:
    """An agent that writes into disks, with an image of a Linux and one of nothing."""
    folder = tmp_path_factory.mktemp("images")
    for path, text in LINUX.items():
        (folder / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / path).write_text(text)
    for name in ("linux.img", "blank.img"):
        (folder / name).write_bytes(b"")
        with (folder / name).open("r+b") as file:
            file.truncate(64 * 2**20)
    guest.run("mkfs.ext4", "-q", "-d", folder / "root", folder / "linux.img")
    with LabAgent(inject_partition=-1, inject_key=True, inject_password=True) as made:
        for name in ("linux", "blank"):
            made.import_image(name, folder / f"{name}.img", disk_format="raw")
        yield made


def content(lab: LabAgent, path: str) -> str:
    """A file of the server web's guest."""
    disk = lab.state / "servers" / lab.show("server", "web")["id"] / "disk"
    raw = lab.folder / "seen.raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", disk, raw], check=True)
    return subprocess.run(["debugfs", "-R", f"cat {path}", raw], check=True, capture_output=True, text=True).stdout


def test_a_server_has_it_in_its_disk(lab: LabAgent) -> None:
    assert lab.show("host")["injection"] == {"partition": -1, "reason": ""}
    file = {"path": "/etc/motd", "contents": base64.b64encode(b"hello\n").decode()}
    done = lab.ensure("server", "web", {
        "flavor": SIZES, "image": "linux", "power": "off", "guest_data": TOLD, "admin_pass": SECRET,
        "metadata": {"role": "web"}, "personality": [file]}, timeout=LIMIT)
    assert done["warnings"] == []
    root, daemon = content(lab, "/etc/shadow").splitlines()
    assert re.fullmatch(r"root:\$6\$[./0-9A-Za-z]{16}\$[./0-9A-Za-z]{86}:19000:0:99999:7:::", root)
    assert daemon == "daemon:*:19000::::::"
    assert content(lab, "/root/.ssh/authorized_keys") == f"{KEY}\n" and content(lab, "/etc/motd") == "hello\n"
    assert content(lab, "/meta.js") == '{"role": "web"}'
    disk = lab.state / "servers" / lab.show("server", "web")["id"] / "disk"
    assert disk.stat().st_uid == 0  # as before; libvirt gives it to QEMU when it starts
    assert SECRET not in lab.log.read_text() and "$6$" not in lab.log.read_text()
    lab.delete("server", "web")


def test_a_disk_of_nothing(lab: LabAgent) -> None:
    done = lab.ensure("server", "void", {"flavor": SIZES, "image": "blank", "power": "off", "guest_data": TOLD},
                      timeout=LIMIT)
    assert done["warnings"] and "no operating system is found" in done["warnings"][0]
    lab.delete("server", "void")
