# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files are the project's, and a copy of them where Ansible's tools want a collection. Standard library only."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tracked() -> list[str]:
    """Files that git knows, and new ones that it does not ignore."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).exists()})


@contextlib.contextmanager
def laid_out() -> Iterator[Path]:
    """A copy of the files where Ansible's tools want a collection."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "ansible_collections/magnetar/compute"
        copy.mkdir(parents=True)
        subprocess.run(["cp", "--parents", "-t", str(copy), *tracked()], check=True, cwd=ROOT)
        yield copy
