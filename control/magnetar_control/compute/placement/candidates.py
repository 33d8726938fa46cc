# SPDX-License-Identifier: GPL-3.0-or-later
"""Allocation candidates: the hosts that, with the providers below them, can give everything a request asks for, and the
amounts that would be claimed of each provider.

A tree is one host with the providers below it; no provider shares its inventory with other trees. One provider gives
all resources of a group with a suffix. In the group without a suffix, one provider gives each resource class. Source:
Placement's API reference, *Allocation candidates*.
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

#: The most candidates of one tree, and the number of combinations of providers that are tried for them.
MOST, TRIES = 1000, 20000


class ProviderFacts(Protocol):
    """The attributes that are read to check the conditions of a request group (``required``, ``member_of``,
    ``in_tree``). The object with these attributes is one resource provider, or several providers of a host that
    together provide the group's resources."""

    @property
    def traits(self) -> frozenset[str]:
        """The traits of the provider; for several providers, the traits of all of them together."""

    @property
    def aggregates(self) -> Sequence[Aggregate]:
        """The aggregates of the host to which the provider belongs."""

    @property
    def tree_ids(self) -> frozenset[str]:
        """The uuids of all providers in the provider's tree."""


@dataclass(frozen=True)
class RequestGroup:
    """A request group of Placement's API. *resources*: the amounts by resource class. *tests*: the conditions
    ``required``, ``member_of`` and ``in_tree``, as functions that return whether a provider fulfils them. *suffix*: the
    suffix of the group's parameters, such as ``_1``; "" without one. *traits*: all traits that the group requires or
    forbids."""

    suffix: str
    resources: Mapping[str, int]
    tests: Sequence[Callable[[ProviderFacts], bool]] = ()
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CandidateRequest:
    """A request for allocation candidates.

    *tests*: the conditions ``root_required``, as functions that return whether the root provider of a candidate fulfils
    the condition. *traits*: all traits in these conditions. *isolate*: groups with a suffix must use different
    providers (``group_policy=isolate``). *limit*: the largest number of candidates (``None``: no limit). *together*:
    the parameters ``same_subtree``, each as a set of group suffixes. For each set, the provider of one group must be an
    ancestor of the providers of all other groups, or the same provider. *nested*: a candidate may use several
    providers.
    """

    groups: Sequence[RequestGroup]
    tests: Sequence[Callable[[ProviderFacts], bool]] = ()
    traits: frozenset[str] = frozenset()
    isolate: bool = False
    limit: int | None = None
    together: Sequence[frozenset[str]] = ()
    nested: bool = True

    @cached_property
    def resources(self) -> dict[str, int]:
        """The requested amounts of all request groups together, by resource class."""
        total: Counter[str] = Counter()
        for group in self.groups:
            total.update(group.resources)
        return dict(total)


@dataclass(frozen=True)
class AllocationCandidate:
    """An allocation candidate of Placement's API. *held*: the amounts to claim in the tree of *root*, by uuid of the
    provider, then by resource class. *mappings*: the uuids of the providers of each request group, by the group's
    suffix."""

    root: Provider
    held: Mapping[str, Mapping[str, int]]
    mappings: Mapping[str, Sequence[str]]

    @property
    def providers(self) -> list[Provider]:
        """The providers on which the candidate would claim amounts."""
        return [provider for provider in self.root.tree if provider.id in self.held]


@dataclass(frozen=True)
class _ProviderSet:
    """Several providers of one host that together provide the resources of one request group. The tests of the group
    (functions that check its conditions) are called with this object as if it were a single provider."""

    each: Sequence[Provider]

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(provider.traits for provider in self.each))

    @property
    def aggregates(self) -> Sequence[Aggregate]:
        return self.each[0].aggregates

    @property
    def tree_ids(self) -> frozenset[str]:
        return self.each[0].tree_ids


def list_allocation_candidates(placement: Placement, request: CandidateRequest) -> list[AllocationCandidate]:
    """Return the allocation candidates for *request* on all hosts, ordered by host name. Sends the same queries as
    ``Placement.roots``, and further ones only for custom classes or traits. Raises ``InvalidRequest`` for a class or
    trait that does not exist."""
    roots = placement.roots()
    placement.check_classes(request.resources)
    trait_names = request.traits.union(*(group.traits for group in request.groups))
    placement.check_traits(trait_names, roots)
    all_candidates = (candidate for root in roots for candidate in islice(_candidates_of_tree(root, request), MOST))
    return list(islice(all_candidates, request.limit))


