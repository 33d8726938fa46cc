# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of metadata cloud init."""

from __future__ import annotations

import json

from tests.support.unpacked import ROOT

SCHEMA = json.loads((ROOT / "docs/reference/network_data.schema.json").read_text(encoding="utf-8"))
