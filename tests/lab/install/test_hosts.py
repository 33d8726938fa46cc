# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab host has systemd and a libvirt that runs guests, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.lab import hosts

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

DOMAIN = """
<domain type='qemu'>
  <name>tiny</name>
  <memory unit='MiB'>128</memory>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/srv/guest/vmlinuz</kernel>
    <initrd>/srv/guest/initrd</initrd>
  </os>
  <devices><console type='pty'/></devices>
</domain>
"""


NAME = "lab1"


def remains() -> dict[str, set[str]]:
    """What the lab host adds to the machine while it runs: mounts, links, processes, folders, control groups.

    Other tests have hosts of other names beside it, on other bridges.
    """
    commands = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"--machine={NAME} " in words or "guest=tiny" in words:
            commands.add(words)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {
        "mounts": {path for path in mounts if f"/{NAME}-" in path},
        "links": {path.name for path in Path("/sys/class/net").iterdir() if path.name in (f"vb-{NAME}", hosts.BRIDGE)},
        "processes": commands,
        "folders": {path.name for path in hosts.CACHE.glob(f"{NAME}-*")},
        "groups": {str(path) for tree in hosts.hierarchies() for path in tree.glob(f"maglab-{NAME}-*")},
    }


def test_host_runs_a_guest_and_leaves_nothing(guest_image: dict[str, Path], tmp_path: Path) -> None:
    hosts.base()
    before = remains()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("from the machine\n")
    (tmp_path / "tiny.xml").write_text(DOMAIN)

    began = time.monotonic()
    with hosts.LabHost(NAME, binds={shared: "/srv/shared"}) as host:
        print(f"\nlab host: systemd running after {time.monotonic() - began:.1f} s")
        assert host.run(["systemctl", "is-system-running"]).stdout == "running\n"
        assert host.run(["hostname"]).stdout == f"{NAME}\n"
        assert host.run(["cat", "/srv/shared/file"]).stdout == "from the machine\n"
        assert host.run(["touch", "/srv/shared/other"], check=False).returncode != 0
        host.run(["ping", "-c", "1", "-W", "5", hosts.MACHINE_ADDRESS])

        host.put(guest_image["kernel"], "/srv/guest/vmlinuz")
        host.put(guest_image["ramdisk"], "/srv/guest/initrd")
        host.put(tmp_path / "tiny.xml", "/srv/guest/tiny.xml")
        virsh = ["virsh", "-c", "qemu:///system"]
        assert "tiny" not in host.run([*virsh, "list", "--all"]).stdout
        assert host.host_uuid in host.run([*virsh, "capabilities"]).stdout
        host.run([*virsh, "create", "/srv/guest/tiny.xml"])
        print(f"lab host: a domain runs after {time.monotonic() - began:.1f} s")
        assert host.run([*virsh, "domstate", "tiny"]).stdout.strip() == "running"
        host.run([*virsh, "destroy", "tiny"])
        host.run([*virsh, "create", "/srv/guest/tiny.xml"])  # left running: it must end with its host
        stopping = time.monotonic()
    print(f"lab host: gone after {time.monotonic() - stopping:.1f} s")
    assert remains() == before


def test_names() -> None:
    with pytest.raises(ValueError, match="not a lab host"):
        hosts.LabHost("somewhere")


def test_packages_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindep = tmp_path / "bindep.txt"
    bindep.write_text(
        "# comment\nqemu-utils [platform:dpkg agent lab]  # why\nshellcheck [test]\nqemu-img [platform:rpm agent]\n"
    )
    monkeypatch.setattr(hosts, "BINDEP", bindep)
    assert hosts.packages("agent") == ["qemu-utils"]
    assert hosts.packages("test") == ["shellcheck"]
    bindep.unlink()
    with pytest.raises(hosts.LabError, match="is missing"):
        hosts.packages("agent")
