# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook purge on this machine, with a program that says what it is called with in place of ``runuser``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RUNUSER = """#!/bin/sh
echo "$@" >{folder}/called
cat {folder}/rows
"""
NONE = ("cell0: 0 servers deleted before 2026-08-01T00:00:00 removed\n"
        "0 fencing requests ended before 2026-08-01T00:00:00 removed\n")
COMMAND = "-u magnetar -- /opt/magnetar-control/bin/magnetar db purge --config /etc/magnetar-control/api.yml"


def purge(folder, rows, *options, **answers):
    """Return ``(status, output, call)`` of the playbook; ``None`` as call when nothing was called."""
    runuser = folder / "runuser"
    runuser.write_text(RUNUSER.format(folder=folder))
    runuser.chmod(0o755)
    (folder / "rows").write_text(rows)
    (folder / "inventory").write_text("[magnetar_api]\nlocalhost ansible_connection=local ansible_become=false\n")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
                   "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", folder / "inventory", "-e", json.dumps(answers),
         ROOT / "playbooks/purge.yml", *options], check=False, text=True, capture_output=True, env=environment)
    called = folder / "called"
    return done.returncode, done.stdout + done.stderr, called.read_text().strip() if called.exists() else None


def test_rows_are_removed_and_kept_in_files(tmp_path):
    status, said, called = purge(tmp_path, NONE.replace("0 servers", "12 servers"), purge_before="2026-08-01",
                                 purge_archive="/srv/old rows")
    assert status == 0 and " changed=1 " in said and "12 servers deleted" in said, said
    assert called == f"{COMMAND} --before 2026-08-01 --archive /srv/old rows"


def test_nothing_is_old_enough(tmp_path):
    status, said, called = purge(tmp_path, NONE)
    assert (status, called) == (0, COMMAND) and " changed=0 " in said, said


def test_check_mode_only_counts(tmp_path):
    status, said, called = purge(tmp_path, NONE.replace("0 fencing", "3 fencing"), "--check")
    assert (status, called) == (0, f"{COMMAND} --dry-run") and " changed=1 " in said, said


@pytest.mark.parametrize("answers", [{"purge_before": "soon"}, {"purge_archive": "old"}], ids=["time", "folder"])
def test_nonsense_is_refused(tmp_path, answers):
    status, said, called = purge(tmp_path, NONE, **answers)
    assert status == 2 and called is None and f"{next(iter(answers))} must be" in said, said
