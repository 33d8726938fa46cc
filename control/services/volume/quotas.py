# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of volumes, snapshots and gigabytes."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, Table, delete, func, select

from magnetar_control.store.quotas import DEFAULT, found, put, turn
from magnetar_control.store.tables import quotas
from magnetar_core.errors import TooLarge

from .tables import snapshots, volumes

#: Limits of a project where the table ``quotas`` has none; Cinder's defaults.
LIMITS = {"volumes": 10, "gigabytes": 1000, "snapshots": 10}


def limits(connection: Connection, project_id: str) -> dict[str, int]:
    """Limits of a project; -1 for none."""
    stored = found(connection, (DEFAULT, project_id))
    of_both = {**stored.get(DEFAULT, {}), **stored.get(project_id, {})}
    return {resource: of_both.get(resource, usual) for resource, usual in LIMITS.items()}


def set_limits(connection: Connection, project_id: str, given: Mapping[str, int | None]) -> None:
    """Set limits of a project; ``None`` is the usual one again."""
    connection.execute(delete(quotas).where(quotas.c.project_id == project_id, quotas.c.resource.in_(given)))
    put(connection, project_id, {resource: number for resource, number in given.items() if number is not None})


def usage(connection: Connection, project_id: str) -> dict[str, int]:
    """What a project has; snapshots count as gigabytes too, as in Cinder."""
    def of(table: Table) -> tuple[int, int]:
        count, size = connection.execute(select(func.count(), func.coalesce(func.sum(table.c.size), 0))
                                         .select_from(table).where(table.c.project_id == project_id)).one()
        return int(count), int(size)

    (count, size), (taken, taken_size) = of(volumes), of(snapshots)
    return {"volumes": count, "gigabytes": size + taken_size, "snapshots": taken}


def within(connection: Connection, project_id: str, **more: int) -> None:
    """Raises ``TooLarge`` (Cinder's over-quota status) where *more* is beyond a limit. What it finds stays true until
    the transaction ends: who wants more in the same project waits."""
    most = limits(connection, project_id)
    if all(most[resource] < 0 for resource in more):
        return
    turn(connection, project_id)
    have = usage(connection, project_id)
    for resource, number in more.items():
        if most[resource] >= 0 and number > 0 and have[resource] + number > most[resource]:
            raise TooLarge(f"Quota exceeded for {resource}: the project has {have[resource]}, asked for {number} "
                           f"more, and may have {most[resource]}.")
