# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks for tests that run on each database engine (fixture ``databases``): on one engine in the stage slow, on the
other in deep."""

from __future__ import annotations

import pytest

ENGINES = ("sqlite", "postgres")


def engines(shard: str, deep: str = "postgres") -> pytest.MarkDecorator:
    """Return the mark for a test module. *deep*: the engine whose tests belong to the stage deep, in that *shard*."""
    return pytest.mark.parametrize("databases", [
        pytest.param(one, marks=[pytest.mark.deep(shard=shard)] if one == deep else []) for one in ENGINES],
        indirect=True)
