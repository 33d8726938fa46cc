# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks pip-audit's database for known vulnerabilities of the locked packages; skipped, with the reason, when it is out
of reach. Those that are accepted are in requirements/accepted.toml."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tools import lock

ACCEPTED = lock.FOLDER / "accepted.toml"
#: What pip-audit ends with when nobody answers.
UNREACHED = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "SSLError", "ProxyError", "ServiceError",
             "ConnectionException")


class Skipped(Exception):
    """Nothing was asked; the text says why."""


def ask(lock_file: Path) -> dict[str, Any]:
    """pip-audit's report of a lock; raises `Skipped`, and SystemExit with its words for any other failure."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        done = subprocess.run(
            [Path(sys.executable).with_name("pip-audit"), "--require-hashes", "--disable-pip", "--progress-spinner",
             "off", "--format", "json", "--output", file, "--requirement", lock_file],
            check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if file.exists() and file.stat().st_size:
            return dict(json.loads(file.read_text(encoding="utf-8")))
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if any(name in done.stdout for name in UNREACHED):
        raise Skipped(f"the database cannot be reached: {last[:200]}")
    sys.exit(f"pip-audit ended with status {done.returncode}:\n{done.stdout[-4000:]}")


def verdict(report: dict[str, Any], accepted: dict[str, str]) -> list[str]:
    """What is wrong by the report; raises `Skipped` when the database knew of no package at all, as a mirror does."""
    packages = report["dependencies"]
    unknown = [one for one in packages if "skip_reason" in one]
    if len(unknown) == len(packages):
        reason = unknown[0]["skip_reason"] if unknown else "pip-audit looked at nothing"
        raise Skipped(f"the database answers for no package: {reason}.")
    found = [f"{one['name']}: {one['skip_reason']}" for one in unknown]
    seen = set()
    for one in packages:
        for known in one.get("vulns", []):
            names = {known["id"], *known.get("aliases", [])}
            seen |= names
            if not names & {*accepted}:
                mended = ", ".join(known["fix_versions"]) or "no version yet"
                found.append(f"{one['name']} {one['version']}: {' '.join(sorted(names))}, mended in {mended}.")
    found += [f"{ACCEPTED.name}: {name} is found no longer. Remove its line." for name in accepted if name not in seen]
    return found


def main() -> int:
    """Say what was found; status 1 when there is anything."""
    try:
        found = verdict(ask(lock.FOLDER / "dev.txt"), tomllib.loads(ACCEPTED.read_text(encoding="utf-8")))
    except Skipped as reason:
        print(f"Skipped: {reason}")
        return 0
    if found:
        print("\n".join([*found, "`python -m tools.lock` takes newer versions. What does not matter here is accepted, "
                         "with the reason, in requirements/accepted.toml."]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
