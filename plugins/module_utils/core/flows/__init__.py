# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows: work of more than one agent, as generators of steps. The process that runs a flow may die between any two
steps, and runs it again from its start. That is always safe, because each step requests "at least" a state.
"""

from __future__ import annotations

from collections.abc import Callable

#: Called before a change is requested or stored, in its transaction where there is one. Raises when the caller may not
#: make the change any longer.
Sure = Callable[[], None]


def always_allowed() -> None:
    """Allow every change."""
