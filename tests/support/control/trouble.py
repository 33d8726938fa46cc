# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of trouble."""


def failing(error, times=1):
    """Return a function that raises *error* at its first *times* calls, and then calls its attribute ``then``."""
    left = [times]

    def fails(*_args, **_more):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return fails.then(*_args, **_more)

    return fails
