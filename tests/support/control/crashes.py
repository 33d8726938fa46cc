# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of crashes."""

from __future__ import annotations

import os

from tests.unit.control.moves.dying import Fate
from tests.unit.control.moves.inside import with_flavors  # noqa: F401 - the fixture cloud

#: Deaths that are tried: each fifth one, or as the variable says; 1 is all of them.
EVERY = int(os.environ.get("MAGNETAR_EVERY_DEATH", "5"))


def until_none(cloud, id, late, steps):
    """Each of *steps* with a death at its 1st, 2nd … act, until none of them has so many."""
    for number in range(1, 200, EVERY):
        fates = []
        for step in steps:
            fates.append(Fate(number, late))
            step(fates[-1])
        if not any(fate.died for fate in fates):
            return
    raise AssertionError
