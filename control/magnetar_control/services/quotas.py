# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of the embedded services: what a project may have of each resource, counted when it wants more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from magnetar_control.store.accounts import quotas
from magnetar_control.store.accounts.quotas import DEFAULT, Limits
from magnetar_core.errors import MagnetarError

#: What a project has of the resources named.
Count = Callable[[Connection, str, Collection[str]], Mapping[str, int]]


class Excess(NamedTuple):
    """More of a resource than there is room for: what is used, what was asked for, and the limit."""

    resource: str
    used: int
    more: int
    limit: int


class Quotas:
    """Those of one *service*. *defaults*: the limits where none is set, by resource; *count*: what is used; *refusal*:
    the service's error for what is too much."""

    def __init__(self, service: str, defaults: Mapping[str, int], count: Count,
                 refusal: Callable[[Sequence[Excess]], MagnetarError]) -> None:
        self.service, self.defaults, self.count, self.refusal = service, dict(defaults), count, refusal

    def limits(self, connection: Connection, project: str = DEFAULT) -> Limits:
        """Limits of a project; by default those of projects without their own."""
        return quotas.limits(connection, self.defaults, project, DEFAULT)

    def merged(self, given: Mapping[str, Mapping[str, int]], project: str) -> Limits:
        """As ``limits``, of what is set (of ``store.accounts.quotas.found``)."""
        return quotas.merged(self.defaults, given, project, DEFAULT)

    def used(self, connection: Connection, project: str) -> Limits:
        """What a project has of each resource; 0 of what is not counted."""
        return {**dict.fromkeys(self.defaults, 0), **self.count(connection, project, self.defaults)}

    def set(self, connection: Connection, project: str, given: Mapping[str, int | None]) -> Limits:
        """Set limits of a project, -1 for none, ``None`` for the usual one again; others stay. All that it has then."""
        quotas.reset(connection, [*given], project)
        quotas.put(connection, project, {name: limit for name, limit in given.items() if limit is not None})
        return self.limits(connection, project)

    def every(self, connection: Connection) -> dict[str, Limits]:
        """The limits of all projects that have some of their own."""
        projects = quotas.holders(connection, self.defaults)
        given = quotas.found(connection, (DEFAULT, *projects))
        return {project: self.merged(given, project) for project in projects}

    def bound(self, connection: Connection, project: str, *names: str) -> Limits:
        """Those of the limits *names* that there are. What is counted of them afterwards stays true until the
        transaction ends: who wants more in the same project waits here."""
        found = self.limits(connection, project)
        most = {name: found[name] for name in names if found[name] >= 0}
        if most:
            quotas.turn(connection, f"{self.service} {project}")
        return most

    def check(self, connection: Connection, project: str, most: Mapping[str, int], **more: int) -> None:
        """Raises the service's refusal where *more* is beyond *most* (of ``bound``)."""
        wanted = {name: number for name, number in more.items() if number > 0 and name in most}
        have = self.count(connection, project, wanted) if wanted else {}
        over = [Excess(name, have[name], number, most[name]) for name, number in wanted.items()
                if have[name] + number > most[name]]
        if over:
            raise self.refusal(over)

    def within(self, connection: Connection, project: str, **more: int) -> None:
        """As ``check``, of the limits that there are."""
        self.check(connection, project, self.bound(connection, project, *more), **more)
