# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent on a fake host, and short words for what tests ask of it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.agent import Agent
from magnetar_agent.api import batch
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.reconcile import events, reconcile
from magnetar_agent.settings import AgentSettings
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Conflict
from magnetar_core.kinds import BY_NOUN
from magnetar_core.kinds.server import block_device_destination
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from tests.support.agent.pair import Pair
from tests.support.file_modes import exposed
from tests.support.ports import free_port

SMALL = {"vcpus": 1, "ram": 64}


class Host:
    """A fake host with its agent; ``restart`` is a new agent over the same state, as after ``kill -9``."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root, self.settings = root, settings
        (root / "libvirt").mkdir(parents=True)
        self.fake = FakeHypervisor(root / "libvirt")
        self.agent = self._agent()

    def _agent(self) -> Agent:
        return Agent(AgentSettings(state_dir=self.root / "state", image_paths=(self.root,), shutdown_timeout=0.2,
                                   grace=0.1, parallel=4, **self.settings), self.fake)

    def start(self) -> None:
        """Start the agent and wait until it has put things right, in the background too."""
        self.agent.start()
        assert self.agent.power_sync.settled.wait(120)
        for operation in self.agent.host.operations.list():
            assert operation.kind == "migration" or operation.wait(120)

    def goes_down(self) -> None:
        """The host ends, the agent first: a moment later it would see guests that somebody stopped."""
        self.agent.close()
        self.fake.host_reboots()

    def reboot(self) -> None:
        """The host is restarted."""
        self.goes_down()
        (self.root / "state/boot_id").write_text("another")
        self.restart()

    def restart(self) -> None:
        """A new process: nothing is left of the old one but what it wrote."""
        self.agent.close()
        self.fake = FakeHypervisor(self.root / "libvirt")
        self.agent = self._agent()
        self.start()

    def said(self, noun: str, key: str, want: dict[str, Any] | None) -> dict[str, Any] | None:
        """*want*; a new server has a blank root disk where a test does not say what it boots from."""
        if noun != "server" or not want or self.agent.host.documents.find(noun, key) is not None:
            return want
        blocks = [one for one in want.get("block_device_mapping", ()) if "source_type" in one]
        boots = any(one.get("boot_index") == 0 and block_device_destination(one) == "volume" for one in blocks)
        return want if boots or "image" in want else {**want, "image": None}

    def ensure(self, noun: str, key: str, want: dict[str, Any] | None, dry_run: bool = False, **allowed: Any) -> Result:
        """One ensure."""
        return reconcile.ensure_resource(self.agent.drivers, BY_NOUN[noun], key, self.said(noun, key, want),
                                         check_permissions(allowed), dry_run, Operation("test"))

    def event(self, what: str, request: str, key: str = "web1", /, operation: Operation | None = None,
              **args: Any) -> dict[str, Any]:
        """A one-shot."""
        return events.perform_event(self.agent.drivers, BY_NOUN["server"], key, what, args, request,
                                    operation or Operation("test"))

    def many(self, noun: str, items: list[tuple[str, dict[str, Any] | None]],
             dry_run: bool = False) -> list[dict[str, Any]]:
        """A batch."""
        asked = [(key, self.said(noun, key, want), check_permissions({})) for key, want in items]
        return batch.ensure_many(self.agent.drivers, BY_NOUN[noun], asked, dry_run, Operation("test"))

    def server(self, name: str = "web1", **want: Any) -> Result:
        """Ensure a small server."""
        return self.ensure("server", name, {"flavor": SMALL, **want})

    def show(self, name: str = "web1") -> dict[str, Any]:
        """The server as a reader sees it."""
        return reconcile.show_resource(self.agent.drivers, BY_NOUN["server"], name)

    def settled(self) -> None:
        """Wait until the follower has taken all events so far."""
        import time

        deadline = time.monotonic() + 120
        while not self.agent.power_sync.idle() and time.monotonic() < deadline:
            time.sleep(0.005)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A fresh fake host with a started agent."""
    found = Host(tmp_path)
    found.start()
    yield found
    found.agent.close()
    assert exposed(tmp_path / "state") == [], "the host's other users could read these"


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two hosts in a folder with a short name, as unix sockets need it."""
    root = Path(tempfile.mkdtemp(prefix="mag"))
    found = Pair(root, (free_port(), free_port()))
    yield found
    found.close()


ENDS: list[int] = []


def pytest_sessionfinish(exitstatus: int) -> None:
    """What the run is to end with."""
    ENDS.append(int(exitstatus))


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """An agent that died in a test leaves threads that wait for ever, as a process's end would have ended them: Python
    would wait for them, too."""
    if threading.active_count() > 1 and ENDS and not hasattr(config, "workerinput"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ENDS[-1])


def made_at_once(host: Host, want: dict[str, Any], many: int) -> list[bool]:
    """Have *many* servers of the same fields, web0 and so on, made at once; which of them were made."""
    def make(at: int) -> bool:
        try:
            host.ensure("server", f"web{at}", want)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(many) as threads:
        return list(threads.map(make, range(many)))
