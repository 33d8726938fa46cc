# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/reference/api-coverage.md says what is served; all pages name the newest microversion."""

from tools import coverage


def test_the_page_is_as_the_route_table():
    assert coverage.PAGE.read_text().startswith(coverage.served_table()), "run: python -m tools.coverage"


def test_pages_name_the_newest_microversion():
    assert sorted(coverage.updated_pages()) == [], "run: python -m tools.coverage"


def test_a_page_follows_the_newest_microversion(monkeypatch):
    monkeypatch.setattr(coverage, "NEWEST", 999)
    assert coverage.with_newest("Microversions 2.1 to 2.9, since 2.1.") == "Microversions 2.1 to 2.999, since 2.1."
