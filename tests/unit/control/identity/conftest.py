# SPDX-License-Identifier: GPL-3.0-or-later
"""``cloud``: the identity service on each engine."""

import pytest

from .cloud import Cloud


@pytest.fixture
def cloud(database):
    return Cloud(database)


@pytest.fixture
def small(sqlite):
    """For what the engine has no part in."""
    return Cloud(sqlite)
