# SPDX-License-Identifier: GPL-3.0-or-later
"""Examine a host of Magnetar, and print the result as JSON: {sent, now, facts, problems}. Nothing is
changed.

    python3 - REQUEST <doctor.py

REQUEST is a JSON object:

* sent: time of the controller, which the answer repeats beside the time of the host
* units: systemd units that must run, by name
* certificates: folders and files with certificates (PEM), which must be valid for another certificate_days
* disks: folders whose file systems must have disk_percent of their room left

Standard library only: it runs on a fresh Debian.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from calendar import timegm
from pathlib import Path

DAY = 86400
#: The end of a certificate, as openssl prints it.
END = "%b %d %H:%M:%S %Y GMT"


def run(*words: object) -> tuple[int, str]:
    """Run a command; return its exit status and its output."""
    # A fixed list of words, no shell.
    done = subprocess.run([str(word) for word in words], check=False, text=True, stdout=subprocess.PIPE,  # noqa: S603
                          stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C"})
    return done.returncode, done.stdout.strip()


def examine_units(names: list[str]) -> tuple[list[str], list[str]]:
    """Return facts and problems of systemd units: none may be missing, stopped or failed."""
    problems = []
    for name in names:
        state = run("systemctl", "is-active", name)[1]
        if state != "active":
            problems.append(f"{name} is {state or 'unknown'}: look at `journalctl -u {name}`")
    return [], problems


def certificate_files(folders: list[str]) -> list[Path]:
    """Return the files with certificates in these folders, sorted. An entry may also be a file; entries that do not
    exist are left out.
    """
    found = set()
    for folder in map(Path, folders):
        if folder.is_file():
            found.add(folder)
        for pattern in ("*.pem", "*.crt"):
            found.update(folder.rglob(pattern))
    return sorted(found)


def examine_certificates(folders: list[str], days: int) -> tuple[list[str], list[str]]:
    """Return facts and problems of certificates: each must be valid for this number of *days*."""
    problems: list[str] = []
    first: int | None = None
    for path in certificate_files(folders):
        status, text = run("openssl", "x509", "-noout", "-enddate", "-in", path)
        if status:
            problems.append(f"the certificate {path} is not readable: {text.splitlines()[0]}")
            continue
        end = timegm(time.strptime(" ".join(text.partition("=")[2].split()), END))
        left = (end - time.time()) / DAY
        first = end if first is None else min(first, end)
        if left < days:
            state = f"expires in {left:.0f} days" if left > 0 else "has expired"
            problems.append(f"the certificate {path} {state}: run magnetar.compute.renew_certificates")
    return [] if first is None else [time.strftime("certificates until %Y-%m-%d", time.gmtime(first))], problems


def examine_disks(folders: list[str], percent: int) -> tuple[list[str], list[str]]:
    """Return facts and problems of file systems: each must have this *percent* of its room and inodes left. A file
    system with several of the folders is reported once.
    """
    facts: list[str] = []
    problems: list[str] = []
    devices: set[int] = set()
    for folder in map(Path, folders):
        if not folder.is_dir() or folder.stat().st_dev in devices:
            continue
        devices.add(folder.stat().st_dev)
        system = os.statvfs(folder)
        room = 100 * system.f_bavail / max(1, system.f_blocks)
        inodes = 100 * system.f_favail / system.f_files if system.f_files else 100
        facts.append(f"{room:.0f} % of {folder} free")
        if room < percent:
            problems.append(f"{folder} has {room:.0f} % of its room left: remove files, or enlarge it")
        if inodes < percent:
            problems.append(f"{folder} has {inodes:.0f} % of its inodes left: remove files, or enlarge it")
    return facts, problems


def main() -> None:
    """Print the result for the request in the first argument."""
    request = json.loads(sys.argv[1])
    parts = [examine_units(request["units"]),
             examine_certificates(request["certificates"], request["certificate_days"]),
             examine_disks(request["disks"], request["disk_percent"])]
    print(json.dumps({"sent": float(request["sent"]), "now": time.time(),
                      "facts": [fact for facts, _problems in parts for fact in facts],
                      "problems": [problem for _facts, problems in parts for problem in problems]}))


if __name__ == "__main__":
    main()
