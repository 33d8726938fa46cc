# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud of a simulated day: ``magnetar serve`` with the simulated hosts of ``magnetar agent --fake``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from control_client import Wire
from control_cloud import MAGNETAR, Cloud

from magnetar_core.http.transport import unix_connection

#: Seconds within which the control plane must end, and the audit of a whole cloud.
ENDING, AUDIT = 600, 3600
#: A message about requests that take longer than a stopping server waits, as documented.
CUT_OFF = "timeout graceful shutdown exceeded"


class ProcessSize(NamedTuple):
    """The size of a process: MiB of resident memory, threads, file descriptors."""

    rss: float
    threads: int
    descriptors: int


class DayCloud(Cloud):
    """A cloud with *hosts* simulated hosts, on a database of the engine *kind*."""

    more: Mapping[str, Any] = {"token_hours": 24.0}

    def __init__(self, kind: str, hosts: int) -> None:
        super().__init__(kind, hosts)
        self.starts = 1

    def _agents(self, stack: contextlib.ExitStack) -> dict[str, Path]:
        folder = self.folder / "simulation"
        stack.enter_context(self._process("simulation", [
            *MAGNETAR, "agent", "--fake", "--hosts", self.count, "--state-dir", folder]))
        settings = folder / "hosts.yml"
        self._await(settings.exists, "the simulated hosts")
        return {name: Path(endpoint.removeprefix("unix://"))
                for name, endpoint in yaml.safe_load(settings.read_text())["hosts"].items()}

    @property
    def settings_file(self) -> Path:
        """The settings file of the control plane."""
        return self.folder / "control.yml"

    def stop_serve(self) -> None:
        """End the control plane with SIGTERM, as an upgrade does."""
        self.process.terminate()
        self.process.wait(ENDING)

    def start_serve(self) -> None:
        """Start the control plane again, as a new process, and wait until it answers."""
        self.starts += 1
        self.process = self._stack.enter_context(self._process(
            f"serve-{self.starts}", [*MAGNETAR, "serve", "--config", self.settings_file]))
        self._await(self._answers, "magnetar serve")
        self.wire = Wire(self.port)

    def set_condition(self, condition: str, **how: Any) -> list[str]:
        """Change the condition of hosts (``docs/howto/try-a-thousand-hosts.md``); return their names."""
        connection = unix_connection(str(self.folder / "simulation" / "simulation.sock"), 60)
        try:
            connection.request("PUT", "/condition", json.dumps({"condition": condition, **how}))
            response = connection.getresponse()
            reply = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise SystemExit(f"condition {condition}: {reply}")
        return list(reply["hosts"])

    def measure_process(self) -> ProcessSize:
        """Return the size of the control plane's process."""
        folder = Path(f"/proc/{self.process.pid}")
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return ProcessSize(int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]),
                           len(list((folder / "fd").iterdir())))

    def audit(self) -> list[str]:
        """Return the lines of what ``magnetar audit`` finds."""
        done = subprocess.run([*MAGNETAR, "audit", "--config", self.settings_file], check=False, text=True,
                              capture_output=True, timeout=AUDIT)
        lines = done.stdout.splitlines()
        if done.returncode and not lines:
            lines = [line for line in done.stderr.splitlines() if line.startswith("magnetar:")] or [done.stderr[-2000:]]
        return lines

    def log_errors(self) -> list[str]:
        """Return the error messages in the control plane's logs, without their times."""
        errors = []
        for path in sorted(self.folder.glob("serve*.log")):
            for line in path.read_text(errors="replace").splitlines():
                if '"level":"error"' in line or '"level":"critical"' in line:
                    document = json.loads(line)
                    if CUT_OFF in document["message"] + document.get("trace", ""):
                        continue
                    errors.append(f"{document['logger']}: {document['message']}: {document.get('trace', '')[-400:]}")
        return errors

    def wait_for_hosts(self, seconds: float) -> int:
        """Wait at most *seconds* until all hosts are up; return the number of hosts that are not."""
        deadline = time.monotonic() + seconds
        while missing := self.count - self._hosts_up():
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        return missing

    def _hosts_up(self) -> int:
        services: Sequence[dict[str, Any]] = self.ask("GET", "/v2.1/os-services?binary=nova-compute")["services"]
        return sum(service["state"] == "up" for service in services)
