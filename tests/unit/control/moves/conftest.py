# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two hosts that can send servers to each other."""

import pytest

from tests.unit.control.cloud import Cloud

from .clouds import flavors


@pytest.fixture(scope="module")
def cloud():
    """Shared by the tests of a module."""
    with Cloud(hosts=2, links=True) as found:
        flavors(found)
        yield found
