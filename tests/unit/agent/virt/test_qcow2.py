# SPDX-License-Identifier: GPL-3.0-or-later
"""qcow2 images that the agent writes itself are what qemu-img would have made."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.storage import Backing
from magnetar_agent.virt.disks import qcow2
from magnetar_core.errors import HypervisorError

GIB = 2**30
pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")


def said(*words: str | Path) -> Any:
    done = subprocess.run(["qemu-img", words[0], "--output=json", *words[1:]], capture_output=True, check=True)
    return json.loads(done.stdout)


def facts(path: Path) -> dict[str, Any]:
    found = said("info", path)
    return {name: found.get(name) for name in ("virtual-size", "cluster-size", "format", "full-backing-filename",
                                               "backing-filename-format", "format-specific")}


@pytest.mark.parametrize("size", [1, 512, 10**6, GIB // 2, GIB, 10 * GIB + 1, 5 * 2**40])
@pytest.mark.parametrize("backing", [None, "raw", "qcow2"])
def test_it_is_what_qemu_img_makes(tmp_path: Path, size: int, backing: str | None) -> None:
    base, mine, theirs = tmp_path / "bäse", tmp_path / "mine", tmp_path / "theirs"
    on: list[str] = []
    if backing:
        subprocess.run(["qemu-img", "create", "-q", "-f", backing, base, "1M"], check=True)
        on = ["-b", str(base), "-F", backing]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *on, theirs, str(size)], check=True)
    qcow2.create_qcow2(mine, size, Backing(base, backing) if backing else None)
    assert facts(mine) == facts(theirs)
    checked = said("check", mine)
    assert checked["check-errors"] == 0 and not checked.get("leaks") and not checked.get("corruptions")
    assert mine.stat().st_mode & 0o777 == 0o640
    with pytest.raises(FileExistsError):
        qcow2.create_qcow2(mine, size)


@pytest.mark.parametrize("backing", ["raw", "qcow2"])
def test_it_holds_what_is_written(tmp_path: Path, backing: str) -> None:
    base, disk = tmp_path / "base", tmp_path / "disk"
    (tmp_path / "raw").write_bytes(b"base" * 2**18)
    subprocess.run(["qemu-img", "convert", "-O", backing, tmp_path / "raw", base], check=True)
    qcow2.create_qcow2(disk, 2 * GIB, Backing(base, backing))
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -P 7 1G 128k", "-c", "read -P 7 1G 128k",
                    "-c", "read -P 0 1M 64k", disk], check=True, capture_output=True)
    subprocess.run(["qemu-img", "convert", "-O", "raw", disk, tmp_path / "all"], check=True)
    with (tmp_path / "all").open("rb") as file:
        assert file.read(2**20) == b"base" * 2**18
    assert said("check", disk)["check-errors"] == 0


def test_a_missing_or_unspeakable_backing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HypervisorError, match="backing file .* does not exist"):
        qcow2.create_qcow2(tmp_path / "disk", GIB, Backing(tmp_path / "none", "raw"))
    long = tmp_path.joinpath(*["d" * 200] * 5, "base")
    long.parent.mkdir(parents=True)
    long.touch()
    with pytest.raises(HypervisorError, match="too long"):
        qcow2.create_qcow2(tmp_path / "disk", GIB, Backing(long, "raw"))
