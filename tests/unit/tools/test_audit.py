# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stage audit makes of pip-audit's report."""

from __future__ import annotations

import subprocess
import tomllib
from types import SimpleNamespace

import pytest

from tools import audit

GOOD = {"name": "one", "version": "1", "vulns": []}
BAD = {"name": "two", "version": "2", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "three", "skip_reason": "three is not known"}


@pytest.mark.parametrize(("packages", "accepted", "found"), [
    ([GOOD], {}, []),
    ([GOOD, BAD], {}, ["two 2: CVE-1 PYSEC-1, mended in 2.1."]),
    ([GOOD, BAD], {"CVE-1": "why"}, []),
    ([GOOD], {"CVE-1": "why"}, ["accepted.toml: CVE-1 is found no longer. Remove its line."]),
    ([GOOD, UNKNOWN], {}, ["three: three is not known"]),
])
def test_what_is_found_is_told(packages, accepted, found):
    assert audit.list_vulnerabilities({"dependencies": packages}, accepted) == found


@pytest.mark.parametrize("packages", [[], [UNKNOWN]])
def test_a_database_that_knows_no_package_passes_nothing(packages):
    """pip-audit itself calls that "No known vulnerabilities found"."""
    with pytest.raises(audit.Skipped, match="answers for no package"):
        audit.list_vulnerabilities({"dependencies": packages}, {})


def test_nobody_answers_is_skipped_and_any_other_failure_fails(tmp_path, monkeypatch, capsys):
    said = "requests.exceptions.ConnectionError: nobody answers"
    monkeypatch.setattr(subprocess, "run", lambda *_words, **_more: SimpleNamespace(returncode=1, stdout=said))
    assert audit.main() == 0
    assert capsys.readouterr().out == f"Skipped: the database cannot be reached: {said}\n"
    said = "ERROR: requirements file does not parse"
    with pytest.raises(SystemExit, match="pip-audit ended with status 1:\nERROR"):
        audit.main()


def test_what_is_accepted_has_a_reason():
    accepted = tomllib.loads(audit.ACCEPTED.read_text())
    assert all(isinstance(why, str) and len(why) > 10 for why in accepted.values())
