# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows: work that involves more than one agent, as generators of steps.

The process that runs a flow may die between any two steps; then the flow starts again from its first step. That is
always safe, because each step only requests a state, and does nothing when that state exists.
"""

from __future__ import annotations

from collections.abc import Callable

#: Called before a change is requested or stored, in its transaction where there is one. Raises when the caller may not
#: make the change any longer.
Confirm = Callable[[], None]


def always_allowed() -> None:
    """Do nothing. This is the default of *confirm*, a function that the functions of this package call before each
    change. Other *confirm* functions raise an error if the caller may no longer change the server.
    """
