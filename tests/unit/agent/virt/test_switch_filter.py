# SPDX-License-Identifier: GPL-3.0-or-later
"""The thread that has the integration bridge drop router advertisements: ``contract/network/test_advertisements.py``
has it with Open vSwitch."""

from __future__ import annotations

import errno
import subprocess
from typing import Any, NoReturn

import pytest

from magnetar_agent.virt.network import switch_filter
from magnetar_agent.virt.network.switch_filter import SwitchFilter
from tests.support.waiting import eventually


def test_a_machine_that_starts_no_process_is_told_of_once(monkeypatch: pytest.MonkeyPatch,
                                                          caplog: pytest.LogCaptureFixture) -> None:
    """Not each time that it is tried again, and without a trace."""
    tries = []

    def full(*_words: Any, **_more: Any) -> NoReturn:
        tries.append(1)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    monkeypatch.setattr(switch_filter, "AGAIN", 0.01)
    one = SwitchFilter()
    one.keep("br-int")
    try:
        eventually(lambda: len(tries) > 3)
    finally:
        one.close()
    assert "br-int cannot be watched" in one.reason and "temporarily unavailable" in one.reason
    (said,) = caplog.records
    assert said.exc_info is None