def _candidates_of_tree(root: Provider, request: CandidateRequest) -> Iterator[AllocationCandidate]:
    """Yield the candidates for *request* in the tree of the host *root*."""
    if not all(test(root) for test in request.tests):
        return
    options = [list(_provider_options(root.tree, group)) for group in request.groups]
    if not all(options):
        return
    tries = 0
    chosen: list[Sequence[Provider]] = []
    by_id = {provider.id: provider for provider in root.tree} if request.together else {}
    taken: Counter[tuple[int, str]] = Counter()  # amounts of the providers chosen so far, by provider and class

    def choose() -> Iterator[AllocationCandidate]:
        nonlocal tries
        if len(chosen) == len(options):
            candidate = _build_candidate(root, request, chosen, by_id)
            yield from () if candidate is None else (candidate,)
            return
        group = request.groups[len(chosen)]
        for givers in options[len(chosen)]:
            tries += 1
            if tries > TRIES:
                return
            if request.isolate and group.suffix and group.resources and any(
                    givers[0] is other[0] for earlier_group, other in zip(request.groups, chosen, strict=False)
                    if earlier_group.suffix and earlier_group.resources):
                continue
            parts = _amounts_of_group(group, givers)
            if all(giver.has_room_for(name, amount + taken[id(giver), name]) for giver, name, amount in parts):
                more = {(id(giver), name): amount for giver, name, amount in parts}
                chosen.append(givers)
                taken.update(more)
                yield from choose()
                taken.subtract(more)
                chosen.pop()

    yield from choose()


def _amounts_of_group(group: RequestGroup, several: Sequence[Provider]) -> list[tuple[Provider, str, int]]:
    """Return (provider, resource class, amount) for each resource of *group*. *several*: the chosen providers: one for
    a group with a suffix, otherwise one for each resource class, in the order of ``group.resources``."""
    givers = several if not group.suffix else [*several] * len(group.resources)
    return [(provider, name, amount) for (name, amount), provider in zip(group.resources.items(), givers, strict=True)]


def _provider_options(tree: Sequence[Provider], group: RequestGroup) -> Iterator[Sequence[Provider]]:
    """Yield each list of providers in *tree* that can provide the resources of *group*: one provider for a group with a
    suffix, otherwise one provider for each resource class, in the order of ``group.resources``."""
    if group.suffix:
        for provider in tree:
            if all(provider.has_room_for(name, amount) for name, amount in group.resources.items()) and all(
                    test(provider) for test in group.tests):
                yield [provider]
        return
    combinations: list[list[Provider]] = [[]]
    for name, amount in group.resources.items():
        givers = [provider for provider in tree if provider.has_room_for(name, amount)]
        combinations = [[*combination, provider] for combination in combinations for provider in givers][:MOST]
    for several in combinations:
        if several and all(test(_ProviderSet(several)) for test in group.tests):
            yield several


def _build_candidate(root: Provider, request: CandidateRequest, chosen: Sequence[Sequence[Provider]],
                     by_id: Mapping[str, Provider]) -> AllocationCandidate | None:
    """Return the candidate in which the providers *chosen* of the host *root* serve the groups of *request*. Return
    ``None`` when ``request.together`` or ``request.nested`` forbids it. *chosen*: a list of providers for each group.
    *by_id*: all providers of the host by uuid. The caller has checked that the amounts fit."""
    amounts_by_provider: dict[str, dict[str, int]] = {}
    for group, several in zip(request.groups, chosen, strict=True):
        for provider, name, amount in _amounts_of_group(group, several):
            amounts = amounts_by_provider.setdefault(provider.id, {})
            amounts[name] = amounts.get(name, 0) + amount
    of = {group.suffix: several[0] for group, several in zip(request.groups, chosen, strict=True)}
    for suffixes in request.together:
        places = [of[suffix] for suffix in suffixes]
        if not any(all(_is_above(provider, other, by_id) for other in places) for provider in places):
            return None
    if not request.nested and len(amounts_by_provider) > 1:
        return None
    return AllocationCandidate(root, amounts_by_provider, {group.suffix: list(dict.fromkeys(provider.id
                                                                                            for provider in several))
                                  for group, several in zip(request.groups, chosen, strict=True)})


def _is_above(ancestor: Provider, provider: Provider, by_id: Mapping[str, Provider]) -> bool:
    """Return whether *ancestor* is *provider* itself or an ancestor of it. *by_id*: the providers of the tree by uuid.
    """
    at: Provider | None = provider
    while at is not None and at is not ancestor:
        at = by_id.get(at.parent_id or "")
    return at is ancestor
