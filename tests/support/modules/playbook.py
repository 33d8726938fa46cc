# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of ansible-playbook with the collection of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
#: Variables of the caller's environment that would change a run.
FOREIGN = ("ANSIBLE_", "MAGNETAR_", "OS_")


def ansible_environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment for Ansible's programs, with the collection in *folder*."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "compute").exists():
        (links / "compute").symlink_to(ROOT)
    plain = {name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)}
    return {**plain, "ANSIBLE_COLLECTIONS_PATH": str(folder), "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
            "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1", **more}


def run_playbook(folder: Path, host: str, variables: dict[str, Any], *tasks: dict[str, Any], **more: str) -> Any:
    """Run *tasks* on *host*, which has these *variables*, and return the finished process with its texts."""
    (folder / "book.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [*tasks]}]))
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {host: variables}}}))
    return subprocess.run([BIN / "ansible-playbook", "-i", folder / "hosts.json", folder / "book.json"], text=True,
                          capture_output=True, check=False, timeout=600, cwd=folder,
                          env=ansible_environment(folder, **more))
