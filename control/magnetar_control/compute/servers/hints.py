# SPDX-License-Identifier: GPL-3.0-or-later
"""Hints of new servers to the scheduler. A filter that is on follows a hint; a hint of a filter that is off, or of
Nova's cells, is refused; a name that Nova does not know passes with a warning, as Nova's schema is open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors.hardware import without_effect
from magnetar_control.scheduler.filters import FILTERS
from magnetar_control.settings import Settings

#: The filters that follow hints. That of groups is always on.
FOLLOWED = {"different_host": "DifferentHostFilter", "same_host": "SameHostFilter", "query": "JsonFilter",
            "build_near_host_ip": "SimpleCIDRAffinityFilter", "cidr": "SimpleCIDRAffinityFilter"}
#: Hints of Nova that nothing follows, and what there is instead.
CELLS = "cells are not chosen by servers; availability zones are (availability_zone)"
NOBODY = {"target_cell": CELLS, "different_cell": CELLS}
#: What Heat notes of the stack that a server is of, where its stack_scheduler_hints is on: it asks for no host.
NOTES = frozenset(("heat_root_stack_id", "heat_stack_id", "heat_stack_name", "heat_path_in_stack", "heat_resource_name",
                   "heat_resource_uuid"))
KNOWN = f"group, {', '.join(FOLLOWED)}"
_KNOWN = frozenset(one.name for one in FILTERS)


def check(caller: Caller, hints: Mapping[str, Any]) -> str | None:
    """Return a warning about hints that nothing follows, ``None`` without such hints.

    Raises ``InvalidRequest``, as ``without_effect``, for hints of Nova that would be unfulfilled.
    """
    refused = without_effect(caller, "Scheduler hints that", [*_unfulfilled(hints, caller.settings)],
                             "Leave them out; an operator may let them pass")
    unknown = ", ".join(_unknown(hints, caller.settings))
    ignored = f"No filter follows the scheduler hints {unknown}; known hints are {KNOWN}." if unknown else None
    return " ".join(filter(None, (refused, ignored))) or None


def _said(hints: Mapping[str, Any]) -> list[str]:
    """Return the names of the hints that have a value. An empty hint asks for nothing."""
    return sorted(name for name, value in hints.items() if value not in (None, "", [], {}))


def _unfulfilled(hints: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield each hint of Nova that no filter follows here, with the reason."""
    for name in _said(hints):
        by = FOLLOWED.get(name)
        if name == "cidr" and "build_near_host_ip" not in _said(hints):
            continue  # it only sizes the network of build_near_host_ip
        if by is not None and by not in settings.enabled_filters:
            yield f"{name} is followed by the filter {by}, which is off (setting enabled_filters)"
        elif name in NOBODY and not _read_by_own(settings):
            yield f"{name}: {NOBODY[name]}"


def _unknown(hints: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield each hint that neither Nova nor an own filter or weigher knows."""
    if not _read_by_own(settings):
        known = {*FOLLOWED, *NOBODY, *NOTES, "group"}
        yield from (name[:80] for name in _said(hints) if name not in known)


def _read_by_own(settings: Settings) -> bool:
    """Return whether the operator has own filters or weighers, which may read any hint."""
    return bool(settings.weighers) or not _KNOWN.issuperset(settings.enabled_filters)
