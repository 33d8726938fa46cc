# SPDX-License-Identifier: GPL-3.0-or-later
"""Stages run side by side, and clones beside each other: a port whose server is away for a moment stays its test's."""

from __future__ import annotations

import subprocess
import sys

from tests.support.ports import PARTS, claimed, free_port

ASK = "from tests.support.ports import PARTS, free_port\nprint({free_port() % PARTS for _ in range(9)})"


def test_no_two_processes_draw_from_the_same_ports() -> None:
    mine = {free_port() % PARTS for _ in range(9)}
    assert len(mine) == 1
    others = subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True).stdout.strip()
    assert others != str(mine)


def test_a_part_is_one_processs_until_it_is_given_back() -> None:
    part = PARTS + 1  # nobody's
    first = claimed(part)
    assert first and claimed(part) is None
    first.close()
    again = claimed(part)
    assert again
    again.close()


def test_a_port_is_given_again_after_all_others() -> None:
    given = [free_port() for _ in range(60)]
    assert len(set(given)) == 60
