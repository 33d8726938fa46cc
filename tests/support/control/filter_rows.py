# SPDX-License-Identifier: GPL-3.0-or-later
"""Test cases of the scheduler's filters, each with the name of its filter: tests/cases/scheduler/filters.yml."""

from pathlib import Path

import yaml

FILE = Path(__file__).parents[2] / "cases/scheduler/filters.yml"
CASES = [{"filter": name, **case} for name, cases in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
         for case in cases]
#: Filters for which a case exists in which they refuse a host.
REFUSING = {case["filter"] for case in CASES if case.get("refused")}
