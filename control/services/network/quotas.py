# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of networks, subnets, ports, security groups and their rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, func, select

from magnetar_control.services.quotas import Excess, Quotas
from magnetar_core.errors import Conflict, MagnetarError

from .tables import networks, ports, security_group_rules, security_groups, subnets

#: Neutron's type of the error.
OVER = "OverQuota"
#: Neutron's defaults.
DEFAULTS = {"network": 100, "subnet": 500, "port": 500, "security_group": 10, "security_group_rule": 100}


def _counted(table: Table) -> Select[Any]:
    return select(func.count()).select_from(table).where(table.c.project_id == bindparam("project"))


#: Statements that each new server needs among them, made once.
_COUNTED = {name: _counted(table) for name, table in zip(
    DEFAULTS, (networks, subnets, ports, security_groups, security_group_rules), strict=True)}


def of(defaults: Mapping[str, int]) -> Quotas:
    """With these limits of projects without their own, and Neutron's for what is left out."""
    return Quotas("network", {**DEFAULTS, **defaults}, _count, _refusal)


def _count(connection: Connection, project: str, names: Collection[str]) -> dict[str, int]:
    return {name: connection.execute(_COUNTED[name], {"project": project}).scalar() or 0 for name in names}


def _refusal(over: Sequence[Excess]) -> MagnetarError:
    """In Neutron's words, with how it comes."""
    have = ", ".join(f"{one.resource}: {one.used} of {one.limit} are there, {one.more} more were asked for"
                     for one in over)
    return Conflict(f"Quota exceeded for resources: {sorted(one.resource for one in over)}. {have}. Delete what is not "
                    "needed, or ask an administrator for a larger quota.", type=OVER)
