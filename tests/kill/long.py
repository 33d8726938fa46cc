# SPDX-License-Identifier: GPL-3.0-or-later
"""The story again and again, by hand, each time in a new cloud and with a seed of its own:
``python -m tests.kill.long --minutes 60``. It ends with what is broken, or when the time is over."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from .story import live
from .world import ROOT, World, second_flavor


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="postgres")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--operations", type=int, default=2000, help="changes of a round (default: 2000)")
    parser.add_argument("--quick", type=int, default=1, help="of them, those that no host does for one that hosts do")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="of the first round; others count on")
    given = parser.parse_args()
    end, number = time.monotonic() + given.minutes * 60, 0
    while time.monotonic() < end:
        os.environ["MAGNETAR_KILL_SEED"] = f"{given.seed}-{number}" if number else given.seed
        with World(given.engine, small=ROOT) as world:
            second_flavor(world)
            try:
                live(world, given.operations, quick=given.quick)
            except BaseException:
                print(f"Logs: {_kept(world)}")
                raise
            for line in _unforeseen(world):
                print(line)
        number += 1
    print(f"{number} rounds were well")


def _logs(world: World) -> list[Path]:
    return [*world.folder.glob("*.log"), *world.folder.glob("*/log")]


def _kept(world: World) -> Path:
    """A copy of the logs of all processes and agents, for whoever looks for the cause."""
    place = Path(tempfile.mkdtemp(prefix="kill-logs-"))
    for log in _logs(world):
        shutil.copy(log, place / "-".join(log.relative_to(world.folder).parts))
    return place


def _unforeseen(world: World) -> list[str]:
    """Failures that nobody foresaw, as the logs have them with their traces; those of a full disk are foreseen."""
    return [f"{log.relative_to(world.folder)}: {line.strip()}" for log in _logs(world)
            for line in log.read_text(errors="replace").splitlines() if '"trace": ' in line and "NoSpace" not in line]


if __name__ == "__main__":
    main()
