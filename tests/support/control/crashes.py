# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of crashes."""

from __future__ import annotations

import os

from tests.unit.control.moves.dying import Fate
from tests.unit.control.moves.inside import with_flavors  # noqa: F401 - the fixture cloud

#: Step between the deaths that are tried: 5, or the value of the variable; 1 tries all.
EVERY = int(os.environ.get("MAGNETAR_EVERY_DEATH", "5"))


def until_none(cloud, id, late, steps):
    """Run *steps* repeatedly, each time with a death at a later operation of each step, until no step has so many."""
    for number in range(1, 200, EVERY):
        fates = []
        for step in steps:
            fates.append(Fate(number, late))
            step(fates[-1])
        if not any(fate.died for fate in fates):
            return
    raise AssertionError
