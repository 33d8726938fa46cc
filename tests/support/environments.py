# SPDX-License-Identifier: GPL-3.0-or-later
"""Python environments for large third-party programs, separate from the development environment, in
``.cache/environments``.

A lock in ``tests/locks`` has the versions and hashes. It is written with::

    uv pip compile --universal --python-version 3.11 --fork-strategy fewest --only-binary :all: --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links NAME.in

where ``NAME.in`` names the packages, a line each: openstack-heat and psycopg2-binary for heat, rally-openstack and
cloudbridge[openstack] for rally.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")


def python_of(name: str) -> Path:
    """Return the Python of the environment of the lock *name*, made where it is missing.

    Skips the test where the packages cannot be had.
    """
    lock = ROOT / "tests" / "locks" / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    folder = ROOT / ".cache" / "environments" / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder / "venv", ignore_errors=True)
            for words in (["venv", "--quiet", "--python", sys.executable, folder / "venv"],
                          ["pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock]):
                done = subprocess.run([UV, *words], check=False, text=True, capture_output=True)
                if done.returncode:
                    pytest.skip(f"the packages of {lock.name} are not to be had: {done.stderr.strip()[-500:]}")
            (folder / "done").touch()
    return python
