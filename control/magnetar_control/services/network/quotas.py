# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of networks, subnets, ports, security groups and their rules, routers, floating IPs and trunks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, func, select

from magnetar_control.services.quotas import Excess, Quotas
from magnetar_control.settings import Settings
from magnetar_core.errors import Conflict, MagnetarError

from .tables import (
    address_groups,
    address_scopes,
    floating_ips,
    networks,
    ports,
    rbac_policies,
    routers,
    security_group_rules,
    security_groups,
    subnet_pools,
    subnets,
    trunks,
)

#: Neutron's type of the error.
OVER = "OverQuota"
RESOURCES = ("network", "subnet", "port", "security_group", "security_group_rule", "rbac_policy", "subnetpool",
             "address_scope")
#: Further resources, with an engine.
OF_ENGINE = ("router", "floatingip", "address_group", "trunk")


def _counted(table: Table) -> Select[Any]:
    return select(func.count()).select_from(table).where(table.c.project_id == bindparam("project"))


#: Statements built once; each new server needs some of them.
_COUNTED = {name: _counted(table) for name, table in zip(
    (*RESOURCES, *OF_ENGINE), (networks, subnets, ports, security_groups, security_group_rules, rbac_policies,
                             subnet_pools, address_scopes, routers, floating_ips, address_groups, trunks),
    strict=True)}


def build_network_quotas(limits: Mapping[str, int], has_engine: bool = False) -> Quotas:
    """Return the quotas of the network service. *limits*: the default limits of projects, by resource; a resource that
    is missing here gets Neutron's default. *has_engine*: include the resources that need a network engine (OVN), such
    as routers."""
    usual = {**default_network_limits(Settings()), **limits}
    names = (*RESOURCES, *(OF_ENGINE if has_engine else ()))
    return Quotas("network", {name: usual[name] for name in names}, _count, _refusal)


def default_network_limits(settings: Settings) -> dict[str, int]:
    """Return the default limits of the network service in *settings*, by resource."""
    return {name: getattr(settings, f"quota_{name}s".replace("ys", "ies")) for name in (*RESOURCES, *OF_ENGINE)}


def _count(connection: Connection, project: str, names: Collection[str]) -> dict[str, int]:
    return {name: connection.execute(_COUNTED[name], {"project": project}).scalar() or 0 for name in names}


def _refusal(over: Sequence[Excess]) -> MagnetarError:
    """Return the error for a request that exceeds the limits of the resources *over*, in Neutron's words. The error
    states usage and limit of each resource."""
    have = ", ".join(f"{excess.resource}: {excess.used} of {excess.limit} are there, {excess.more} more were asked for"
                     for excess in over)
    return Conflict(
        f"Quota exceeded for resources: {sorted(excess.resource for excess in over)}. {have}. Delete what is not "
                    "needed, or ask an administrator for a larger quota.", type=OVER)
