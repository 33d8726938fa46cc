# SPDX-License-Identifier: GPL-3.0-or-later
"""``glance``: the image service on each engine."""

import pytest

from .glance import Glance


@pytest.fixture
def glance(database, tmp_path):
    return Glance(database, tmp_path)


@pytest.fixture
def small(sqlite, tmp_path):
    """For what the engine has no part in."""
    return Glance(sqlite, tmp_path, limit=4 * 2**20, max_virtual=2**30)
