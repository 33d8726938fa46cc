# SPDX-License-Identifier: GPL-3.0-or-later
"""File systems of the format vfat, looked at by dosfstools and mtools, which did not write them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from magnetar_agent.metadata import configdrive
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.disks import vfat
from magnetar_core.errors import HypervisorError, InvalidSettings
from tests.support.agent.configdrive import GUEST
from tests.support.agent.guest_data import TOLD
from tests.support.agent.resize import folder
from tests.support.unpacked import unpacked
from tests.unit.agent.conftest import Host


def written(path: Path, files: dict[str, bytes], label: str = "config-2") -> Path:
    with path.open("wb") as target:
        vfat.write_vfat(target, label, files)
    return path


def read(image: Path, into: Path) -> dict[str, bytes]:
    """All that mcopy finds, after fsck.fat found nothing wrong."""
    tree = unpacked()
    subprocess.run([tree / "sbin/fsck.fat", "-n", image], check=True, capture_output=True)
    into.mkdir()
    subprocess.run([tree / "usr/bin/mcopy", "-s", "-i", image, "::/*", into], check=True, capture_output=True)
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


FILES: list[dict[str, bytes]] = [
    {"a": b"1"}, {"same": b"twice", "the/same": b"twice"},
    {"a": b"", "b/c/d": b"x" * 2048, "b/c/e": b"y" * 2049, "f/g-with_a.long.name.json": b"z" * 5000},
    {f"many/{at:04}": bytes([at % 256]) * at for at in range(300)},
    {f"{'n' * length}": b"x" for length in range(1, 60)}, configdrive.config_drive_files(GUEST)]


@pytest.mark.slow
@pytest.mark.parametrize("files", FILES, ids=range(6))
def test_what_was_written_is_read(tmp_path: Path, files: dict[str, bytes]) -> None:
    image = written(tmp_path / "image", files)
    assert image.stat().st_size == vfat.SIZE and image.stat().st_blocks * 512 < 4 << 20
    assert read(image, tmp_path / "found") == files


def test_the_label_is_in_both_places(tmp_path: Path) -> None:
    content = written(tmp_path / "image", {"a": b"1"}).read_bytes()
    assert content[43:54] == content[vfat.ROOT_AT:vfat.ROOT_AT + 11] == b"config-2   "


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HypervisorError, match="does not fit"):
        written(tmp_path / "large", {"a": bytes(vfat.SIZE)})
    with pytest.raises(HypervisorError, match="room for 512 names"):
        written(tmp_path / "wide", {f"{at}": b"" for at in range(300)})


@pytest.mark.slow
def test_a_host_writes_them_where_it_is_told_to(tmp_path: Path) -> None:
    host = Host(tmp_path / "host", config_drive_format="vfat")
    host.start()
    host.server()
    found = read(folder(host) / "config.iso", tmp_path / "found")
    assert json.loads(found["openstack/latest/meta_data.json"])["name"] == "web1"
    host.event("rebuild", "r1", "web1", guest_data={**TOLD, "drive_format": "iso9660"})
    # A server keeps the place of its drive, and with it the format: its disks would have other names.
    assert read(folder(host) / "config.iso", tmp_path / "again")["openstack/latest/meta_data.json"]
    host.agent.close()


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(InvalidSettings, match="config_drive_format: must be one of iso9660, vfat"):
        AgentSettings(config_drive_format="ext4")
