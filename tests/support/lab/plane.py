# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane of this checkout, ``magnetar serve``, in a process of its own next to a ``LabAgent``."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Self

import yaml

from tests.support.lab.agent import CACHE, eventually
from tests.support.ports import free_port

if TYPE_CHECKING:
    from tests.support.lab.agent import LabAgent

SERVE = "import sys; from magnetar_core.commands import main; sys.exit(main(sys.argv[1:]))"


class LabControl:
    """API, conductor and services for the host of *agent*. Its folder is inside the agent's folder."""

    def __init__(self, agent: LabAgent, name: str = "labhost", **settings: object) -> None:
        self.port = free_port()
        self.folder = agent.folder / "control"
        self.log, self.config = agent.folder / "control.log", agent.folder / "control.yml"
        self.settings = {"state_dir": str(self.folder), "listen": f"127.0.0.1:{self.port}", "heartbeat": 1.0,
                         "hosts": {name: agent.endpoint}, "network_cidr": agent.cidr, **settings}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.config.write_text(yaml.safe_dump(self.settings))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, "serve", "--config", self.config], cwd="/", stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(CACHE / "src")}, stdout=log, stderr=log)
        try:
            eventually(self.answers, "the API answers")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def answers(self) -> bool:
        """Return whether the API answers."""
        assert self.process is not None
        assert self.process.poll() is None, f"it ended:\n{self.log.read_text()[-4000:]}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def openstack(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of OpenStack's own client as the administrator."""
        environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.folder / "clouds.yaml"), "OS_CLOUD": "magnetar"}
        words = [str(Path(sys.executable).with_name("openstack")), *shlex.split(command)]
        return subprocess.run(words, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment, timeout=180)
