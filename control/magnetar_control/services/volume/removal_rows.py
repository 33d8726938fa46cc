# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the table ``host_removals`` for volumes: what hosts must still remove, by the agents' names for the kinds of
objects."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from magnetar_control.store.engine.tables import host_removals as removals

#: A volume with its content, the export of a volume to another host, and an agent's record of a volume whose content
#: stays. Removals of a host are done in the order of the alphabet: a volume is forgotten after its exports are removed.
VOLUME, EXPORT, RECORD = "volume", "volume_export", "volume_record"


def has_due_removal(connection: Connection, host: str, volume_id: str,
                    nouns: Collection[str] = (VOLUME, RECORD)) -> bool:
    """Return whether the removal of the volume from the agent on *host* is still queued; until it is done, *host* must
    not become the volume's host again. *nouns*: the resource types to look for: ``VOLUME`` is the volume with its
    content, ``RECORD`` only the agent's entry."""
    return connection.execute(select(removals.c.key).where(
        removals.c.host == host, removals.c.noun.in_(nouns), removals.c.key == volume_id, removals.c.due)
        .limit(1)).first() is not None
