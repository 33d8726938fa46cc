# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of three hosts whose agents are in this process, on each engine in turn, and its administrator."""

import pytest

from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.inside import Inside

from .evacuating import Evacuating


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Inside(hosts=3, databases=databases, host_down_after=600.0) as found:
        flavors(found)
        found.parts.working.settling = lambda: False  # it has heard of all hosts
        yield found


@pytest.fixture
def admin(cloud):
    """With servers and volumes that go with the test; all hosts are up afterwards."""
    found = Evacuating(cloud)
    yield found
    for name in found.stopped & set(cloud.hosts):
        found.up(name)
    Owner.clear(found)
