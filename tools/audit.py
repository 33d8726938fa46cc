# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the locked packages for known vulnerabilities in pip-audit's database; skipped, with the reason, when the
database cannot be reached. requirements/accepted.toml lists the accepted vulnerabilities.
"""

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
#: Errors that pip-audit ends with when the database does not answer.
UNREACHED = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "SSLError", "ProxyError", "ServiceError",
             "ConnectionException")


class Skipped(Exception):
    """The database could not be queried; the message has the reason."""


def audit_lock(lock_file: Path) -> dict[str, Any]:
    """Return pip-audit's report about a lock file. Raises `Skipped`, and SystemExit with pip-audit's output for any
    other failure.
    """
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


def list_vulnerabilities(report: dict[str, Any], accepted: dict[str, str]) -> list[str]:
    """Return a line for each vulnerability in the report that is not *accepted*, and for each accepted one that no
    longer occurs. Raises `Skipped` when the database knows no package, as with a mirror.
    """
    packages = report["dependencies"]
    unknown = [package for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        reason = unknown[0]["skip_reason"] if unknown else "pip-audit looked at nothing"
        raise Skipped(f"the database answers for no package: {reason}.")
    problems = [f"{package['name']}: {package['skip_reason']}" for package in unknown]
    reported_names = set()
    for package in packages:
        for vulnerability in package.get("vulns", []):
            names = {vulnerability["id"], *vulnerability.get("aliases", [])}
            reported_names |= names
            if not names & {*accepted}:
                mended = ", ".join(vulnerability["fix_versions"]) or "no version yet"
                problems.append(
                    f"{package['name']} {package['version']}: {' '.join(sorted(names))}, mended in {mended}.")
    problems += [f"{ACCEPTED.name}: {name} is found no longer. Remove its line." for name in accepted
                 if name not in reported_names]
    return problems


def main() -> int:
    """Print the problems. Return status 1 when there are any."""
    try:
        problems = list_vulnerabilities(audit_lock(lock.FOLDER / "dev.txt"),
                                        tomllib.loads(ACCEPTED.read_text(encoding="utf-8")))
    except Skipped as reason:
        print(f"Skipped: {reason}")
        return 0
    if problems:
        print("\n".join([*problems,
                         "`python -m tools.lock` takes newer versions. What does not matter here is accepted, "
                         "with the reason, in requirements/accepted.toml."]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
