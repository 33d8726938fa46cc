# SPDX-License-Identifier: GPL-3.0-or-later
"""A hostile program that runs while the agent works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def beside(program: str, *words: object) -> Iterator[None]:
    """Run the Python *program* within the context, which begins after its first line of output. The program must not
    end before the context."""
    process = subprocess.Popen([sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
