# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps bare Debian hosts running for `./quickstart --hosts`, until it gets SIGTERM: labhosts.py FOLDER NAME…

They are those of the lab tests. FOLDER/inventory.yml says how Ansible reaches them, FOLDER/ready that they are up.
Python of `.venv`, root.
"""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))
import bare
import hosts


class Kept(bare.Site):
    """The checkout itself is the collection."""

    def _collection(self) -> None:
        """Nothing to build."""


def end(_number: int, _frame: object) -> None:
    """Leave in order: hosts, mounts and the bridge go."""
    sys.exit(0)


def main(folder: Path, names: list[str]) -> int:
    """Start the hosts, say so, wait."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        with Kept(folder, names):
            (folder / "ready").write_text(" ".join(names), encoding="utf-8")
            while True:
                signal.pause()
    except hosts.LabError as error:
        print(f"labhosts: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        (folder / "ready").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
