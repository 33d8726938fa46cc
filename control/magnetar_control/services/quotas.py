# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of the embedded services: a project's limit of each resource, and its usage, counted when the project requests
more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from magnetar_control.store.accounts import quotas
from magnetar_control.store.accounts.quotas import DEFAULT, Limits
from magnetar_core.errors import MagnetarError

#: Returns the project's usage of the named resources.
Count = Callable[[Connection, str, Collection[str]], Mapping[str, int]]


class Excess(NamedTuple):
    """A request for more of a resource than the quota allows: the present usage, the requested amount, and the
    limit."""

    resource: str
    used: int
    more: int
    limit: int


class Quotas:
    """The quotas of one *service*. *defaults*: the limits of projects without their own, by resource. *count*: returns
    the usage. *refusal*: returns the service's error for a request that exceeds the quota."""

    def __init__(self, service: str, defaults: Mapping[str, int], count: Count,
                 refusal: Callable[[Sequence[Excess]], MagnetarError]) -> None:
        self.service, self.defaults, self.count, self.refusal = service, dict(defaults), count, refusal

    def limits(self, connection: Connection, project: str = DEFAULT) -> Limits:
        """Return the limits of a project; without *project*, the default limits."""
        return quotas.fetch_effective_limits(connection, self.defaults, project, DEFAULT)

    def merged(self, configured: Mapping[str, Mapping[str, int]], project: str) -> Limits:
        """Return the limits of *project*. *configured*: the limits that are set, by project and resource, as
        ``store.accounts.quotas.fetch_quota_limits`` returns them."""
        return quotas.merge_quota_limits(self.defaults, configured, project, DEFAULT)

    def used(self, connection: Connection, project: str) -> Limits:
        """Return a project's usage of each resource; 0 for resources that are not counted."""
        return {**dict.fromkeys(self.defaults, 0), **self.count(connection, project, self.defaults)}

    def set(self, connection: Connection, project: str, requested: Mapping[str, int | None]) -> Limits:
        """Set the limits *requested* of a project (-1: unlimited; ``None``: the default applies again), and return all
        of the project's limits."""
        quotas.remove_quota_rows(connection, [*requested], project)
        quotas.upsert_quota_rows(connection, project, {name: limit for name,
                                                       limit in requested.items() if limit is not None})
        return self.limits(connection, project)

    def every(self, connection: Connection) -> dict[str, Limits]:
        """Return {project: its limits} for the projects that have limits of their own."""
        projects = quotas.fetch_limited_projects(connection, self.defaults)
        configured = quotas.fetch_quota_limits(connection, (DEFAULT, *projects))
        return {project: self.merged(configured, project) for project in projects}

    def bound(self, connection: Connection, project: str, *names: str) -> Limits:
        """Return the project's limits of the resources *names*, without unlimited ones. Lock the project's quota of the
        service until the transaction ends: other requests for more in the project wait, so a usage counted afterwards
        stays true."""
        limits = self.limits(connection, project)
        most = {name: limits[name] for name in names if limits[name] >= 0}
        if most:
            quotas.lock_quota(connection, f"{self.service} {project}")
        return most

    def check(self, connection: Connection, project: str, most: Mapping[str, int], **more: int) -> None:
        """Raise the service's quota error if the usage plus *more*, by resource, exceeds the limits *most*, which
        ``bound`` has returned."""
        requested = {name: number for name, number in more.items() if number > 0 and name in most}
        have = self.count(connection, project, requested) if requested else {}
        over = [Excess(name, have[name], number, most[name]) for name, number in requested.items()
                if have[name] + number > most[name]]
        if over:
            raise self.refusal(over)

    def within(self, connection: Connection, project: str, **more: int) -> None:
        """Raise the service's quota error if the usage plus *more*, by resource, exceeds the project's limits. Locks
        the project's quota until the transaction ends."""
        self.check(connection, project, self.bound(connection, project, *more), **more)
