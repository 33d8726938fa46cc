# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud that playbooks/site.yml makes on hosts in containers, and OpenStack's clients on the controller."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from tests.support.lab.clients import Clients

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.lab.bare import Site

SETTINGS = {"quota_instances": 50, "heartbeat": 1.0, "host_down_after": 10.0, "cell_timeout": 8.0}
#: A guest is often asked to power off before it has booted, when it cannot hear that yet.
AGENTS = {"virt_type": "qemu", "shutdown_timeout": 5, "spice": True}


class Cloud(Clients):
    """The site, and OpenStack's clients on the controller."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.folder / "magnetar-pki/clouds.yaml", site.folder)
        self.site, self.hosts = site, site.hosts

    def until(self, ready: Callable[[], object], what: str, limit: float = 240.0) -> None:
        """Wait until *ready* returns a true value. *what*: the expected event, for the error."""
        end = time.monotonic() + limit
        while not ready():
            assert time.monotonic() < end, f"{what}: {self.said()}"
            time.sleep(0.5)

    def said(self) -> str:
        """Return the last lines in the logs of the services."""
        return "\n".join(host.run(["journalctl", "-n", "30", "-o", "cat", "-u", "magnetar-*"], check=False).stdout
                         for host in self.hosts.values())

    def play(self, text: str, *words: str, good: bool = True) -> str:
        """Run a playbook with this text."""
        path = self.site.folder / f"book{words[-1] if words else ''}.yml"
        path.write_text(text)
        return self.site.play(path, *words, good=good)

    def release(self, host: str) -> str:
        """Return the release of the control plane that is active on a host."""
        return self.hosts[host].run(["readlink", "/opt/magnetar-control/bin"]).stdout


def changes(said: str) -> dict[str, int]:
    """Return the number of changed tasks by host, from the recap in a playbook's output."""
    return {name: int(count) for name, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)}
