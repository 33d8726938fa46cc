# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of filter rows."""

from pathlib import Path

import yaml

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/scheduler/filters.yml").read_text(encoding="utf-8"))
