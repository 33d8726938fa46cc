# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/reference/api-coverage.md says what is served."""

from tools import coverage


def test_the_page_is_as_the_route_table():
    assert coverage.PAGE.read_text().startswith(coverage.served()), "run: python tools/coverage.py"
