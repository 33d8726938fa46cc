# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two hosts, on each engine in turn, and the owner of its servers and volumes."""

import pytest

from tests.support.control.cloud import Cloud
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.clouds import flavors

from .rebuilding import Rebuilding


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Cloud(hosts=2, links=True, databases=databases) as found:
        flavors(found)
        yield found


@pytest.fixture
def owner(cloud):
    """The admin's project, whose servers and volumes go with the test."""
    found = Rebuilding(cloud)
    yield found
    Owner.clear(found)
