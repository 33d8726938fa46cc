# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud whose control plane is that of an earlier release, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port
from tests.support.waiting import eventually

from .cloud import Caller, Cloud

MAGNETAR = (sys.executable, "-c", "import sys; from magnetar_core.commands import main; sys.exit(main())")


class ReleasedCloud(Cloud):
    """A cloud with the control plane of the PYTHONPATH *tree*. ``admin`` and ``caller`` work as those of ``Cloud``; the
    parts of the control plane are not in this process."""

    def __init__(self, tree: Path, **more: Any) -> None:
        super().__init__(**more)
        self.tree = tree

    def _start_control(self, settings_document: Mapping[str, Any]) -> None:
        self.port = free_port()
        (self.folder / "control.yml").write_text(json.dumps({**settings_document, "listen": f"127.0.0.1:{self.port}"}))
        self._stack.callback(self._stop_control)
        self._process = self._control_process()
        clouds = self.folder / "control/clouds.yaml"
        eventually(clouds.exists)
        self.password = yaml.safe_load(clouds.read_text())["clouds"]["magnetar"]["auth"]["password"]
        self._log_in()
        flavor = {"id": "1", "name": "tiny", "vcpus": 1, "ram": 64, "disk": 0}
        assert self.admin.post("/v2.1/flavors", {"flavor": flavor}).status == 200

    def restart_control(self, tree: Path) -> None:
        """Stop the control plane, and start that of another PYTHONPATH on its databases."""
        self._stop_control()
        self.tree = tree
        self._process = self._control_process()
        self._log_in()

    def _control_process(self) -> subprocess.Popen[bytes]:
        with (self.folder / "control.log").open("ab") as log:
            return subprocess.Popen([*MAGNETAR, "serve", "--config", self.folder / "control.yml"], stdout=log,
                                    stderr=log, env={**os.environ, "PYTHONPATH": str(self.tree)})

    def _stop_control(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _log_in(self) -> None:
        """Set ``admin`` when the control plane answers and its hosts are up."""
        eventually(self._answers)
        self.admin = self.login("admin", self.password, "admin")
        eventually(lambda: sum(service["state"] == "up" for service in self.admin.get(
            "/v2.1/os-services?binary=nova-compute").json["services"]) == len(self.hosts))

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self.folder / "control.log").read_text()[-2000:]
        try:
            return Caller(self.port).get("/healthz").status == 200
        except OSError:
            return False
