# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from tests.modules.conftest import ROOT, Running

BIN = Path(sys.executable).parent


def fences(name: str, language: str) -> list[str]:
    """Return the blocks of a document in *language*, without the indentation of blocks in lists."""
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _indent, block_language, text in blocks if block_language == language]


def run(place: tuple[Path, Running], plays: str, *words: str, command: str = "ansible-playbook",
        arguments: Iterable[str] = ("play.yml",)) -> str:
    """Run a playbook, or another *command* of Ansible; return its output."""
    folder, running = place
    (folder / "play.yml").write_text(plays)
    (folder / "hosts").write_text("[magnetar]\nlocalhost ansible_connection=local ansible_become=false\n"
                                  "[kvm_hosts]\nlocalhost\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MAGNETAR_"))},
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache"), "ANSIBLE_HOME": str(folder / "ansible"), "LC_ALL": "C.UTF-8",
        "ANSIBLE_INVENTORY": str(folder / "hosts"), "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "HOME": str(folder / "home/me"), "MAGNETAR_ENDPOINT": running.endpoint,
    }
    done = subprocess.run([BIN / command, *words, *arguments], cwd=folder, env=environment, check=False,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout
