# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of encrypted disks."""

from __future__ import annotations

import json
from typing import Any


def _documents(agent: Any) -> str:
    return json.dumps([[one.want, one.state] for noun in ("server", "migration")
                       for one in agent.host.documents.list(noun)])
