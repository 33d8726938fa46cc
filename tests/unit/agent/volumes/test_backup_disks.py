# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of real qcow2 disks, by qemu-img, on a host whose guests are fake."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.agent import Agent
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.reconcile import reconcile
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.disks.disks import Disks
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import NoSpace
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import Operation

pytestmark = pytest.mark.skipif(shutil.which("qemu-io") is None, reason="qemu-utils is not installed")
MIB = 1 << 20


class Hypervisor(FakeHypervisor):
    """Fake guests with real disks."""

    make_disk, copy_disk, grow_disk = Disks.make_disk, Disks.copy_disk, Disks.grow_disk
    _convert, _copied_size = Disks._convert, Disks._copied_size

    def disk(self, path: Path, format: str | None = None) -> object:  # type: ignore[override]
        return Disks.disk(self, path, format or "raw")  # type: ignore[arg-type]

    def qemu_user(self) -> tuple[int, int]:
        return os.getuid(), os.getgid()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "libvirt").mkdir()
    settings = AgentSettings(state_dir=tmp_path / "state", backup_directory=tmp_path / "backups", grace=0.1)
    found = Agent(settings, Hypervisor(tmp_path / "libvirt"))
    yield found
    found.close()


def ensure(agent: Agent, noun: str, key: str, want: dict[str, object] | None) -> dict[str, object]:
    return reconcile.ensure_resource(agent.drivers, BY_NOUN[noun], key, want, check_permissions({}), False,
                                     Operation("test")).resource


def qemu_io(agent: Agent, volume: dict[str, object], *commands: str) -> None:
    """Run commands of qemu-io on a volume; a pattern that differs fails."""
    path = agent.host.settings.state_dir / "volumes" / str(volume["id"])
    words = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(["qemu-io", "-f", str(volume["format"]), *words, path], capture_output=True, text=True,
                          check=True)
    assert "verification failed" not in done.stdout, done.stdout


def test_a_qcow2_disk_comes_back_from_a_chain(agent: Agent, tmp_path: Path) -> None:
    volume = ensure(agent, "volume", "data", {"size": 1})
    assert volume["format"] == "qcow2"
    qemu_io(agent, volume, "write -P 1 0 3M", "write -P 2 700M 64k")
    full = ensure(agent, "volume_backup", "full", {"volume": "data"})
    assert (full["stored_chunks"], full["stored_bytes"]) == (4, 4 * MIB)
    qemu_io(agent, volume, "write -P 3 1M 4k", "write -z 700M 64k", "write -P 4 1023M 1M")
    changes = ensure(agent, "volume_backup", "changes", {"volume": "data", "parent": full["id"]})
    assert changes["stored_chunks"] == 2
    stored = (tmp_path / "backups" / str(changes["id"]) / "chunks").stat().st_size
    assert stored == changes["stored_bytes"] == 2 * MIB
    qemu_io(agent, volume, "write -P 9 0 8M", "write -P 9 700M 1M", "write -P 9 1023M 1M")
    for name, backup, format in (("data", changes, "qcow2"), ("raw", changes, "raw"), ("first", full, "qcow2")):
        want = {"reimage": {"backup": backup["id"], "request": name}, **({} if name == "data" else {
            "size": 2, "format": format})}
        restored = ensure(agent, "volume", name, want)
        second, far, end = (1, 2, 0) if backup is full else (3, 0, 4)
        qemu_io(agent, restored, "read -P 1 0 1M", f"read -P {second} 1M 4k", "read -P 1 1028k 1020k",
                "read -P 1 2M 1M", "read -P 0 3M 100M", f"read -P {far} 700M 64k", f"read -P {end} 1023M 1M")
    assert [*(tmp_path / "state" / "backups").iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
def test_a_real_directory_that_is_full(agent: Agent, tmp_path: Path) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", directory], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        pytest.skip("no file system can be mounted here")
    try:
        volume = ensure(agent, "volume", "data", {"size": 1})
        qemu_io(agent, volume, "write -P 1 0 8M")
        with pytest.raises(NoSpace, match="No room is left for the backup"):
            ensure(agent, "volume_backup", "full", {"volume": "data"})
        assert [*directory.iterdir()] == [*(tmp_path / "state" / "backups").iterdir()] == []
        qemu_io(agent, volume, "write -z 2M 6M")
        assert ensure(agent, "volume_backup", "full", {"volume": "data"})["stored_chunks"] == 2
    finally:
        subprocess.run(["umount", directory], check=True)
