# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of encrypted memory."""

from __future__ import annotations

from tests.unit.control.moves.inside import Inside

CLASS = "MEM_ENCRYPTION_CONTEXT"


def used(cloud: Inside) -> dict[str, tuple[int, int]]:
    """Return, by host, its inventory of the class of encrypted memory, and the claimed amount."""
    with cloud.parts.api_database.read() as connection:
        return {name: (limit, count) for name, limit, count in connection.exec_driver_sql(
            f'SELECT name, inventories."limit", used FROM inventories JOIN hosts ON hosts.id = host_id WHERE '
            f"resource_class = '{CLASS}'")}
