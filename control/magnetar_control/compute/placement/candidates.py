# SPDX-License-Identifier: GPL-3.0-or-later
"""Allocation candidates: which hosts, with what is below them, can give all that a request asks for, and what would be
claimed of each provider.

A tree is one host; no provider shares its inventory with other trees. A group with a suffix is given by one provider,
of the group without one each resource class. Source: Placement's API reference, *Allocation candidates*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

from magnetar_control.store.hosts.aggregates import Aggregate

from .placement import Placement
from .provider_tree import Provider

#: The most candidates of one tree, and how many providers of groups are tried for them.
MOST, TRIES = 1000, 20000


class Described(Protocol):
    """What tests look at: a provider, or those together that give a group."""

    @property
    def traits(self) -> frozenset[str]:
        """What it has."""

    @property
    def aggregates(self) -> Sequence[Aggregate]:
        """Those that it is in."""

    @property
    def tree_ids(self) -> frozenset[str]:
        """Uuids of all of its tree."""


@dataclass(frozen=True)
class RequestGroup:
    """Resources by class, and what their provider must be like. *suffix* is empty for the group without a number.
    *traits*: all names in it, required or forbidden."""

    suffix: str
    resources: Mapping[str, int]
    tests: Sequence[Callable[[Described], bool]] = ()
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CandidateRequest:
    """A request: its groups, what the root of each candidate must be like, whether groups with a suffix must have
    different providers, and how many candidates are enough (``None``: all). *together*: suffixes of groups of which one
    provider must be above the others, or be theirs. *nested*: whether a candidate may have several providers."""

    groups: Sequence[RequestGroup]
    tests: Sequence[Callable[[Described], bool]] = ()
    traits: frozenset[str] = frozenset()
    isolate: bool = False
    limit: int | None = None
    together: Sequence[frozenset[str]] = ()
    nested: bool = True

    @cached_property
    def resources(self) -> dict[str, int]:
        """The sum of all groups, by class."""
        total: Counter[str] = Counter()
        for group in self.groups:
            total.update(group.resources)
        return dict(total)


@dataclass(frozen=True)
class AllocationCandidate:
    """What would be *held* of the tree of *root*: amounts by resource class, by uuid of the provider. *mappings*: the
    uuids of the providers of each group, by suffix."""

    root: Provider
    held: Mapping[str, Mapping[str, int]]
    mappings: Mapping[str, Sequence[str]]

    @property
    def providers(self) -> list[Provider]:
        """Those of which something would be held."""
        return [one for one in self.root.tree if one.id in self.held]


@dataclass(frozen=True)
class _Several:
    """Providers of one tree that give a group together: what one of them has they have."""

    each: Sequence[Provider]

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(one.traits for one in self.each))

    @property
    def aggregates(self) -> Sequence[Aggregate]:
        return self.each[0].aggregates

    @property
    def tree_ids(self) -> frozenset[str]:
        return self.each[0].tree_ids


def candidates(placement: Placement, wanted: CandidateRequest) -> list[AllocationCandidate]:
    """Those that have room for all groups and are as they ask, hosts by name. Asks the database no more than ``roots``
    does, unless custom classes or traits are. Raises ``InvalidRequest`` for a trait that there is not."""
    roots = placement.roots()
    placement.check_classes(wanted.resources)
    asked = wanted.traits.union(*(group.traits for group in wanted.groups))
    placement.check_traits(asked, roots)
    found = (one for root in roots for one in islice(_of_tree(root, wanted), MOST))
    return list(islice(found, wanted.limit))


def _of_tree(root: Provider, wanted: CandidateRequest) -> Iterator[AllocationCandidate]:
    """The candidates of one host."""
    if not all(test(root) for test in wanted.tests):
        return
    options = [list(_options(root.tree, group)) for group in wanted.groups]
    if not all(options):
        return
    tries = 0
    chosen: list[Sequence[Provider]] = []
    by_id = {one.id: one for one in root.tree} if wanted.together else {}
    taken: Counter[tuple[int, str]] = Counter()  # by what is chosen so far, of each provider and class

    def choose() -> Iterator[AllocationCandidate]:
        nonlocal tries
        if len(chosen) == len(options):
            found = _candidate(root, wanted, chosen, by_id)
            yield from () if found is None else (found,)
            return
        group = wanted.groups[len(chosen)]
        for one in options[len(chosen)]:
            tries += 1
            if tries > TRIES:
                return
            if wanted.isolate and group.suffix and group.resources and any(
                    one[0] is other[0] for before, other in zip(wanted.groups, chosen, strict=False)
                    if before.suffix and before.resources):
                continue
            parts = _parts(group, one)
            if all(giver.gives(name, amount + taken[id(giver), name]) for giver, name, amount in parts):
                more = {(id(giver), name): amount for giver, name, amount in parts}
                chosen.append(one)
                taken.update(more)
                yield from choose()
                taken.subtract(more)
                chosen.pop()

    yield from choose()


def _parts(group: RequestGroup, several: Sequence[Provider]) -> list[tuple[Provider, str, int]]:
    """What each of *several* providers would give of a group: resource class and amount."""
    givers = several if not group.suffix else [*several] * len(group.resources)
    return [(one, name, amount) for (name, amount), one in zip(group.resources.items(), givers, strict=True)]


def _options(tree: Sequence[Provider], group: RequestGroup) -> Iterator[Sequence[Provider]]:
    """What may give a group: one provider, or for that without a suffix one for each class."""
    if group.suffix:
        for one in tree:
            if all(one.gives(name, amount) for name, amount in group.resources.items()) and all(
                    test(one) for test in group.tests):
                yield [one]
        return
    found: list[list[Provider]] = [[]]
    for name, amount in group.resources.items():
        givers = [one for one in tree if one.gives(name, amount)]
        found = [[*before, one] for before in found for one in givers][:MOST]
    for several in found:
        if several and all(test(_Several(several)) for test in group.tests):
            yield several


def _candidate(root: Provider, wanted: CandidateRequest, chosen: Sequence[Sequence[Provider]],
               by_id: Mapping[str, Provider]) -> AllocationCandidate | None:
    """The candidate of the providers *chosen* for each group, which have enough for all; ``None`` where they are not
    placed as they should be. *by_id*: those of the tree, where their places count."""
    held: dict[str, dict[str, int]] = {}
    for group, several in zip(wanted.groups, chosen, strict=True):
        for one, name, amount in _parts(group, several):
            amounts = held.setdefault(one.id, {})
            amounts[name] = amounts.get(name, 0) + amount
    of = {group.suffix: several[0] for group, several in zip(wanted.groups, chosen, strict=True)}
    for suffixes in wanted.together:
        places = [of[suffix] for suffix in suffixes]
        if not any(all(_is_above(one, other, by_id) for other in places) for one in places):
            return None
    if not wanted.nested and len(held) > 1:
        return None
    return AllocationCandidate(root, held, {group.suffix: list(dict.fromkeys(one.id for one in several))
                                  for group, several in zip(wanted.groups, chosen, strict=True)})


def _is_above(one: Provider, other: Provider, by_id: Mapping[str, Provider]) -> bool:
    """Whether *other* is *one*, or below it."""
    at: Provider | None = other
    while at is not None and at is not one:
        at = by_id.get(at.parent_id or "")
    return at is one
