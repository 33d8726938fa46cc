# SPDX-License-Identifier: GPL-3.0-or-later
"""One cloud over two fake hosts whose agents reach each other, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control.cloud import Cloud

from .asking import Owner


@pytest.fixture(scope="package")
def cloud() -> Iterator[Cloud]:
    """Two hosts with links."""
    with Cloud(hosts=2, links=True, quota_instances=-1) as made:
        yield made


@pytest.fixture
def owner(cloud: Cloud) -> Iterator[Owner]:
    """The admin's project, whose servers and volumes go with the test."""
    found = Owner(cloud)
    yield found
    found.clear()
