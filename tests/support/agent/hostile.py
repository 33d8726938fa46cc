# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that does its worst while the agent works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def beside(program: str, *words: object) -> Iterator[None]:
    """The *program* runs from its first line of output on, to the end of the block, and not shorter."""
    process = subprocess.Popen([sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
