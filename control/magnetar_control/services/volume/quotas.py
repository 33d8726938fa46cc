# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of volumes, snapshots, backups and gigabytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, Table, func, select

from magnetar_control.services.quotas import Excess, Quotas
from magnetar_control.settings import Settings
from magnetar_core.errors import MagnetarError, TooLarge

from .tables import backups, snapshots, volumes

#: ``per_volume_gigabytes`` is the largest size of a volume. Nothing is counted for this limit.
RESOURCES = ("volumes", "gigabytes", "snapshots", "backups", "backup_gigabytes", "per_volume_gigabytes")
#: Limits of resources that do not exist here. They are stored as set, and nothing is counted for them.
UNUSED = {"groups": 0}


def build_volume_quotas(limits: Mapping[str, int]) -> Quotas:
    """Return the quotas of the volume service. *limits*: the default limits of projects, by resource; a resource that
    is missing here gets Cinder's default."""
    return Quotas("volume", {**default_volume_limits(Settings()), **limits, **UNUSED}, _count, _refusal)


def default_volume_limits(settings: Settings) -> dict[str, int]:
    """Return the default limits of the volume service in *settings*, by resource."""
    return {name: getattr(settings, f"quota_{name}") for name in RESOURCES}


def _count(connection: Connection, project_id: str, names: Collection[str]) -> dict[str, int]:
    """Return a project's usage of the resources *names*. As in Cinder, gigabytes include the sizes of snapshots.
    backup_gigabytes are the sizes of the backed-up volumes."""
    def of(table: Table) -> tuple[int, int]:
        count, size = connection.execute(select(func.count(), func.coalesce(func.sum(table.c.size), 0))
                                         .select_from(table).where(table.c.project_id == project_id)).one()
        return int(count), int(size)

    used = {"per_volume_gigabytes": 0}
    if {"backups", "backup_gigabytes"} & set(names):
        used["backups"], used["backup_gigabytes"] = of(backups)
    if {"volumes", "gigabytes", "snapshots"} & set(names):
        (count, size), (taken, taken_size) = of(volumes), of(snapshots)
        used |= {"volumes": count, "gigabytes": size + taken_size, "snapshots": taken}
    return used


def _refusal(over: Sequence[Excess]) -> MagnetarError:
    """Return the error for a request that exceeds the limits of the resources *over*: the error names the first of
    these resources, and has the HTTP status of Cinder's error."""
    excess = over[0]
    if excess.resource == "per_volume_gigabytes":
        return TooLarge(f"Requested volume size {excess.more}G is larger than maximum allowed limit {excess.limit}G.")
    return TooLarge(
        f"Quota exceeded for {excess.resource}: the project has {excess.used}, asked for {excess.more} more, and "
                    f"may have {excess.limit}.")
