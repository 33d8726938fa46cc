# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports with real disks: qemu-img flattens them, and refuses what a guest has written into a header."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.storage import Backing
from magnetar_agent.virt.disks.qcow2 import create_qcow2
from magnetar_core.errors import HypervisorError
from tests.support.agent.hostile_qemu import Hypervisor
from tests.support.agent.resize import image
from tests.unit.agent.conftest import SMALL, Host

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user"),
              pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")]
GIB = 2**30


def run(*words: object) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host whose server web1 is stopped and has a real root disk on a real base; and the disk's path."""
    host = Host(tmp_path, export_paths=(tmp_path / "exports",))
    host.start()
    image(host, "system")
    id = host.server(image="system", flavor={**SMALL, "disk": 1}, config_drive=False, power="off").resource["id"]  # type: ignore[index]
    folder = tmp_path / "state/servers" / str(id)
    (folder / "disk").unlink()
    create_qcow2(folder / "disk", GIB, Backing(folder / "base", "raw"))
    run("qemu-io", "-c", "write -P 7 900M 1M", folder / "disk")
    real = Hypervisor()
    monkeypatch.setattr(host.fake, "copy_disk", real.copy_disk)
    monkeypatch.setattr(host.fake, "disk", real.disk)
    yield host, folder / "disk"
    host.agent.close()


def test_the_disk_stands_alone_and_has_the_same_content(web: tuple[Host, Path]) -> None:
    host, disk = web
    made = host.ensure("server_export", "gone", {"server": "web1"}).resource
    exported = host.root / "exports/gone/vda.qcow2"
    assert made is not None and made["status"] == "available"
    assert "backing" not in run("qemu-img", "info", exported) and "Images are identical" in run(
        "qemu-img", "compare", disk, exported)
    assert exported.stat().st_size < 64 * 2**20 and exported.stat().st_mode & 0o007 == 0
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=exported.parent, check=False,
                          capture_output=True).returncode == 0


def test_a_backing_file_that_a_guest_has_written_is_not_read(web: tuple[Host, Path]) -> None:
    host, disk = web
    (host.root / "secret").write_bytes(b"only root may read this".ljust(512))
    run("qemu-img", "rebase", "-u", "-F", "raw", "-b", host.root / "secret", disk)
    with pytest.raises(HypervisorError, match="The agent has not written that"):
        host.ensure("server_export", "gone", {"server": "web1"})
    assert not (host.root / "exports/gone").exists()
