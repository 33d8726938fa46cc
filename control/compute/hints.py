# SPDX-License-Identifier: GPL-3.0-or-later
"""Hints of new servers to the scheduler: each is followed by a filter that is on, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.scheduler.filters import FILTERS
from magnetar_control.settings import Settings

from .caller import Caller
from .hardware import without_effect

#: The filters that follow hints. That of groups is always on.
FOLLOWED = {"different_host": "DifferentHostFilter", "same_host": "SameHostFilter", "query": "JsonFilter",
            "build_near_host_ip": "SimpleCIDRAffinityFilter", "cidr": "SimpleCIDRAffinityFilter"}
#: Hints of Nova that nothing follows, and what there is instead.
CELLS = "cells are not chosen by servers; availability zones are (availability_zone)"
NOBODY = {"target_cell": CELLS, "different_cell": CELLS}
#: What Heat notes of the stack that a server is of, where its stack_scheduler_hints is on: it asks for no host.
NOTES = frozenset(("heat_root_stack_id", "heat_stack_id", "heat_stack_name", "heat_path_in_stack", "heat_resource_name",
                   "heat_resource_uuid"))
UNKNOWN = f"no filter follows it; there are group, {', '.join(FOLLOWED)}"
_KNOWN = frozenset(one.name for one in FILTERS)


def check(caller: Caller, hints: Mapping[str, Any]) -> str | None:
    """Hints that would do nothing; returns and raises as ``without_effect``."""
    return without_effect(caller, "Scheduler hints that", [*_in_vain(hints, caller.settings)],
                          "Leave them out; an operator may let them pass")


def _in_vain(hints: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Each with what it lacks; empty ones ask for nothing. Filters and weighers of one's own may read any hint."""
    own = settings.weighers or not _KNOWN.issuperset(settings.enabled_filters)
    for name in sorted(name for name, value in hints.items() if value not in (None, "", [], {})):
        by = FOLLOWED.get(name)
        if by is not None and by not in settings.enabled_filters:
            yield f"{name} is followed by the filter {by}, which is off (setting enabled_filters)"
        elif by is None and name != "group" and name not in NOTES and not own:
            yield f"{name[:80]}: {NOBODY.get(name, UNKNOWN)}"
    if hints.get("cidr") and not hints.get("build_near_host_ip"):
        yield "cidr says how near a host is to be to build_near_host_ip, which is left out"
