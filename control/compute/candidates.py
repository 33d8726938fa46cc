# SPDX-License-Identifier: GPL-3.0-or-later
"""Allocation candidates: which hosts can give all that a request asks for, and what would be claimed of each.

Each host is a tree of its own, without providers below it and none that shares its inventory. So a candidate is one
host that gives every group of the request. Source: Placement's API reference, *Allocation candidates*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from magnetar_core.errors import InvalidRequest
from magnetar_core.hardware import traits

from .placement import Placement, Provider


@dataclass(frozen=True)
class RequestGroup:
    """Resources by class, and what their provider must be like. *suffix* is empty for the group without a number.
    *traits*: all names in it, required or forbidden."""

    suffix: str
    resources: Mapping[str, int]
    tests: Sequence[Callable[[Provider], bool]] = ()
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CandidateRequest:
    """A request: its groups, what each candidate must be like, whether groups with a suffix must have different
    providers, and how many candidates are enough (``None``: all)."""

    groups: Sequence[RequestGroup]
    tests: Sequence[Callable[[Provider], bool]] = ()
    traits: frozenset[str] = frozenset()
    isolate: bool = False
    limit: int | None = None

    @cached_property
    def resources(self) -> dict[str, int]:
        """The sum of all groups, by class."""
        total: Counter[str] = Counter()
        for group in self.groups:
            total.update(group.resources)
        return dict(total)


def candidates(placement: Placement, wanted: CandidateRequest) -> list[Provider]:
    """The hosts that have room for all groups and are as they ask, by name. Asks the database no more than
    ``providers`` does, unless custom classes or traits are. Raises ``InvalidRequest`` for a trait that there is not."""
    every = placement.providers()
    placement.check_classes(wanted.resources)
    asked = wanted.traits.union(*(group.traits for group in wanted.groups))
    known = traits.STANDARD.union(*(one.traits for one in every))
    if not asked <= known:
        known |= placement.traits(every)[0]
    if missing := sorted(asked - known):
        raise InvalidRequest(f"No such trait(s): {', '.join(missing)[:255]}. GET /traits lists those that there are.")
    if wanted.isolate and sum(bool(group.suffix) for group in wanted.groups) > 1:
        return []
    tests = [*wanted.tests, *(test for group in wanted.groups for test in group.tests)]
    total = wanted.resources
    found = [one for one in every if all(test(one) for test in tests)
             and all(one.gives(name, amount) for name, amount in total.items())]
    return found[:wanted.limit]
