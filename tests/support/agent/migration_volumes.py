# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of migration volumes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from magnetar_agent.volumes import exports
from magnetar_agent.volumes.attaching import attachment_id
from magnetar_core.flows.attach import attach_remote_volume
from magnetar_core.flows.migrate import Migrate
from tests.support.agent.export import behind
from tests.support.agent.pair import Kvm, Pair


class Trio:
    """Three hosts, and a running server web1 on the first. It has the volume ``own`` of that host and ``far`` of the
    third."""

    def __init__(self, pair: Pair, third: Kvm) -> None:
        self.pair, self.one, self.two, self.three = pair, pair.one, pair.two, third
        self.server = pair.make()
        self.own = self.volume(self.one, "own", readonly=False)
        self.far = self.volume(third, "far")

    def volume(self, host: Kvm, name: str, **want: Any) -> str:
        """Create a volume on *host*, attach it to web1, and return its uuid."""
        made = host.side().client.ensure("volume", name, {"size": 1})["resource"]["id"]
        attach_remote_volume(self.one.side(), host.side(), "web1", name, want)
        return str(made)

    def go(self, here: Kvm, there: Kvm, **wish: Any) -> list[str]:
        """Migrate the server, and return the verbs of the steps."""
        return [step.verb for step in Migrate(here.side(), there.side(), "web1", wish).steps()]

    def restart(self) -> None:
        """Kill all agents with their volume exports, and start the agents again."""
        hosts = (self.one, self.two, self.three)
        for host in hosts:
            host.die()
            host.fake.close_exports()
        with ThreadPoolExecutor() as threads:
            list(threads.map(Kvm.start, hosts))
        deadline = time.monotonic() + 120
        while any(host.agent.host.operations.running() for host in hosts) and time.monotonic() < deadline:
            time.sleep(0.01)

    def rests(self, at: Kvm) -> bool:
        """Let each agent check its remote volumes, which repeats failed steps; then return whether the exports allow
        only the host *at*."""
        for host in (self.one, self.two, self.three):
            host.agent.remote_volumes.retry_pending()
        return all(one.want["peers"] == [at.name] for host in (self.one, self.two, self.three)
                   for one in host.agent.host.documents.list("volume_export"))

    def check(self, at: Kvm, runs: bool = True) -> None:
        """Check that the server is only on *at*, is attached to both volumes, and that no other host can reach them."""
        hosts = (self.one, self.two, self.three)
        assert [host.knows(self.server) for host in hosts] == [host is at for host in hosts]
        assert at.runs(self.server) is runs
        for volume, home in ((self.own, self.one), (self.far, self.three)):
            id = attachment_id(self.server, volume)
            assert [bool(host.agent.host.documents.get("volume_attachment", id)) for host in hosts] == \
                [host is at for host in hosts]
            found = at.side().client.get("volume_attachment", id)
            assert found["status"] == "attached" and found["fault"] is None
            given = [host.agent.host.documents.get("volume_export", id) for host in hosts]
            if at is home and given[hosts.index(home)] is None:
                assert not any(given) and behind_is_closed(home, id)
                continue
            assert [bool(one) for one in given] == [host is home for host in hosts]
            export = given[hosts.index(home)]
            assert export and export.want["peers"] == [at.name] and not export.state
            assert behind(at, id) == f"{volume} disk"
            for host in hosts:
                assert host in (at, home) or behind_is_closed(host, id)
            assert home.side().client.get("volume", volume)["status"] == "in-use"


def behind_is_closed(host: Kvm, id: str) -> bool:
    """Return whether the host has no remains of the export *id*."""
    return not exports.export_folder(host.agent.host, id).exists()
