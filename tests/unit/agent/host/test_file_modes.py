# SPDX-License-Identifier: GPL-3.0-or-later
"""Modes of what the agent and its child programs make: users of the host read nothing of a server.

The fixtures ``host`` and ``pair`` look at the whole state folder after each of their tests, which is every flow.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar_agent.host import file_modes
from magnetar_agent.virt.disks.disks import Disks, atomic_file
from magnetar_agent.virt.tools.process import run_program
from tests.support.file_modes import exposed
from tests.unit.agent.conftest import SMALL, Host

MIB = 2**20


class LocalDisks(Disks):
    """Real disks that QEMU of this test's own user would use."""

    def qemu_user(self) -> tuple[int, int]:
        return os.getuid(), os.getgid()

    def qemu_group(self) -> int:
        return os.getgid()


@pytest.mark.skipif(not shutil.which("qemu-img") or not shutil.which("mkswap"), reason="needs qemu-img and mkswap")
@pytest.mark.parametrize("format", ["raw", "qcow2"])
@pytest.mark.parametrize("label", ["swap", "ephemeral0", None])
def test_a_disk_is_closed_to_others(tmp_path: Path, format: str, label: str | None) -> None:
    """qemu-img made swap and ephemeral disks with mode 0644 (CVE-2013-7048 of Nova)."""
    disks = LocalDisks()
    disks.make_disk(tmp_path / "disk", format, 8 * MIB, label=label)
    disks.copy_disk(tmp_path / "disk", format, tmp_path / "copy", format, lambda _done, _total: None)
    disks.make_iso(tmp_path / "config.iso", "config-2", {"a": b"secret"})
    disks.permit([tmp_path / "disk"])
    assert exposed(tmp_path) == []
    assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o640, "QEMU's group reads it"


def test_child_programs_make_files_for_their_owner_only(tmp_path: Path) -> None:
    run_program(["touch", str(tmp_path / "made")], "make a file")
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600


def test_a_complete_file_is_closed_whoever_made_it(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file") as part:
        part.touch()
        part.chmod(0o666)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o660


def test_the_agent_starts_with_the_umask(tmp_path: Path) -> None:
    """A process of its own, since the umask is the whole process's."""
    said = subprocess.run(
        [sys.executable, "-c", "import os, sys\nfrom magnetar_agent import cli\nfrom magnetar_agent.api import serve\n"
         "serve.run_agent_server = lambda *_: print(oct(os.umask(0)), flush=True)\ncli.main(sys.argv[1:])",
         "agent", "--fake", "--state-dir", str(tmp_path / "state")], check=True, stdout=subprocess.PIPE, text=True)
    assert said.stdout.strip() == oct(file_modes.UMASK)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folders_have_their_mode_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)  # noqa: TID251 - it is given back, and no other thread runs
    try:
        file_modes.make_state_folder(tmp_path / "servers" / "one")
        file_modes.make_state_folder(tmp_path / "run" / "links", 0o750)
    finally:
        os.umask(before)  # noqa: TID251
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (*tmp_path.glob("*"), *tmp_path.glob("*/*"))}
    assert modes == {"servers": 0o711, "one": 0o711, "run": 0o750, "links": 0o750}


def test_files_that_disappear_or_stay_open_keep_no_agent_from_starting(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """virtlogd renames logs while the agent starts; a file system may refuse to change modes."""
    for name in ("gone", "refused", "open"):
        path = tmp_path / "servers" / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o644)
    close = file_modes._close

    def closed(name: str, folder: int) -> bool:
        if name == "gone":
            (tmp_path / "servers" / "one" / name).unlink()
        if name == "refused":
            raise PermissionError(1, "Operation not permitted")
        return close(name, folder)

    monkeypatch.setattr(file_modes, "_close", closed)
    file_modes.close_state(tmp_path)
    assert stat.S_IMODE((tmp_path / "servers" / "one" / "open").stat().st_mode) == 0o640
    assert "one/refused: Operation not permitted" in caplog.text


def test_what_an_earlier_agent_left_open_is_closed_at_the_start(host: Host) -> None:
    host.server(flavor={**SMALL, "swap": 8, "ephemeral": 1})
    place = host.root / "state" / "servers"
    server = place / host.show()["id"]
    place.chmod(0o755)
    for name in ("disk.swap", "disk.ephemeral"):
        (server / name).chmod(0o644)
    (host.root / "outside").write_text("not the agent's")
    (host.root / "outside").chmod(0o644)
    (server / "link").symlink_to(host.root / "outside")
    host.restart()
    assert exposed(host.root / "state") == []
    assert stat.S_IMODE((host.root / "outside").stat().st_mode) == 0o644, "links are not followed"
    assert stat.S_IMODE(place.stat().st_mode) == 0o751, "QEMU's user passes it"
