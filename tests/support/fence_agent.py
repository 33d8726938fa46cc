# SPDX-License-Identifier: GPL-3.0-or-later
"""A fence agent with the API of Debian's fence-agents, as a program in a folder. A test tells it how to behave; it
keeps the power of each plug in a file, and writes down what it was asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import json, os, subprocess, sys, time
folder = {folder!r}
lines = dict(line.rstrip("\\n").split("=", 1) for line in sys.stdin if "=" in line)
action, plug = lines["action"], lines.get("plug", "1")
with open(folder + "/asked", "a") as asked:
    asked.write(json.dumps(lines) + "\\n")
mode = open(folder + "/mode").read()
power_file = folder + "/power-" + plug
power = open(power_file).read() if os.path.exists(power_file) else "on"
if mode == "hangs" or mode == "hangs in " + action:
    child = subprocess.Popen(["sleep", "600"])
    open(folder + "/child", "w").write(str(child.pid))
    time.sleep(600)
if mode == "garbage":
    sys.stdout.buffer.write(b"\\xff\\xfe\\0\\x1b[31mgarbage " * 20000)
    sys.exit(77)
if mode == "endless":
    while True:
        sys.stdout.write("y" * 65536)
if mode == "refuses":
    print("Unable to connect/login to fencing device at", lines.get("ip"), "with", lines.get("password"),
          file=sys.stderr)
    sys.exit(1)
if mode == "fails once" and not os.path.exists(folder + "/failed"):
    open(folder + "/failed", "w").close()
    sys.exit(1)
if action in ("on", "off"):
    if mode == "slow":
        time.sleep(1)
    if mode not in ("on for ever", "lies"):
        open(power_file, "w").write(action)
    sys.exit(0)
if mode == "lies":
    print("Status: ON")
    sys.exit(2)
print("Status:", power.upper())
sys.exit(0 if power == "on" else 2)
"""


class FakeFenceAgent:
    """The program ``fence_fake`` in *folder*. *mode*: ok, slow, refuses, fails once, hangs, hangs in ACTION, on for
    ever (says that it has done it, and does not), lies (its exit status and its output differ), garbage, endless."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        program = folder / "fence_fake"
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)
        self.behave("ok")

    def behave(self, mode: str) -> None:
        """Behave so from now on."""
        (self.folder / "mode").write_text(mode)

    def settings(self, *hosts: str, **more: Any) -> dict[str, Any]:
        """Settings of a control plane in which these hosts have this agent, each its own plug."""
        return {"fence_agents_dir": str(self.folder), "fence_timeout": 20.0, "fencing": {
            host: {"agent": "fence_fake", "parameters": {"ip": "192.0.2.7", "plug": host}} for host in hosts}, **more}

    @property
    def asked(self) -> list[dict[str, str]]:
        """The parameters of all runs."""
        file = self.folder / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def actions(self, host: str) -> list[str]:
        """The actions that it was asked for at a host."""
        return [lines["action"] for lines in self.asked if lines.get("plug") == host]

    def power(self, host: str) -> str:
        """Whether a host is on or off."""
        file = self.folder / f"power-{host}"
        return file.read_text() if file.exists() else "on"

    def set_power(self, host: str, power: str) -> None:
        """Switch a host by hand."""
        (self.folder / f"power-{host}").write_text(power)
