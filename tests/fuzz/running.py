# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a number of requests for each route, drawn by Hypothesis from one seed, and collects what is wrong."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException

from .asking import Asking
from .routes import Target
from .sending import Sent


def chosen() -> int:
    """The first seed: MAGNETAR_FUZZ_SEED, or the commit's, so that each commit is asked other things; 1 without git."""
    if given := os.environ.get("MAGNETAR_FUZZ_SEED"):
        return int(given)
    return int(_commit()[:8] or "1", 16)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=Path(__file__).parent, capture_output=True,
                          text=True)
    return done.stdout if done.returncode == 0 else ""


SEED = chosen()
#: Runs go on with the next seeds for so long; 0: one seed, whose requests are always the same.
SECONDS = float(os.environ.get("MAGNETAR_FUZZ_SECONDS", "0"))
#: Requests that may be spent on making a wrong one smaller.
PATIENCE = 150
Check = Callable[[Sent], str | None]


class Wrong(AssertionError):
    """Something is wrong with an answer."""


def findings(targets: Iterable[Target], asking: Asking, check: Check, count: int, seconds: float = 0) -> list[str]:
    """What *check* has against the answers to *count* requests to each route: the smallest request of each, with the
    seed by which it comes again. Further seeds follow for so many *seconds*."""
    targets, found, number, began = list(targets), {}, SEED, time.monotonic()
    while True:
        print(f"MAGNETAR_FUZZ_SEED={number}: {len(targets)} routes, {count} requests each")
        for target in targets:
            if target.id not in found and (one := _of(target, asking, check, count, number)):
                found[target.id] = f"MAGNETAR_FUZZ_SEED={number}: {one}"
                print(found[target.id])
        number += 1
        if time.monotonic() - began >= seconds:
            return [*found.values()]


def _of(target: Target, asking: Asking, check: Check, count: int, number: int) -> str | None:
    smallest: list[tuple[int, str]] = []
    left = PATIENCE

    @seed(zlib.crc32(f"{number} {target.id}".encode()))
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(asking.requests(target))
    def ask(sent: Sent) -> None:
        nonlocal left
        if smallest:
            left -= 1
        if left > 0 and (what := check(sent)):
            smallest.append((len(sent.content) + len(sent.path) + len(sent.query), f"{sent} {what}"))
            raise Wrong

    with contextlib.suppress(Wrong, HypothesisException, BaseExceptionGroup):
        ask()
    return min(smallest)[1] if smallest else None
