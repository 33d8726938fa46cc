# SPDX-License-Identifier: GPL-3.0-or-later
"""An administrator of a cloud whose hosts die, and what tests look at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from magnetar_control.compute.availability.incidents import close_incident
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import Cloud
from magnetar_control.conductor.availability.incident_work import work_on_incidents
from magnetar_control.conductor.hosts import watch_loop
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.services import Context
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import incidents
from tests.support.fence_agent import FakeFenceAgent
from tests.support.waiting import eventually
from tests.unit.control.evacuate.evacuating import LONG_AGO, Evacuating
from tests.unit.control.moves.clouds import flavors, row
from tests.unit.control.moves.inside import Inside

HOSTS = ("kvm1", "kvm2", "kvm3", "kvm4")


@contextlib.contextmanager
def four_hosts(agent: FakeFenceAgent, **more: Any) -> Iterator[Inside]:
    """A cloud whose hosts have power devices. Its conductor looks for dead ones only when a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_loop, "LONGEST", 1.0)  # hosts return soon
        with Inside(hosts=len(HOSTS), host_down_after=600.0, fence_tries=1, availability_enabled=True,
                    availability_silence=600.0, notification_log="-", **agent.settings(*HOSTS), **more) as found:
            flavors(found)
            found.parts.working.settling = lambda: False  # type: ignore[method-assign, union-attr]
            yield found


class DyingHosts(Evacuating):
    """Hosts are silent after 600 seconds, so only those that a test lets die."""

    def __init__(self, cloud: Inside) -> None:
        super().__init__(cloud)
        self.dead: set[str] = set()

    def dies(self, host: str) -> None:
        """The agent of the host was heard 700 seconds ago for the last time."""
        self.down(host)
        self.be_silent(host)
        self.dead.add(host)

    def come_back(self, name: str) -> None:
        self.dead.discard(name)
        super().come_back(name)

    def be_silent(self, host: str, seconds: float = 700.0) -> None:
        """The host was heard that many seconds ago for the last time, after the last change of its row."""
        with self.cloud.parts.working.database.write() as connection:
            connection.execute(update(tables.host_states).where(tables.host_states.c.host == host).values(
                seen_at=utc_now(-seconds)))
        with self.cloud.parts.api_database.write() as connection:
            connection.execute(update(tables.hosts).where(tables.hosts.c.name == host).values(updated_at=LONG_AGO))

    def stay_silent(self) -> None:
        """On a slow machine, the last heartbeat of a host may be written after its death."""
        with self.cloud.parts.working.database.write() as connection:
            connection.execute(update(tables.host_states).where(
                tables.host_states.c.host.in_(self.dead), tables.host_states.c.seen_at > utc_now(-600)).values(
                seen_at=utc_now(-700)))

    def look(self) -> None:
        """A conductor looks at the hosts and incidents once."""
        self.stay_silent()
        work_on_incidents(self.cloud.parts.working)

    def until(self, state: str, host: str | None) -> dict[str, Any]:
        """Look until the last incident of the host is in that state; returns it as the API shows it."""
        def is_there() -> dict[str, Any] | None:
            self.look()
            found = self.incident(host)
            return found if found["state"] == state else None

        found: dict[str, Any] = eventually(is_there, pause=0.05)
        return found

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents, newest first."""
        reply = self.call.get("/v1/incident")
        assert reply.status == 200, reply
        found: list[dict[str, Any]] = reply.json["incidents"]
        return found

    def incident(self, host: str | None) -> dict[str, Any]:
        """The last incident of the host; of the cell for ``None``."""
        found = [incident for incident in self.incidents() if incident["host"] == host]
        return found[0]

    def states(self, host: str) -> dict[str, tuple[str, str | None]]:
        """By name, the state of each server in the host's last incident, and its new host."""
        return {server["name"]: (server["state"], server["to"]) for server in self.incident(host)["servers"]}

    def boot(self, host: str, name: str, **more: Any) -> str:
        """Create a server on the host; its uuid."""
        found: str = self.server(flavorRef=more.pop("flavorRef", "small"), availability_zone=f"nova:{host}", name=name,
                                 **more)["id"]
        assert row(self.cloud, found).host == host
        return found

    def evacuations(self, id: str) -> int:
        """How often the server was evacuated."""
        actions = self.call.get(f"/v2.1/servers/{id}/os-instance-actions").json["instanceActions"]
        return sum(action["action"] == "evacuate" for action in actions)

    def runs_elsewhere(self, id: str) -> bool:
        """Whether the server runs on another host than kvm1, after one evacuation."""
        host = row(self.cloud, id).host
        return host != "kvm1" and self.has(host, id)["power_state"] == "running" and self.evacuations(id) == 1

    def order(self) -> list[str]:
        """The names of the servers with a queued or ended evacuation, in the order in which it was queued."""
        with self.cloud.parts.working.database.read() as connection:
            return list(connection.execute(select(tables.servers.c.name).join_from(
                tables.actions, tables.servers, tables.servers.c.id == tables.actions.c.server_id).where(
                tables.actions.c.action == "evacuate").order_by(tables.actions.c.id)).scalars())

    def forget(self) -> None:
        """Remove all incidents, end all fencings, and bring all hosts back."""
        with self.cloud.parts.working.database.write() as connection:
            for table in (tables.incident_servers, tables.incidents):
                connection.execute(delete(table))
        fencing = HostFencing(self.cloud.parts.store, self.cloud.parts.settings)
        for status in fencing.host_statuses():
            if status.fencing and status.fencing.holds_host:
                eventually(lambda host=status.host: not self.is_evacuating(host))
                fencing.unfence_host(status.host, "the end of the test")
        for host in self.stopped & set(self.cloud.hosts):
            self.up(host)

    def is_evacuating(self, host: str) -> bool:
        """Whether an evacuation from the host is open."""
        with self.cloud.parts.working.database.read() as connection:
            return connection.execute(select(tables.migrations.c.uuid).where(
                tables.migrations.c.source == host, tables.migrations.c.type == "evacuation",
                tables.migrations.c.status.in_(("accepted", "pre-migrating")))).first() is not None

    def opened(self) -> list[Any]:
        """The rows of open incidents."""
        with self.cloud.parts.working.database.read() as connection:
            return list(incidents.fetch_open_incidents(connection))

    def close(self, id: str) -> None:
        """Close an incident as an operator."""
        close_incident.function(self.operator(), id)

    def operator(self) -> Caller:
        """The caller of the command line."""
        parts = self.cloud.parts
        cloud = Cloud(parts.settings, parts.store, self.cloud.services, parts.agents, parts.hosts)
        return Caller(cloud, Context("", None, frozenset({"admin"})), "req-test")
