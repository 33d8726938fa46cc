# SPDX-License-Identifier: GPL-3.0-or-later
"""What carries bytes both ways, until either side ends: consoles, at the agent and in the API's proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


async def first_of(*parts: Coroutine[Any, Any, None], quiet: tuple[type[BaseException], ...] = ()) -> None:
    """Run the *parts* until one of them ends, and end the others. Raises what that one raises, unless it is one of
    *quiet*: then that is an end like any other."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        with contextlib.suppress(*quiet):
            task.result()
