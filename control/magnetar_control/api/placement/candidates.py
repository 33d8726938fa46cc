# SPDX-License-Identifier: GPL-3.0-or-later
"""``GET /allocation_candidates`` (1.10): the query as a request, and candidates in the form of each microversion."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from magnetar_control.compute.placement.candidates import (
    AllocationCandidate,
    CandidateRequest,
    RequestGroup,
    candidates,
)
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.services import Document
from magnetar_control.web import Request
from magnetar_core.errors import InvalidRequest, NotFound

from . import query, views

#: Parameters of groups and of the whole request, and since when.
OF_GROUP = {"resources": 10, "required": 17, "member_of": 21, "in_tree": 31}
OF_REQUEST = {"limit": 16, "group_policy": 25, "root_required": 35, "same_subtree": 36}
#: Those that may be there more than once, and since when.
REPEATED = {"member_of": 24, "same_subtree": 36, "required": 39}
#: What the suffix of a group may be, and since when.
SUFFIXES = ((33, "[a-zA-Z0-9_-]{1,64}"), (25, "[1-9][0-9]*"))
#: Groups of a request: each candidate tells of all of them.
MOST = 64
GROUP = re.compile(f"({'|'.join(OF_GROUP)})(.*)", re.DOTALL)
Values = dict[str, list[str]]


class CandidateRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def list(self, request: Request) -> Document:
        """The hosts that can give what is asked for, with what each has and what is claimed of it."""
        minor = int(request.extra["version"][1])
        if minor < 10:
            raise NotFound("This is there from microversion 1.10 on.")
        wanted = _wanted(request.query, minor)
        found = candidates(self.placement, wanted)
        shown = {one.id: one for each in found for one in (each.root.tree if minor >= 29 else each.providers)}
        return {"allocation_requests": [_allocation(one, minor) for one in found],
                "provider_summaries": {id: _summary(one, wanted, minor) for id, one in shown.items()}}


def _wanted(given: Sequence[tuple[str, str]], minor: int) -> CandidateRequest:
    """The request of a query. Raises ``InvalidRequest``."""
    own, groups = _sorted(given, minor)
    if len(groups) > MOST:
        raise InvalidRequest(f"There may be {MOST} groups at most, and there are {len(groups)}.")
    if not any("resources" in values for values in groups.values()):
        raise InvalidRequest("There must be at least one resources parameter, such as resources=VCPU:1,MEMORY_MB:512.")
    together = _together(own.get("same_subtree", ()), groups)
    named = frozenset().union(*together)
    if empty := [suffix for suffix, values in groups.items() if "resources" not in values and suffix not in named]:
        raise InvalidRequest(f"The group {empty[0][:64]!r} has no resources: all groups need them"
                             + (", but those with a suffix that same_subtree names." if minor >= 36 else "."))
    policy = own.get("group_policy", [""])[0]
    if policy not in ("", "none", "isolate") or ("group_policy" in own and not policy):
        raise InvalidRequest("group_policy is none or isolate.")
    if not policy and sum(map(bool, groups)) > 1:
        raise InvalidRequest('The "group_policy" parameter, none or isolate, is required when more than one group has '
                             "a suffix.")
    limit = own.get("limit", [""])[0]
    if "limit" in own and not re.fullmatch("[1-9][0-9]{0,8}", limit):
        raise InvalidRequest("limit is a whole number from 1 on.")
    if own.get("root_required", [""])[0].startswith("in:"):
        raise InvalidRequest("root_required is all of A,B and none of !C; in: is for required only.")
    of_root = [query.required(value, minor) for value in own.get("root_required", ())]
    return CandidateRequest([_group(suffix, values, minor) for suffix, values in groups.items()],
                  [test for test, _names in of_root], frozenset().union(*(names for _test, names in of_root)),
                  policy == "isolate", int(limit) if limit else None, together, minor >= 29)


def _sorted(given: Iterable[tuple[str, str]], minor: int) -> tuple[Values, dict[str, Values]]:
    """Values of parameters of the request, and of each group by suffix. Raises ``InvalidRequest`` for parameters that
    there are not, and for those that may be there once only."""
    own: Values = {}
    groups: dict[str, Values] = defaultdict(dict)
    pattern = next((pattern for since, pattern in SUFFIXES if since <= minor), "")
    for key, value in given:
        match = GROUP.fullmatch(key)
        if OF_REQUEST.get(key, minor + 1) <= minor:
            name, place = key, own
        elif match and OF_GROUP[match[1]] <= minor and (not match[2] or (pattern and re.fullmatch(pattern, match[2]))):
            name, place = match[1], groups[match[2]]
        else:
            there = [one for one, since in (OF_GROUP | OF_REQUEST).items() if since <= minor]
            raise InvalidRequest(f"Badly formed querystring: at 1.{minor} there is no {key[:80]}. There are "
                                 f"{', '.join(there)}" + (f"; a suffix of a group is {pattern}." if pattern else "."))
        if name in place and REPEATED.get(name, minor + 1) > minor:
            raise InvalidRequest(f"{key[:80]} may be there only once at 1.{minor}.")
        place.setdefault(name, []).append(value)
    return own, groups


def _together(given: Iterable[str], groups: Iterable[str]) -> list[frozenset[str]]:
    """Each ``same_subtree``: suffixes of groups, one of whose providers is above the others. Raises
    ``InvalidRequest``."""
    found = [frozenset(value.split(",")) for value in given]
    named: frozenset[str] = frozenset().union(*found)
    if wrong := sorted(named.difference(groups) | (named & {""})):
        raise InvalidRequest(f"same_subtree names suffixes of groups with commas between; {wrong[0][:64]!r} is none.")
    return found


def _group(suffix: str, values: Values, minor: int) -> RequestGroup:
    traits = [query.required(value, minor) for value in values.get("required", ())]
    tests = [*(test for test, _names in traits), *(query.member_of(one, minor) for one in values.get("member_of", ())),
             *(query.in_tree(one) for one in values.get("in_tree", ()))]
    amounts = query.resources(values["resources"][0]) if "resources" in values else {}
    return RequestGroup(suffix, amounts, tests, frozenset().union(*(names for _test, names in traits)))


def _allocation(one: AllocationCandidate, minor: int) -> Document:
    """What would be claimed: a list until 1.11, then by uuid; since 1.34 with the providers of each group."""
    if minor < 12:
        return {"allocations": [{"resource_provider": {"uuid": id}, "resources": resources}
                                for id, resources in one.held.items()]}
    mappings = {"mappings": one.mappings} if minor >= 34 else {}
    return {"allocations": {id: {"resources": resources} for id, resources in one.held.items()}, **mappings}


def _summary(one: Provider, wanted: CandidateRequest, minor: int) -> Document:
    """Capacity and use of the classes that are asked for, since 1.27 of all; traits since 1.17, its tree since 1.29."""
    names = one.inventories if minor >= 27 else [name for name in one.inventories if name in wanted.resources]
    found: dict[str, Any] = {"resources": {
        name: {"capacity": one.capacity(name), "used": one.usages[name]} for name in names}}
    if minor >= 17:
        found["traits"] = sorted(one.traits)
    if minor >= 29:
        found |= views.tree(one)
    return found
