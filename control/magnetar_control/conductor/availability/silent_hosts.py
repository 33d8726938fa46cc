# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of a cell that are silent, and whether the conductors still hear enough hosts to judge that."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.hosts import incidents

#: Time after a heartbeat until which a host's row may be changed by what the heartbeat reported.
REPORTED = timedelta(seconds=30)


class CellSilence(NamedTuple):
    """The silence in a cell. *silent*: hosts without a heartbeat for ``availability_silence`` seconds. *watched*: the
    number of hosts that count: their compute service is enabled and not forced down, and they were heard since their
    row was last changed. So a host that was enabled or unfenced has the time to boot."""

    silent: frozenset[str]
    watched: int

    @property
    def has_quorum(self) -> bool:
        """Whether more than half of the hosts are heard. Otherwise the fault is rather this side of the network."""
        return not self.silent or 2 * len(self.silent) < self.watched


def read_cell_silence(conductor: Conductor) -> CellSilence:
    """Return which hosts of the conductor's cell are silent."""
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
    """Return whether the change of a host's row preceded its last heartbeat, or was caused by it."""
    return changed_at < (datetime.fromisoformat(heard_at) + REPORTED).isoformat(timespec="microseconds")
