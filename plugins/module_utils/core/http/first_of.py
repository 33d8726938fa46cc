# SPDX-License-Identifier: GPL-3.0-or-later
"""Running coroutines until the first of them ends. Consoles of the agent and of the API use this to forward bytes in
both directions until either side ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


async def run_until_first(*parts: Coroutine[Any, Any, None], quiet: tuple[type[BaseException], ...] = ()) -> None:
    """Run the coroutines *parts* until the first of them ends, then cancel the others. Raises the exception of the
    ended coroutine, unless its type is in *quiet*.
    """
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
