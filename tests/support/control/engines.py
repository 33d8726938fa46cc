# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests on each engine, as the fixture ``databases`` has them: on one in the stage slow, on the other in deep."""

from __future__ import annotations

import pytest

ENGINES = ("sqlite", "postgres")


def engines(shard: str, deep: str = "postgres") -> pytest.MarkDecorator:
    """The mark of a module. *deep*: the engine whose tests are in that *shard*."""
    return pytest.mark.parametrize("databases", [
        pytest.param(one, marks=[pytest.mark.deep(shard=shard)] if one == deep else []) for one in ENGINES],
        indirect=True)
