# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what is done and how long it took; keep what was printed when something fails."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class Failed(Exception):
    """A step failed; the message says what to do."""


@contextmanager
def step(text: str) -> Iterator[None]:
    """``==> text … done (1.2 s)``; the end is said on a line of its own where the step printed something."""
    print(f"==> {text}", flush=True)
    began = time.monotonic()
    try:
        yield
    except Failed:
        print(f"    failed after {time.monotonic() - began:.1f} s", flush=True)
        raise
    print(f"    done ({time.monotonic() - began:.1f} s)", flush=True)


def run(command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run quietly; answer what it printed. Raises ``Failed`` with the end of what it printed."""
    try:
        done = subprocess.run([str(word) for word in command], cwd=cwd, env=dict(env) if env else None, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        raise Failed(f"There is no command {command[0]}; see bindep.txt for the packages.") from None
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise Failed(f"{' '.join(str(word) for word in command)}\n{tail}\nended with {done.returncode}.")
    return done.stdout


def main(body: object) -> None:
    """Run *body()*; its failures are a text and exit code 1, not a trace."""
    try:
        code = body()  # type: ignore[operator]
    except Failed as failure:
        print(f"\n{failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nStopped. Run it again to go on.", file=sys.stderr)
        sys.exit(130)
    sys.exit(code or 0)
