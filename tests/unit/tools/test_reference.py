# SPDX-License-Identifier: GPL-3.0-or-later
"""The printed pages of commands and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_core.errors import ERRORS
from tools.errors_page import ADVICE, error_classes
from tools.reference import PAGES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["commands", "errors", "openstack-cloud"])
def test_the_page_is_as_its_tool_prints_it(name):
    """When this fails: python -m tools.reference NAME >docs/reference/NAME.md"""
    assert (ROOT / f"docs/reference/{name}.md").read_text() == PAGES[name]()


def test_each_error_has_one_row_and_advice():
    codes = [cls.code for cls in error_classes()]
    assert len(codes) == len(set(codes)) and set(codes) == set(ADVICE) and set(codes) >= set(ERRORS)
