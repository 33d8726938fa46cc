# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user asks of a cloud that keeps deleted servers for a while."""

from __future__ import annotations

from typing import Any

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import servers
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import row
from tests.unit.control.shelve.shelving import ENGINES, Shelving

__all__ = ["ENGINES", "HOUR", "Keeping"]
#: Seconds for which servers are kept.
HOUR = 3600


class Keeping(Shelving):
    """A caller with servers that are soft-deleted."""

    def delete(self, id: str) -> dict[str, Any]:
        """Have it soft-deleted; returns the server."""
        assert self.call.delete(f"/v2.1/servers/{id}").status == 204
        found = self.call.settled(id)
        assert found and found["status"] == "SOFT_DELETED", found
        return found

    def gone(self, id: str) -> None:
        """Wait until the server is not there any more."""
        eventually(lambda: self.call.get(f"/v2.1/servers/{id}").status == 404)

    def age(self, id: str, seconds: float) -> None:
        """It was soft-deleted so long ago."""
        with self.cloud.parts.working.database.write() as connection:
            servers.update_server_row(connection, id, soft_deleted_at=utc_now(-seconds))

    def clear(self) -> None:
        """Delete all for good."""
        for query in ("", "?status=SOFT_DELETED"):
            for one in self.call.get(f"/v2.1/servers{query}").json["servers"]:
                self.call.act(one["id"], "forceDelete")
                self.gone(one["id"])
        super().clear()

    def state_of(self, id: str) -> tuple[Any, ...]:
        """vm_state, task_state, and whether it says since when it is soft-deleted."""
        found = row(self.cloud, id)
        return found.vm_state, found.task_state, bool(found.soft_deleted_at)
