# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows: what takes more than one agent, as generators of steps. Whoever runs one may die between any two steps, and
runs it again from its start: each step asks for "at least" something, so that is always right."""

from __future__ import annotations

from collections.abc import Callable

#: Called before a change is asked for or kept, in its transaction where there is one: raises when the caller may not
#: make it any more.
Sure = Callable[[], None]


def always() -> None:
    """A caller who may."""
