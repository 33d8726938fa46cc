# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the distribution that tests use without installing them: the profile ``unpacked`` of bindep.txt. They are
downloaded and unpacked into ``.cache``. An installed cloud-init would reconfigure this machine at its next boot.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def packages() -> list[str]:
    """Return the names of the packages: the profile ``unpacked`` of bindep.txt."""
    lines = (ROOT / "bindep.txt").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.rstrip("]").endswith(" unpacked")]


def run(*words: str | Path, cwd: Path | None = None) -> str:
    """Run a program; its output is in the error when it fails."""
    done = subprocess.run([str(one) for one in words], check=False, cwd=cwd, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def unpacked() -> Path:
    """Return the folder with the unpacked files of all packages. They are unpacked once."""
    wanted = packages()
    cache = ROOT / ".cache" / "unpacked" / hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "done").exists():
            try:
                _download(cache, wanted)
            except RuntimeError:
                run("apt-get", "update")  # no package lists yet, or lists that name versions which are gone
                _download(cache, wanted)
            for deb in sorted(cache.glob("*.deb")):
                run("dpkg-deb", "-x", deb, cache / "tree")
            (cache / "done").touch()
    return cache / "tree"


def _download(folder: Path, wanted: list[str]) -> None:
    run("apt-get", "-o", "APT::Sandbox::User=root", "download", *wanted, cwd=folder)
