# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a cell that send no heartbeats, and the check whether the conductors receive enough heartbeats to judge
them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.hosts import incidents

#: Time after a heartbeat until which a host's row may be changed by what the heartbeat reported.
REPORTED = timedelta(seconds=30)


class CellSilence(NamedTuple):
    """The hosts of a cell that have stopped sending heartbeats. *silent*: names of the hosts without a heartbeat for
    ``availability_silence`` seconds. *watched*: the number of monitored hosts; 0 if none is silent.

    A host is monitored if its compute service is enabled and not forced down, and it has sent a heartbeat after the
    last change of its row. The condition about the heartbeat gives a host that was just enabled or unfenced time to
    boot.
    """

    silent: frozenset[str]
    watched: int

    @property
    def has_quorum(self) -> bool:
        """Whether more than half of the monitored hosts send heartbeats. If not, the network of the control plane is
        more likely to have failed than the hosts."""
        return not self.silent or 2 * len(self.silent) < self.watched


def read_cell_silence(conductor: Conductor) -> CellSilence:
    """Return which hosts of the conductor's cell have stopped sending heartbeats, and how many hosts are monitored."""
    database = conductor.database
    with database.read() as connection:
        silent = incidents.fetch_silent_hosts(database, connection, conductor.settings.availability_silence)
        heard_at = incidents.fetch_last_heartbeats(connection) if silent else {}
    if not silent:
        return CellSilence(frozenset(), 0)
    with conductor.store.api.read() as connection:
        changed_at = incidents.fetch_watched_hosts(connection, conductor.cell.id)
    watched = {name for name, moment in changed_at.items() if name in heard_at and _precedes(moment, heard_at[name])}
    return CellSilence(frozenset(silent & watched), len(watched))


def _precedes(changed_at: str, heard_at: str) -> bool:
    """Return whether a host has sent a heartbeat after its row was last changed. If it has not, missing heartbeats do
    not mean that the host has failed. *changed_at*, *heard_at*: the times of the change and of the last heartbeat. A
    change up to ``REPORTED`` seconds after the heartbeat also counts as earlier, because the heartbeat itself may have
    caused the change."""
    return changed_at < (datetime.fromisoformat(heard_at) + REPORTED).isoformat(timespec="microseconds")
