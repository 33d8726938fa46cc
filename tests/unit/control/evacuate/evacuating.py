# SPDX-License-Identifier: GPL-3.0-or-later
"""What an administrator does about hosts that are dead, in a cloud whose agents are in this process."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select, update

from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import hosts
from tests.support.control.cloud import Caller
from tests.support.control.engines import engines
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.clouds import at, claims, moves, row
from tests.unit.control.moves.inside import Inside

ENGINES = engines("evacuate, postgres")
LONG_AGO = "2026-01-01T00:00:00.000000"


class Evacuating(Owner):
    """The administrator of a cloud whose ``host_down_after`` is so long that a host is down only when it is said here,
    however slow the machine is."""

    cloud: Inside

    def __init__(self, cloud: Inside, caller: Caller | None = None) -> None:
        super().__init__(cloud, caller)
        self.stopped: set[str] = set()  # hosts whose agents do not run

    def down(self, name: str) -> None:
        """The agent of a host does not answer, and everybody knows."""
        self.stopped.add(name)
        self.cloud.kvm[name].stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("magnetar_core.http.client.RETRY_FOR", 0.2)  # the watcher says it at once
            eventually(lambda: self.state_of(name).problem)
        with self.cloud.parts.working.database.write() as connection:
            connection.execute(update(tables.host_states).where(tables.host_states.c.host == name).values(
                seen_at=LONG_AGO))
        self.cloud.parts.working.states.up(name, up=False)

    def up(self, name: str) -> None:
        """It does again, and counts as up."""
        self.come_back(name)
        began, deadline = utc_now(), time.monotonic() + 180
        while not self.heard(name, began):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.cloud.parts.working.states.up(name, up=True)

    def come_back(self, name: str) -> None:
        """The agent runs again."""
        self.stopped.discard(name)
        self.cloud.kvm[name].start()

    def state_of(self, name: str) -> Any:
        """What its watcher notes of a host."""
        with self.cloud.parts.working.database.read() as connection:
            return connection.execute(select(tables.host_states).where(tables.host_states.c.host == name)).one()

    def heard(self, name: str, since: str) -> bool:
        """Whether the host has counted as up since then."""
        return (self.state_of(name).seen_at or "") > since

    def boots(self, name: str) -> None:
        """A host that is down was without power: its guests are off, and its next start is another boot."""
        kvm = self.cloud.kvm[name]
        for domain in kvm.fake.domains():
            kvm.fake.destroy(domain)
        (kvm.agent.host.settings.state_dir / "boot_id").write_text("another")

    def force_down(self, name: str, forced: bool = True) -> Any:
        """Say that a host is dead, or that it is not."""
        return self.call.call("PUT", "/v2.1/os-services/force-down", {
            "host": name, "binary": "nova-compute", "forced_down": forced}, "2.11")

    def evacuate(self, id: str, version: str = "2.95", **body: Any) -> Any:
        """Ask for it; returns the answer."""
        return self.call.act(id, "evacuate", body, version)

    def evacuated(self, id: str, version: str = "2.94", **body: Any) -> dict[str, Any]:
        """Have it done, to its end; returns the server."""
        reply = self.evacuate(id, version, **body)
        assert reply.status == 200, reply
        found = self.call.settled(id)
        assert found
        return found

    def has(self, host: str, id: str) -> dict[str, Any]:
        """The server as its host shows it."""
        with self.cloud.parts.agents.client(self.cloud.hosts[host]) as client:
            return dict(client.get("server", id))

    def statuses(self, id: str) -> list[tuple[str, str, str | None, str]]:
        """Type, source, target and status of the server's migrations."""
        return [(one.type, one.source, one.target, one.status) for one in moves(self.cloud, id)]

    def limits(self, name: str) -> Any:
        """The row of a host."""
        with self.cloud.parts.api_database.read() as connection:
            return hosts.fetch_host_row(connection, name)

    def clean(self, id: str, host: str) -> None:
        """The server is whole on *host*, nothing else has anything of it, and its migrations have ended."""
        eventually(lambda: list(at(self.cloud, id)) == [host])
        eventually(lambda: claims(self.cloud, id).keys() == {"server"})
        assert row(self.cloud, id).host == host
        over = {"completed", "confirmed", "error", "failed"}
        eventually(lambda: {one.status for one in moves(self.cloud, id)} <= over)
        for name, kvm in self.cloud.kvm.items():
            assert (kvm.fake.domain(id) is not None) is (name == host), name
            assert not kvm.knows(id) or name == host
            assert kvm.side().host["orphans"] == {"domains": [], "files": []}
