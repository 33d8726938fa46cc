# SPDX-License-Identifier: GPL-3.0-or-later
"""Scheduler hints of new servers. A hint has an effect only if its filter is enabled. A hint of a disabled filter, or
of Nova's cells v1, is refused. A hint that Nova does not know is accepted with a warning, as Nova accepts any name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors.hardware import refuse_without_effect
from magnetar_control.scheduler.filters import FILTERS
from magnetar_control.settings import Settings

#: The filters that follow hints. The filter of groups is always on.
FOLLOWED = {"different_host": "DifferentHostFilter", "same_host": "SameHostFilter", "query": "JsonFilter",
            "build_near_host_ip": "SimpleCIDRAffinityFilter", "cidr": "SimpleCIDRAffinityFilter"}
#: Nova's hints that no filter follows, and the alternative.
CELLS = "cells are not chosen by servers; availability zones are (availability_zone)"
NOBODY = {"target_cell": CELLS, "different_cell": CELLS}
#: Names that Heat adds about a server's stack when its stack_scheduler_hints is on. They do not affect the choice of a
#: host.
NOTES = frozenset(("heat_root_stack_id", "heat_stack_id", "heat_stack_name", "heat_path_in_stack", "heat_resource_name",
                   "heat_resource_uuid"))
KNOWN = f"group, {', '.join(FOLLOWED)}"
_KNOWN = frozenset(host_filter.name for host_filter in FILTERS)


def check_hints(caller: Caller, hints: Mapping[str, Any]) -> str | None:
    """Check for scheduler hints that have no effect in this cloud. Return a warning about these hints; ``None`` if
    there are no such hints.

    Raise ``InvalidRequest`` if some of these hints are supported by Nova, unless the setting ``specs_without_effect``
    is ``warn``.
    """
    refused = refuse_without_effect(caller, "Scheduler hints that", [*_unfulfilled_hints(hints, caller.settings)],
                                    "Leave them out; an operator may let them pass")
    unknown = ", ".join(_unknown_hints(hints, caller.settings))
    ignored = f"No filter follows the scheduler hints {unknown}; known hints are {KNOWN}." if unknown else None
    return " ".join(filter(None, (refused, ignored))) or None


def _valued_hints(hints: Mapping[str, Any]) -> list[str]:
    """Return the names of the hints that have a value. Empty hints are ignored."""
    return sorted(name for name, value in hints.items() if value not in (None, "", [], {}))


def _unfulfilled_hints(hints: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield a text for each of *hints* that Nova supports but that has no effect here: the hint's name, and the reason
    (its filter is disabled or does not exist)."""
    for name in _valued_hints(hints):
        by = FOLLOWED.get(name)
        if name == "cidr" and "build_near_host_ip" not in _valued_hints(hints):
            continue  # it only sizes the network of build_near_host_ip
        if by is not None and by not in settings.enabled_filters:
            yield f"{name} is followed by the filter {by}, which is off (setting enabled_filters)"
        elif name in NOBODY and not _may_read_any_hint(settings):
            yield f"{name}: {NOBODY[name]}"


def _unknown_hints(hints: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield the name of each hint that neither Nova nor an additional filter or weigher of the operator knows."""
    if not _may_read_any_hint(settings):
        known_hints = {*FOLLOWED, *NOBODY, *NOTES, "group"}
        yield from (name[:80] for name in _valued_hints(hints) if name not in known_hints)


def _may_read_any_hint(settings: Settings) -> bool:
    """Return whether the operator has added filters or weighers. Such filters and weighers may read any hint, so it is
    unknown whether a hint has an effect."""
    return bool(settings.weighers) or not _KNOWN.issuperset(settings.enabled_filters)
