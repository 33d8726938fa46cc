# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user asks of a cloud about shelved servers, and whether rows, claims, services and hosts say the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from magnetar_control.store.claims import host_counters
from tests.support.control.cloud import Cloud
from tests.support.control.engines import engines
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.clouds import at, claims, row

ENGINES = engines("shelve, postgres")


class Shelving(Owner):
    """A caller with servers that are shelved."""

    def act(self, id: str, action: str, args: Any = None, version: str = "2.91") -> dict[str, Any]:
        """Have it done, to its end; returns the server."""
        reply = self.call.act(id, action, args, version)
        assert reply.status == 202, reply
        found = self.call.settled(id)
        assert found
        return found

    def images(self) -> list[dict[str, Any]]:
        """All that the project sees."""
        found: list[dict[str, Any]] = self.call.get("/image/v2/images").json["images"]
        return found

    def named(self, name: str) -> list[dict[str, Any]]:
        """The images of that name."""
        return [one for one in self.images() if one["name"] == name]

    def ports(self, id: str) -> list[tuple[str, str, str]]:
        """Address, host and state of each port of a server."""
        return [(one["fixed_ips"][0]["ip_address"], one["host"], one["port_state"])
                for one in self.cloud.services.network.ports(id)]

    def last_action(self, id: str) -> dict[str, Any]:
        """The last thing that was asked of a server, with its events."""
        first = self.call.get(f"/v2.1/servers/{id}/os-instance-actions", "2.84").json["instanceActions"][0]
        found: dict[str, Any] = self.call.get(
            f"/v2.1/servers/{id}/os-instance-actions/{first['request_id']}", "2.84").json["instanceAction"]
        return found

    def check_offloaded(self, id: str) -> dict[str, Any]:
        """It holds nothing of any host, and has its image, addresses and volumes. Returns the server."""
        server, kept = self.call.server(id), row(self.cloud, id)
        assert (server["status"], kept.vm_state, kept.task_state) == ("SHELVED_OFFLOADED", "shelved_offloaded", None)
        assert kept.host is None and kept.shelved_at
        assert (server["OS-EXT-SRV-ATTR:host"], server["OS-EXT-SRV-ATTR:hypervisor_hostname"]) == (None, None)
        assert (server["hostId"], server["host_status"], server["OS-EXT-STS:power_state"]) == ("", "", 4)
        assert at(self.cloud, id) == {} and claims(self.cloud, id) == {}
        assert {(host, state) for _address, host, state in self.ports(id)} <= {("", "DOWN")}
        assert {self.state(one["volumeId"]) for one in self.attached(id)} <= {"reserved"}
        assert [one for host in self.cloud.hosts for one in self.on_host("volume_export", host)] == []
        self.check_counters()
        return server

    def check_counters(self) -> None:
        """What hosts count is the sum of the claims; no copy of a disk is left on them."""
        with self.cloud.parts.api_database.write() as connection:
            assert host_counters.audit_host_counters(connection) == []
        assert [one["name"] for host in self.cloud.hosts for one in self.on_host("image", host)
                if one["name"].startswith("snapshot-")] == []


@contextlib.contextmanager
def settings(cloud: Cloud, **changed: Any) -> Iterator[None]:
    """The conductor has other settings meanwhile."""
    conductor = cloud.parts.working
    before, conductor.settings = conductor.settings, replace(conductor.settings, **changed)
    try:
        yield
    finally:
        conductor.settings = before
