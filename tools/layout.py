# SPDX-License-Identifier: GPL-3.0-or-later
"""The project's files, and a copy of them in a collection's layout for Ansible's tools. Standard library only."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tracked_files() -> list[str]:
    """Return the files that git tracks, and new files that it does not ignore."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).exists()})


@contextlib.contextmanager
def collection_copy() -> Iterator[Path]:
    """Yield the path of a copy of the files, in the folder layout of a collection; it is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "ansible_collections/magnetar/compute"
        copy.mkdir(parents=True)
        subprocess.run(["cp", "--parents", "-t", str(copy), *tracked_files()], check=True, cwd=ROOT)
        yield copy
