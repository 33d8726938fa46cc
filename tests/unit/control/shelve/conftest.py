# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two hosts, on each engine in turn, where a shelved server leaves its host at once, and users of it."""

import pytest

from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.clouds import flavors

from .shelving import Shelving


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Cloud(hosts=2, links=True, databases=databases) as found:
        flavors(found)
        yield found


@pytest.fixture
def owner(cloud):
    """The admin's project, whose servers, volumes and images go with the test."""
    found = Shelving(cloud)
    kept = found.call.image()
    yield found
    Owner.clear(found)
    for one in found.images():
        if one["id"] != kept:
            found.call.delete(f"/image/v2/images/{one['id']}")
    eventually(lambda: [one["id"] for one in found.images()] == [kept])
