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
    """A request that exceeds the quota of one resource. *used*: the present usage. *more*: the additional amount that
    the request needs. *limit*: the limit."""

    resource: str
    used: int
    more: int
    limit: int


class Quotas:
    """The quotas of one *service*. *defaults*: {resource: limit of projects without their own limit}. *count*: returns
    a project's usage of resources. *refusal*: returns the service's error for a list of ``Excess``."""

    def __init__(self, service: str, defaults: Mapping[str, int], count: Count,
                 refusal: Callable[[Sequence[Excess]], MagnetarError]) -> None:
        self.service, self.defaults, self.count, self.refusal = service, dict(defaults), count, refusal

    def limits(self, connection: Connection, project: str = DEFAULT) -> Limits:
        """Return the limits of *project*, by resource; without *project*, the default limits."""
        return quotas.fetch_effective_limits(connection, self.defaults, project, DEFAULT)

    def merged(self, configured: Mapping[str, Mapping[str, int]], project: str) -> Limits:
        """Return the limits of *project*, by resource, without a query. *configured*: the stored limits, by project and
        resource, as ``store.accounts.quotas.fetch_quota_limits`` returns them."""
        return quotas.merge_quota_limits(self.defaults, configured, project, DEFAULT)

    def used(self, connection: Connection, project: str) -> Limits:
        """Return a project's usage of every resource, by resource."""
        return {**dict.fromkeys(self.defaults, 0), **self.count(connection, project, self.defaults)}

    def set(self, connection: Connection, project: str, requested: Mapping[str, int | None]) -> Limits:
        """Set the limits *requested* of *project* (-1: unlimited; ``None``: use the default again), and return all of
        its limits."""
        quotas.remove_quota_rows(connection, [*requested], project)
        quotas.upsert_quota_rows(connection, project, {name: limit for name,
                                                       limit in requested.items() if limit is not None})
        return self.limits(connection, project)

    def every(self, connection: Connection) -> dict[str, Limits]:
        """Return the limits of all projects that have limits of their own: {project: {resource: limit}}."""
        projects = quotas.fetch_limited_projects(connection, self.defaults)
        configured = quotas.fetch_quota_limits(connection, (DEFAULT, *projects))
        return {project: self.merged(configured, project) for project in projects}

    def bound(self, connection: Connection, project: str, *names: str) -> Limits:
        """Return the project's limits of the resources *names*; unlimited resources are omitted. Lock the project's
        quota until the transaction ends: concurrent requests for the same quota wait, so usage that is counted after
        this call is exact."""
        limits = self.limits(connection, project)
        most = {name: limits[name] for name in names if limits[name] >= 0}
        if most:
            quotas.lock_quota(connection, f"{self.service} {project}")
        return most

    def check(self, connection: Connection, project: str, most: Mapping[str, int], **more: int) -> None:
        """Raise the service's quota error if the present usage plus *more* (the additional amounts, by resource)
        exceeds the limits *most*, which ``bound`` has returned."""
        requested = {name: number for name, number in more.items() if number > 0 and name in most}
        have = self.count(connection, project, requested) if requested else {}
        over = [Excess(name, have[name], number, most[name]) for name, number in requested.items()
                if have[name] + number > most[name]]
        if over:
            raise self.refusal(over)

    def within(self, connection: Connection, project: str, **more: int) -> None:
        """Raise the service's quota error if the present usage plus *more* (the additional amounts, by resource)
        exceeds the project's limits. Lock the project's quota until the transaction ends."""
        self.check(connection, project, self.bound(connection, project, *more), **more)
