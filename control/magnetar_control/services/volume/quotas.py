# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of volumes, snapshots and gigabytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, Table, func, select

from magnetar_control.services.quotas import Excess, Quotas
from magnetar_control.settings import Settings
from magnetar_core.errors import MagnetarError, TooLarge

from .tables import snapshots, volumes

#: ``per_volume_gigabytes`` is the largest size of a volume, and nothing is counted for it.
RESOURCES = ("volumes", "gigabytes", "snapshots", "per_volume_gigabytes")
#: Limits of what does not exist here, by resource. They are kept as they are set, and nothing is counted for them.
UNUSED = {"backups": 0, "backup_gigabytes": 0, "groups": 0}


def of(limits: Mapping[str, int]) -> Quotas:
    """With these limits of projects without their own, and Cinder's, the usual ones, for what is left out."""
    return Quotas("volume", {**defaults(Settings()), **limits, **UNUSED}, _count, _refusal)


def defaults(settings: Settings) -> dict[str, int]:
    """The limits that the settings say, by resource."""
    return {name: getattr(settings, f"quota_{name}") for name in RESOURCES}


def _count(connection: Connection, project_id: str, _names: Collection[str]) -> dict[str, int]:
    """Snapshots count as gigabytes too, as in Cinder."""
    def of(table: Table) -> tuple[int, int]:
        count, size = connection.execute(select(func.count(), func.coalesce(func.sum(table.c.size), 0))
                                         .select_from(table).where(table.c.project_id == project_id)).one()
        return int(count), int(size)

    (count, size), (taken, taken_size) = of(volumes), of(snapshots)
    return {"volumes": count, "gigabytes": size + taken_size, "snapshots": taken, "per_volume_gigabytes": 0}


def _refusal(over: Sequence[Excess]) -> MagnetarError:
    """With Cinder's status."""
    one = over[0]
    if one.resource == "per_volume_gigabytes":
        return TooLarge(f"Requested volume size {one.more}G is larger than maximum allowed limit {one.limit}G.")
    return TooLarge(f"Quota exceeded for {one.resource}: the project has {one.used}, asked for {one.more} more, and "
                    f"may have {one.limit}.")
