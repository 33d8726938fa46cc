# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests for drains of hosts, and what tests look at."""

from __future__ import annotations

from typing import Any

from magnetar_control.store.engine import tables
from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import claims, row


class Draining:
    """An administrator of *cloud* who drains hosts."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.admin = cloud, cloud.admin

    def put(self, host: str, state: str = "maintenance", *, query: str = "?wait=60", **fields: Any) -> Any:
        """Ask for a state of the host; the reply."""
        return self.admin.put(f"/v1/host_maintenance/{host}{query}", {"state": state, **fields})

    def shown(self, host: str) -> dict[str, Any]:
        """The maintenance of the host."""
        reply = self.admin.get(f"/v1/host_maintenance/{host}")
        assert reply.status == 200, reply
        found: dict[str, Any] = reply.json
        return found

    def drained(self, host: str, **fields: Any) -> dict[str, Any]:
        """Drain the host; its maintenance when nothing is left to do."""
        reply = self.put(host, query="?wait=0", **fields)
        assert reply.status in (200, 202), reply
        if reply.status == 202:
            operation = f"/v1/operations/{reply.json['operation']['id']}"
            eventually(lambda: self.admin.get(operation).json["status"] != "running", pause=0.2)
            assert self.admin.get(operation).json["status"] == "succeeded", self.admin.get(operation)
        found = self.shown(host)
        assert found["drain"] == "drained", found
        return found

    def enabled(self, host: str) -> None:
        """End the drain of the host, and wait until it is forgotten."""
        assert self.put(host, "enabled").status == 200
        eventually(lambda: self.shown(host)["drain"] is None, pause=0.2)

    def boot(self, host: str, **more: Any) -> str:
        """Create a server on the host; its uuid."""
        found: str = self.admin.boot(flavorRef="small", availability_zone=f"nova:{host}", **more)["id"]
        assert row(self.cloud, found).host == host
        return found

    def act(self, id: str, action: str, args: Any = None) -> dict[str, Any] | None:
        """Do an action on a server, and wait for its end."""
        reply = self.admin.act(id, action, args)
        assert reply.status in (200, 202), reply
        return self.admin.settled(id)

    def actions(self, id: str) -> list[str]:
        """The actions in the server's log, oldest first."""
        found = self.admin.get(f"/v2.1/servers/{id}/os-instance-actions").json["instanceActions"]
        return [action["action"] for action in reversed(found)]

    def left(self, host: str) -> list[Any]:
        """The rows of results of the host's drain."""
        with self.cloud.parts.working.database.read() as connection:
            return list(connection.execute(tables.drained_servers.select().where(
                tables.drained_servers.c.host == host)))

    def claimed_on(self, id: str) -> list[str]:
        """The hosts with claims of the server."""
        return sorted(host for host, _amounts in claims(self.cloud, id).values())
