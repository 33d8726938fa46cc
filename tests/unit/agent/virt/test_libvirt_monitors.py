# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMUs that hang within a job of libvirt, told from jobs that last."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_agent.virt.connection import monitors
from magnetar_agent.virt.connection.monitors import MonitorState, MonitorWatch, cpu_seconds


class Looks:
    """What looks at a monitor give, one after the other: a pool for ``MonitorWatch``."""

    def __init__(self, *states: MonitorState) -> None:
        self.states = list(states)

    def control(self, _guest: str) -> Any:
        state = self.states.pop(0)
        return SimpleNamespace(wait=lambda _seconds: True, outcome=lambda: state)


IN_JOB = MonitorState(in_job=True)


@pytest.mark.parametrize(("starts", "states", "seconds"), [
    # A job whose QEMU answers is seen between its commands.
    (False, [IN_JOB, IN_JOB, MonitorState(), IN_JOB], [0, 10, 0, 0]),
    (False, [IN_JOB] * 4, [0, 10, 20, 30]),
    (False, [MonitorState(4.0), IN_JOB, MonitorState(5.0)], [4, 0, 5]),
    # A QEMU that starts and prepares its memory uses the CPU; one that hangs does not.
    (True, [MonitorState(in_job=True, cpu=cpu) for cpu in (1.0, 4.0, 7.5, 7.5, 7.5, 7.6)], [0, 0, 0, 0, 10, 20]),
    (True, [MonitorState(in_job=True, cpu=cpu) for cpu in (1.0, 1.0, 1.0, 2.0)], [0, 0, 10, 0]),
    (True, [IN_JOB] * 3, [0, 0, 0]),
])
def test_jobs_that_hang(monkeypatch: pytest.MonkeyPatch, starts: bool, states: list[MonitorState],
                        seconds: list[int]) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(monitors, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    looks: Any = Looks(*states)
    watch = MonitorWatch(looks, "web", 1.0, starts)
    assert [watch.unanswered() for _state in states] == seconds


def test_the_cpu_of_a_process(tmp_path: Path) -> None:
    file = tmp_path / "web.pid"
    assert cpu_seconds(file) is None
    file.write_text(f"{os.getpid()}\n")
    used = cpu_seconds(file)
    assert used is not None and abs(used - time.process_time()) < 1
