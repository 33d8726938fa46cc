# SPDX-License-Identifier: GPL-3.0-or-later
"""Times as the APIs show them."""

from __future__ import annotations


def to_second(moment: str) -> str:
    """A moment of the tables without its fraction: 2026-11-21T10:00:00Z."""
    return moment[:19] + "Z"
