# SPDX-License-Identifier: GPL-3.0-or-later
"""The command ``magnetar`` as a whole: what it knows with and without the control plane, and readers that go away."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from magnetar_control import cli as control
from magnetar_core import commands

RUN = [sys.executable, "-c", "import sys; from magnetar_core.commands import main; sys.exit(main())"]


def of_control():
    """The control plane's subcommands, as it has them."""
    found = argparse.ArgumentParser().add_subparsers()
    control.subcommands(found)
    return found.choices


def test_the_table_has_all_of_the_control_plane():
    found = of_control()
    assert set(found) == {*commands.OF_CONTROL, *commands.SHARED}
    for group, actions in commands.SHARED.items():
        [choices] = [action.choices for action in found[group]._actions if action.dest == "action"]
        assert set(choices) == set(actions)


def test_help_tells_of_all(capsys):
    with pytest.raises(SystemExit) as ended:
        commands.main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and all(f"\n    {name} " in said or f"\n    {name}\n" in said
                                         for name in (*commands.OF_CONTROL, *commands.OF_AGENT, "completion"))


def test_an_unknown_word(capsys):
    with pytest.raises(SystemExit):
        commands.main(["nope"])
    said = capsys.readouterr().err.replace("'", "")  # Python 3.13 names the choices without quotes
    assert "agent, " in said and "serve" in said and "cell" in said


def test_completion_knows_all(capsys):
    assert commands.main(["completion", "bash"]) == 0
    said = capsys.readouterr().out
    assert " serve api conductor " in said and '"cell create") echo "-h --help --config --database-url' in said


def test_without_the_control_plane(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, commands.CONTROL, None)
    with pytest.raises(SystemExit):
        commands.main(["--help"])
    assert "conductor" not in capsys.readouterr().out
    assert commands.main(["serve"]) == 1 and "Install magnetar[control]" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["agent", "--check-config"], ["config"], ["cell", "-h"], ["version"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away(words, unbuffered):
    """As ``head`` does: no trace, and the status that shells know."""
    reading = subprocess.Popen([sys.executable, "-c", "import os; os.close(0)"], stdin=subprocess.PIPE)
    reading.wait(120)  # nobody reads from the pipe any more
    done = subprocess.run([*RUN, *words], stdout=reading.stdin, stderr=subprocess.PIPE, text=True, check=False,
                          env={"PYTHONUNBUFFERED": unbuffered, "PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)})
    reading.stdin.close()
    ignored = {0} if unbuffered and words[-1] in ("--help", "-h") else set()  # by argparse of Python 3.13
    assert done.returncode in {commands.READER_GONE, *ignored} and "Error" not in done.stderr, done.stderr
