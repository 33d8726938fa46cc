# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two hosts, on each engine in turn, that keeps deleted servers for an hour, and users of it."""

import pytest

from tests.support.control.cloud import Cloud
from tests.unit.control.moves.clouds import flavors

from .keeping import HOUR, Keeping


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Cloud(hosts=2, links=True, databases=databases, reclaim_instance_interval=HOUR) as found:
        flavors(found)
        yield found


@pytest.fixture
def owner(cloud):
    """The admin's project, whose servers and volumes go with the test."""
    found = Keeping(cloud)
    yield found
    found.clear()
