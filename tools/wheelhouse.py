# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetches the wheels of agent and control plane, for hosts without internet access.

    python3 tools/wheelhouse.py wheels

The folder is for the roles: `agent_wheelhouse`, `common_wheelhouse`. Each file has a hash in the locks. It needs pip
and a package index. The wheels are for hosts with the given Pythons and processors, which may differ from this
machine's.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LOCKS = Path(__file__).resolve().parents[1] / "requirements"
NAMES = ("agent", "control")
#: Pythons of Debian 12 and 13.
PYTHONS = ("3.11", "3.13")
#: The oldest and newest glibc that wheels for such hosts may be built for: Debian 12 has 2.36.
GLIBC = range(5, 37)
OLD_NAMES = ("manylinux1", "manylinux2010", "manylinux2014")


def platform_tags(machine: str) -> list[str]:
    """Return all platform tags of wheels that a host with this processor accepts, the newest first."""
    return [*(f"manylinux_2_{minor}_{machine}" for minor in reversed(GLIBC)),
            *(f"{name}_{machine}" for name in reversed(OLD_NAMES)), f"linux_{machine}"]


def without_markers(text: str) -> str:
    """Return the text of a lock without environment markers, so that it is for all hosts: pip would evaluate the
    markers for its own machine.
    """
    return re.sub(r"^(\S+==\S+) ;[^\\\n]*", r"\1 ", text, flags=re.MULTILINE)


def fetch_wheels(folder: Path, pythons: list[str], machines: list[str], locks: Sequence[str] = NAMES) -> None:
    """Download the wheels of all *locks* to *folder*, for each Python version in *pythons* and each processor type in
    *machines*. Raises CalledProcessError when pip fails, after pip's own message."""
    with tempfile.TemporaryDirectory() as name:
        requirements: list[str | Path] = []
        for lock in locks:
            file = Path(name) / f"{lock}.txt"
            file.write_text(without_markers((LOCKS / file.name).read_text(encoding="utf-8")), encoding="utf-8")
            requirements += ["-r", file]
        for python in pythons:
            for machine in machines:
                tags = [argument for tag in platform_tags(machine) for argument in ("--platform", tag)]
                subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check",
                                "--require-hashes", "--no-deps", "--only-binary", ":all:", "--implementation", "cp",
                                "--python-version", python, *tags, "--dest", folder, *requirements], check=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="made when it is missing")
    parser.add_argument("--python", action="append", metavar="3.N",
                        help=f"Python of the hosts, once for each (default: {', '.join(PYTHONS)})")
    parser.add_argument("--machine", action="append", choices=("x86_64", "aarch64"),
                        help="processor of the hosts, once for each (default: x86_64)")
    parser.add_argument("--lock", action="append", choices=[path.stem for path in sorted(LOCKS.glob("*.txt"))],
                        help=f"lock whose packages are fetched, once for each (default: {', '.join(NAMES)})")
    options = parser.parse_args()
    if importlib.util.find_spec("pip") is None:
        print(f"{sys.executable} has no pip, which fetches the wheels. Use the Python of a virtual environment, or "
              "install python3-pip.", file=sys.stderr)
        return 1
    try:
        fetch_wheels(options.folder, options.python or [*PYTHONS], options.machine or ["x86_64"],
                     options.lock or NAMES)
    except subprocess.CalledProcessError as error:
        print("Not all wheels could be fetched, pip says above why. Run it again: what is there stays.",
              file=sys.stderr)
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
