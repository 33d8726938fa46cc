# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe of KVM where its guest hangs: it ends with the agent, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar_agent.virt.host import probe
from tests.support.waiting import eventually

#: Stands for a QEMU that hangs, and says who it is.
HANGS = "#!/bin/sh\necho $$ > {place}/began.part\nmv {place}/began.part {place}/began\nexec sleep 600\n"
#: A process that probes, as an agent does.
AGENT = ("import sys, pathlib; from magnetar_agent.virt.host import probe; probe.qemu_program = lambda: sys.argv[1]; "
         "probe.platform.machine = lambda: 'x86_64'; probe.probe_kvm('tcg', limit=600)")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    made = tmp_path / "qemu"
    made.write_text(HANGS.format(place=tmp_path))
    made.chmod(0o755)
    return made


def ended(pid: int) -> bool:
    """Whether the process is gone, or waits for nothing but to be read by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_is_told_and_ended(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "qemu_program", lambda: str(program))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert probe.probe_kvm("tcg", limit=4.0) == (False, "a guest under tcg started but hung for 4 s")
    assert ended(int((tmp_path / "began").read_text()))


def test_it_ends_with_an_agent_that_is_killed(program: Path, tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, program], env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        eventually((tmp_path / "began").exists)
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    pid = int((tmp_path / "began").read_text())
    eventually(lambda: ended(pid))
