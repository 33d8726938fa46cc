# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack's own clients, unmodified, with the credentials of a cloud's administrator, and the stories that they play.

Each command of the command line runs in a process of its own. That process is forked from one that has imported the
client's modules already, which is four times as fast as starting Python for each.

A story is a file of tests/cases/clients: the steps of a client, in order. Keys of a step: ``run``: the command;
``says``: a regular expression that its output must match; ``waits``: one that the output matches after repeated runs;
``refused``: the command must fail, with this text in its error; ``keep``: a placeholder for later steps, whose value is
the first line of the output, or the group in ``says``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import yaml

from magnetar_control.api.nova.versions import NEWEST

CASES = Path(__file__).resolve().parents[1] / "cases/clients"
#: Seconds for the effects of a command after its end, and for a command.
LATER, LIMIT = 180.0, 240.0
ENOUGH = 3
READ = ["openstackclient.shell", "openstackclient.compute.v2.server", "openstack.connection"]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(READ)


class Clients:
    """The clients of the cloud ``magnetar`` in the file *clouds* (``clouds.yaml``); *folder* is the user's home."""

    def __init__(self, clouds: Path, folder: Path) -> None:
        self.clouds, self.folder = clouds, folder

    def openstack(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``openstack``, and return the finished process."""
        words = shlex.split(command)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "COLUMNS": "200",
                       "OS_CLIENT_CONFIG_FILE": str(self.clouds), "OS_CLOUD": "magnetar"}
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
            process = FORKS.Process(target=command_line, args=(
                words, environment, *(DupFd(file.fileno()) for file in (said, errors))))
            process.start()
            process.join(LIMIT)
            if process.is_alive():
                process.kill()
                process.join()
            texts = []
            for file in (said, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            return subprocess.CompletedProcess(words, process.exitcode or 0, *texts)

    def ask(self, command: str) -> str:
        """Run a command, which must succeed, and return its output."""
        done = self.openstack(command)
        assert done.returncode == 0, f"openstack {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, command: str) -> Any:
        """Run a command, and return its output as a JSON document."""
        return json.loads(self.ask(f"{command} -f json"))

    @cached_property
    def sdk(self) -> Any:
        """Return a connection of openstacksdk."""
        import openstack
        from openstack.config import OpenStackConfig

        return openstack.connection.Connection(
            config=OpenStackConfig(config_files=[str(self.clouds)], load_envvars=False).get_one("magnetar"))


def command_line(words: list[str], environment: dict[str, str], *outputs: Any) -> None:
    """Run the program ``openstack`` in a forked process."""
    from openstackclient import shell

    os.environ.clear()
    os.environ.update(environment)
    for stream, output in enumerate(outputs, 1):
        os.dup2(output.detach(), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.exit(shell.main(words))


def story(name: str) -> list[dict[str, Any]]:
    """Return the steps of tests/cases/clients/NAME.yml."""
    found: list[dict[str, Any]] = yaml.safe_load((CASES / f"{name}.yml").read_text(encoding="utf-8"))
    return found


def play(clients: Clients, story: list[dict[str, Any]], **values: object) -> list[str]:
    """Play a story of commands; return a text for each wrong step. *values*: values of placeholders. Stop after a few
    wrong steps, since the later ones would fail because of them.
    """
    wrong: list[str] = []
    known = {"newest": NEWEST, **values}
    for step in story:
        if len(wrong) == ENOUGH:
            break
        command, deadline = step["run"].format(**known), time.monotonic() + LATER
        began = time.monotonic()
        while True:
            done = clients.openstack(command)
            if "waits" not in step or time.monotonic() > deadline or _as_told(step, known, done):
                break
            time.sleep(0.2)
        print(f"{time.monotonic() - began:6.1f} s  openstack {command}")
        if not _as_told(step, known, done):
            wrong.append(f"openstack {command}\n{(done.stdout + done.stderr)[-800:]}")
            print(wrong[-1])
        if "keep" in step:
            found = re.search(_wanted(step, known), done.stdout)
            known[step["keep"]] = found[1] if found and found.re.groups else done.stdout.split("\n", 1)[0].strip()
    return wrong


def _as_told(step: dict[str, Any], known: dict[str, Any], done: subprocess.CompletedProcess[str]) -> bool:
    return bool(done.returncode) == ("refused" in step) and bool(re.search(
        _wanted(step, known), done.stdout + done.stderr))


def _wanted(step: dict[str, Any], known: dict[str, Any]) -> str:
    return str(step.get("says") or step.get("waits") or step.get("refused") or "").format(**known)
