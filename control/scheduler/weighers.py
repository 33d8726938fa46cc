# SPDX-License-Identifier: GPL-3.0-or-later
"""Weighers: which of the hosts that pass is best. Each weighs one number of the host's row.

The weight of a host is the sum of multiplier x (number - lowest) / (highest - lowest) over the hosts that passed the
filters (spec rows SCH-08, SCHED-050 and -051); a number that is the same everywhere adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .host_state import Profile, Row
from .request_spec import RequestSpec


@dataclass(frozen=True)
class Multipliers:
    """Settings, with Nova's names (filter_scheduler.*_weight_multiplier) and defaults. Negative: stack instead of
    spread; ``soft_*`` and ``build_failure`` should be positive."""

    cpu: float = 1.0
    ram: float = 1.0
    disk: float = 1.0
    io_ops: float = -1.0
    build_failure: float = 1_000_000.0
    soft_affinity: float = 1.0
    soft_anti_affinity: float = 1.0


#: Nova's defaults.
USUAL = Multipliers()


class Weigher(NamedTuple):
    """*name*: that of the multiplier. *at*: the index in the row. *sign*: whether more is better."""

    name: str
    at: int
    sign: int = 1
    policy: str | None = None  # the policy of the server's group for which it counts; ``None`` for always


WEIGHERS: tuple[Weigher, ...] = (
    Weigher("build_failure", 7, -1), Weigher("ram", 4), Weigher("cpu", 3), Weigher("disk", 5), Weigher("io_ops", 6),
    Weigher("soft_affinity", 8, 1, "soft-affinity"), Weigher("soft_anti_affinity", 8, -1, "soft-anti-affinity"))


class Term(NamedTuple):
    """One weigher for one profile and spec: the worth of the number at index ``at`` from lowest to highest."""

    at: int
    low: int
    span: int
    worth: float


def terms(profile: Profile, spec: RequestSpec, multipliers: Multipliers, low: Row, high: Row) -> list[Term]:
    """The sum that is the weight of a host of *profile*, when the passing hosts' numbers lie between *low* and *high*.
    An aggregate's metadata ``<name>_weight_multiplier`` comes before the setting, the least of several (row WEI-01)."""
    policy = spec.group.policy if spec.group else ""
    found = []
    for weigher in WEIGHERS:
        span = high[weigher.at] - low[weigher.at]
        if span and weigher.policy in (None, policy):
            multiplier = getattr(multipliers, weigher.name)
            if profile.aggregates:
                multiplier = _overridden(profile, f"{weigher.name}_weight_multiplier", multiplier)
            if multiplier:
                found.append(Term(weigher.at, low[weigher.at], span, multiplier * weigher.sign))
    return found


def weight(row: Row, sum_of: Sequence[Term]) -> float:
    """The weight of one row."""
    total = 0.0
    for at, low, span, worth in sum_of:
        total += worth * ((row[at] - low) / span)
    return total


def bound(low: Row, high: Row, sum_of: Sequence[Term]) -> float:
    """No row between *low* and *high* weighs more: ``weight`` is monotone in each number, also after rounding."""
    total = 0.0
    for at, least, span, worth in sum_of:
        total += worth * (((high[at] if worth > 0 else low[at]) - least) / span)
    return total


def _overridden(profile: Profile, name: str, usual: float) -> float:
    values = []
    for metadata in profile.aggregates:
        try:
            values.append(float(metadata[name]))
        except (KeyError, ValueError):
            continue
    return min(values, default=usual)
