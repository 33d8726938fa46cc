# SPDX-License-Identifier: GPL-3.0-or-later
"""What pip is asked for when wheels are fetched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import wheelhouse


def test_pip_is_asked_for_each_kind_of_host(tmp_path, monkeypatch):
    calls = []

    def run(words, **_more):
        words = [str(word) for word in words]
        locks = [Path(words[at + 1]).read_text() for at, word in enumerate(words) if word == "-r"]
        calls.append((words, locks))

    monkeypatch.setattr(subprocess, "run", run)
    wheelhouse.fetch_wheels(tmp_path, ["3.11", "3.13"], ["x86_64", "aarch64"])
    asked = [(words[words.index("--python-version") + 1], words[words.index("--platform") + 1]) for words, _ in calls]
    assert asked == [(python, f"manylinux_2_36_{machine}") for python in ("3.11", "3.13")
                     for machine in ("x86_64", "aarch64")]
    for words, locks in calls:
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= {*words} and words[:4] == [
            sys.executable, "-m", "pip", "download"]
        assert "fastapi==" in locks[0] and "sqlalchemy==" in locks[1] and "--hash=sha256:" in locks[1]


def test_markers_are_not_for_the_machine_that_fetches():
    text = "one==1 ; python_full_version < '3.12' \\\n    --hash=sha256:ab\ntwo==2 \\\n    --hash=sha256:cd\n"
    assert wheelhouse.without_markers(text) == "one==1 \\\n    --hash=sha256:ab\ntwo==2 \\\n    --hash=sha256:cd\n"


def test_pips_failure_is_told(tmp_path, monkeypatch, capsys):
    def run(words, **_more):
        raise subprocess.CalledProcessError(2, words)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["wheelhouse", str(tmp_path)])
    assert wheelhouse.main() == 2
    assert "Not all wheels could be fetched, pip says above why." in capsys.readouterr().err


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_tags_go_from_the_newest_glibc_to_the_oldest(machine):
    tags = wheelhouse.platform_tags(machine)
    assert tags[0] == f"manylinux_2_36_{machine}"
    assert {f"manylinux_2_17_{machine}", f"manylinux2014_{machine}"} <= {*tags}
