# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of modules."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.unit.control.v1.play import ROOT


def examples(module: str) -> list[dict[str, Any]]:
    text = (ROOT / f"plugins/modules/{module}.py").read_text()
    found = re.search(r'^EXAMPLES = r"""(.*?)"""', text, re.DOTALL | re.MULTILINE)
    assert found
    tasks: list[dict[str, Any]] = yaml.safe_load(found[1])
    return tasks
