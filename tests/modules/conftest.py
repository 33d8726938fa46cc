# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent on a unix socket with a FakeHypervisor, and modules run in this process against it."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import _internal
from ansible.module_utils.testing import patch_module_args

from magnetar_agent.agent import Agent
from magnetar_agent.api import serve
from magnetar_agent.api.app import AgentApplication
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.settings import AgentSettings
from tests.support.http_server import started

ROOT = Path(__file__).parents[2]
COLLECTION = "ansible_collections.magnetar.compute"


def _alias() -> None:
    """Import the checkout under the collection's name."""
    parts = COLLECTION.split(".")
    for at in range(1, len(parts) + 1):
        name = ".".join(parts[:at])
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = []
    sys.modules[COLLECTION].__path__ = [str(ROOT)]


_alias()


class Running:
    """An agent that runs: ``endpoint``, ``hypervisor``, ``folder``."""

    def __init__(self, folder: Path, **fake: Any) -> None:
        self.folder = folder
        self.socket = folder / "agent.sock"
        self.endpoint = f"unix://{self.socket}"
        self.hypervisor = FakeHypervisor(folder, **fake)
        self.settings = AgentSettings(state_dir=folder / "state", socket=self.socket, image_paths=(folder,),
                                      export_paths=(folder / "exports",), shutdown_timeout=0.2)
        self.agent = Agent(self.settings, self.hypervisor)
        self._listening = serve.unix_socket(self.socket, self.settings.socket_group)
        self._server = serve.make_http_server(AgentApplication(self.agent), self.settings, None)
        self._ending = contextlib.ExitStack()

    def start(self) -> None:
        self.agent.start()
        self._ending.enter_context(started(self._server, self._listening, cut=True))

    def stop(self) -> None:
        self._ending.close()
        self._listening.close()
        self.agent.close()
        self.hypervisor.close()


def specification(module: str) -> dict[str, Any]:
    """The argument spec of a module, and the rules about options together."""
    loaded = importlib.import_module(f"{COLLECTION}.plugins.modules.{module}")
    if hasattr(loaded, "SPECIFICATION"):  # a module that asks no agent
        return loaded.SPECIFICATION
    run = importlib.import_module(f"{COLLECTION}.plugins.module_utils.run")
    return {"argument_spec": run.argument_spec(loaded.MODULE), **loaded.MODULE.rules}


@pytest.fixture
def agent(tmp_path):
    log = logging.getLogger("magnetar_agent")
    level = log.level
    log.setLevel(logging.ERROR)
    running = Running(tmp_path)
    running.start()
    yield running
    running.stop()
    log.setLevel(level)  # other tests of this process look at warnings


@pytest.fixture
def module(agent, capsys, monkeypatch):
    """``module(name, check=False, diff=True, **options)``: the result of the module, run in this process."""
    def run(name, /, check=False, diff=True, **options):
        options.setdefault("endpoint", agent.endpoint)
        arguments = dict(options, _ansible_check_mode=check, _ansible_diff=diff, _ansible_remote_tmp="/tmp",
                         _ansible_keep_remote_files=False)
        loaded = importlib.import_module(f"{COLLECTION}.plugins.modules.{name}")
        process = importlib.import_module(f"{COLLECTION}.plugins.module_utils.run")
        capsys.readouterr()
        # Once a test has imported Ansible's controller, warnings of modules would go to its display.
        monkeypatch.setattr(_internal, "is_controller", False)
        with patch_module_args(arguments), pytest.raises(SystemExit):
            process.run_module_process(loaded.MODULE)
        return json.loads(capsys.readouterr().out.strip().splitlines()[-1])

    for name in ("ENDPOINT", "TOKEN", "CA_CERT", "CLIENT_CERT", "CLIENT_KEY", "VALIDATE_CERTS"):
        monkeypatch.delenv(f"MAGNETAR_{name}", raising=False)
    return run


@pytest.fixture
def disk(tmp_path):
    """A raw image of 3 MiB."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as stream:
        stream.truncate(3 << 20)
    return path


@pytest.fixture
def world(module, disk):
    """A flavor, an image, a network and a keypair to make servers with."""
    module("flavor", name="small", vcpus=1, ram=128)
    module("image", name="img", filename=str(disk), disk_format="raw")
    module("network", name="lan", cidr="192.168.99.0/24")
    module("keypair", name="me", public_key=KEY)
    module("volume", name="data", size=1)
    return module


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"
