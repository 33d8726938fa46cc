# SPDX-License-Identifier: GPL-3.0-or-later
"""``GET /allocation_candidates`` (1.10): the parsing of the query, and the form of candidates at each microversion."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from magnetar_control.compute.placement.candidates import (
    AllocationCandidate,
    CandidateRequest,
    RequestGroup,
    list_allocation_candidates,
)
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.web import Request
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

from . import query, views

#: Parameters of groups and of the whole request, with their first microversion.
OF_GROUP = {"resources": 10, "required": 17, "member_of": 21, "in_tree": 31}
OF_REQUEST = {"limit": 16, "group_policy": 25, "root_required": 35, "same_subtree": 36}
#: Parameters that may be repeated, with the first microversion.
REPEATED = {"member_of": 24, "same_subtree": 36, "required": 39}
#: Forms of the suffix of a group, with their first microversion.
SUFFIXES = ((33, "[a-zA-Z0-9_-]{1,64}"), (25, "[1-9][0-9]*"))
#: Limit of groups of a request: each candidate lists all of them.
MOST = 64
GROUP = re.compile(f"({'|'.join(OF_GROUP)})(.*)", re.DOTALL)
Values = dict[str, list[str]]


class CandidateRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def list(self, request: Request) -> Document:
        """Return the allocation candidates that the query requests, and a summary of each resource provider in them:
        GET /allocation_candidates."""
        minor = int(request.extra["version"][1])
        if minor < 10:
            raise NotFound("This is there from microversion 1.10 on.")
        candidate_request = _candidates_request(request.query, minor)
        allocation_candidates = list_allocation_candidates(self.placement, candidate_request)
        shown = {provider.id: provider for each in allocation_candidates
                 for provider in (each.root.tree if minor >= 29 else each.providers)}
        return {"allocation_requests": [_allocation(candidate, minor) for candidate in allocation_candidates],
                "provider_summaries": {id: _summary(provider, candidate_request, minor) for id,
                                       provider in shown.items()}}


def _candidates_request(parameters: Sequence[tuple[str, str]], minor: int) -> CandidateRequest:
    """Convert the query *parameters* of GET /allocation_candidates, at microversion 1.*minor*, to a
    ``CandidateRequest``. Raises ``InvalidRequest``."""
    request_values, groups = _sorted(parameters, minor)
    if len(groups) > MOST:
        raise InvalidRequest(f"There may be {MOST} groups at most, and there are {len(groups)}.")
    if not any("resources" in values for values in groups.values()):
        raise InvalidRequest("There must be at least one resources parameter, such as resources=VCPU:1,MEMORY_MB:512.")
    together = _together(request_values.get("same_subtree", ()), groups)
    named = frozenset().union(*together)
    if empty := [suffix for suffix, values in groups.items() if "resources" not in values and suffix not in named]:
        raise InvalidRequest(f"The group {empty[0][:64]!r} has no resources: all groups need them"
                             + (", but those with a suffix that same_subtree names." if minor >= 36 else "."))
    policy = request_values.get("group_policy", [""])[0]
    if policy not in ("", "none", "isolate") or ("group_policy" in request_values and not policy):
        raise InvalidRequest("group_policy is none or isolate.")
    if not policy and sum(map(bool, groups)) > 1:
        raise InvalidRequest('The "group_policy" parameter, none or isolate, is required when more than one group has '
                             "a suffix.")
    limit = request_values.get("limit", [""])[0]
    if "limit" in request_values and not re.fullmatch("[1-9][0-9]{0,8}", limit):
        raise InvalidRequest("limit is a whole number from 1 on.")
    if request_values.get("root_required", [""])[0].startswith("in:"):
        raise InvalidRequest("root_required is all of A,B and none of !C; in: is for required only.")
    of_root = [query.parse_required_traits(value, minor) for value in request_values.get("root_required", ())]
    return CandidateRequest([_group(suffix, values, minor) for suffix, values in groups.items()],
                  [test for test, _names in of_root], frozenset().union(*(names for _test, names in of_root)),
                  policy == "isolate", int(limit) if limit else None, together, minor >= 29)


def _sorted(parameters: Iterable[tuple[str, str]], minor: int) -> tuple[Values, dict[str, Values]]:
    """Divide the query parameters of GET /allocation_candidates. Return two mappings: the parameters of the whole
    request as {name: values}, and the parameters of the request groups as {suffix of the group: {name: values}}. Raises
    ``InvalidRequest`` for a parameter that is unknown at 1.*minor*, or that is repeated although it may occur only
    once."""
    request_values: Values = {}
    groups: dict[str, Values] = defaultdict(dict)
    pattern = next((pattern for since, pattern in SUFFIXES if since <= minor), "")
    for key, value in parameters:
        match = GROUP.fullmatch(key)
        if OF_REQUEST.get(key, minor + 1) <= minor:
            name, place = key, request_values
        elif match and OF_GROUP[match[1]] <= minor and (not match[2] or (pattern and re.fullmatch(pattern, match[2]))):
            name, place = match[1], groups[match[2]]
        else:
            known_names = [parameter for parameter, since in (OF_GROUP | OF_REQUEST).items() if since <= minor]
            raise InvalidRequest(f"Badly formed querystring: at 1.{minor} there is no {key[:80]}. There are "
                                 f"{', '.join(known_names)}" + (f"; a suffix of a group is {pattern}." if pattern
                                                                else "."))
        if name in place and REPEATED.get(name, minor + 1) > minor:
            raise InvalidRequest(f"{key[:80]} may be there only once at 1.{minor}.")
        place.setdefault(name, []).append(value)
    return request_values, groups


def _together(values: Iterable[str], groups: Iterable[str]) -> list[frozenset[str]]:
    """Parse *values* of the query parameter ``same_subtree``: return the set of request group suffixes in each value.
    For the groups in one set, the provider of one group must be the same as the providers of the other groups, or an
    ancestor of them. *groups*: the known suffixes. Raises ``InvalidRequest`` for an empty or unknown suffix."""
    subtrees = [frozenset(value.split(",")) for value in values]
    named: frozenset[str] = frozenset().union(*subtrees)
    if wrong := sorted(named.difference(groups) | (named & {""})):
        raise InvalidRequest(f"same_subtree names suffixes of groups with commas between; {wrong[0][:64]!r} is none.")
    return subtrees


def _group(suffix: str, values: Values, minor: int) -> RequestGroup:
    traits = [query.parse_required_traits(value, minor) for value in values.get("required", ())]
    tests = [*(test for test, _names in traits), *(query.member_of(condition, minor)
                                                   for condition in values.get("member_of", ())),
             *(query.in_tree(condition) for condition in values.get("in_tree", ()))]
    amounts = query.parse_resources(values["resources"][0]) if "resources" in values else {}
    return RequestGroup(suffix, amounts, tests, frozenset().union(*(names for _test, names in traits)))


def _allocation(candidate: AllocationCandidate, minor: int) -> Document:
    """Return the allocations of *candidate* for the answer: a list until 1.11, an object by provider uuid since 1.12.
    Since 1.34, ``mappings`` shows the providers of each request group."""
    if minor < 12:
        return {"allocations": [{"resource_provider": {"uuid": id}, "resources": resources}
                                for id, resources in candidate.held.items()]}
    mappings = {"mappings": candidate.mappings} if minor >= 34 else {}
    return {"allocations": {id: {"resources": resources} for id, resources in candidate.held.items()}, **mappings}


def _summary(provider: Provider, request: CandidateRequest, minor: int) -> Document:
    """Return the summary of *provider* for the answer: capacity and usage of its resource classes (before 1.27 only of
    the requested ones), since 1.17 its traits, since 1.29 the uuids of its parent and root providers."""
    names = provider.inventories if minor >= 27 else [name for name in provider.inventories
                                                      if name in request.resources]
    summary: dict[str, Any] = {"resources": {
        name: {"capacity": provider.capacity(name), "used": provider.usages[name]} for name in names}}
    if minor >= 17:
        summary["traits"] = sorted(provider.traits)
    if minor >= 29:
        summary |= views.tree_view(provider)
    return summary
