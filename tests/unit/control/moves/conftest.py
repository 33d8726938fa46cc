# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two hosts that can send servers to each other, on each engine in turn."""

import pytest

from tests.support.control.cloud import Cloud

from .clouds import claims, flavors


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Cloud(hosts=2, links=True, databases=databases) as found:
        flavors(found)
        yield found


@pytest.fixture
def server(cloud):
    """A running server; it is removed afterwards, and claims nothing then."""
    found = cloud.admin.boot(flavorRef="small")
    yield found
    cloud.admin.delete(f"/v2.1/servers/{found['id']}")
    assert cloud.admin.settled(found["id"]) is None
    assert claims(cloud, found["id"]) == {}
