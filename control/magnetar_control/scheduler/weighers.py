# SPDX-License-Identifier: GPL-3.0-or-later
"""Weighers: which of the hosts that pass is best. Each weighs one number of the host's row.

The weight of a host is the sum of multiplier x (number - lowest) / (highest - lowest) over the hosts that passed the
filters (spec rows SCH-08, SCHED-050 and -051); a number that is the same everywhere adds nothing. For a move that may
leave its cell, hosts of other cells weigh ``cross_cell_move`` less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar_core.matching import finite

from .host_state import DEVICES, FAILED_BUILDS, IO_OPS, MATES, METRICS, HostState, Profile, Row
from .request_spec import RequestSpec


@dataclass(frozen=True)
class Multipliers:
    """Settings, with Nova's names (filter_scheduler.*_weight_multiplier) and defaults. Negative: stack instead of
    spread; ``soft_*``, ``pci`` and ``build_failure`` should be positive."""

    cpu: float = 1.0
    ram: float = 1.0
    disk: float = 1.0
    io_ops: float = -1.0
    build_failure: float = 1_000_000.0
    soft_affinity: float = 1.0
    soft_anti_affinity: float = 1.0
    cross_cell_move: float = 1_000_000.0
    metrics: float = 1.0
    pci: float = 1.0


#: Nova's defaults.
USUAL = Multipliers()
#: With what the names of settings and of metadata end that say a multiplier.
MULTIPLIER = "_weight_multiplier"


class Weigher(NamedTuple):
    """*name*: that of the multiplier. *at*: the index in the row. *sign*: whether more is better."""

    name: str
    at: int
    sign: int = 1
    policy: str | None = None  # the policy of the server's group for which it counts; ``None`` for always


WEIGHERS: tuple[Weigher, ...] = (
    Weigher("build_failure", FAILED_BUILDS, -1), Weigher("ram", 4), Weigher("cpu", 3), Weigher("disk", 5),
    Weigher("io_ops", IO_OPS), Weigher("metrics", METRICS), Weigher("pci", DEVICES, -1),
    Weigher("soft_affinity", MATES, 1, "soft-affinity"), Weigher("soft_anti_affinity", MATES, -1, "soft-anti-affinity"))


class OwnWeigher(NamedTuple):
    """A weigher whose number no row has: *worth* says it of each host that passed, which takes longer. *multiplier*: of
    the settings."""

    name: str
    worth: Callable[[HostState, RequestSpec], float]
    multiplier: float


def image_locality(host: HostState, spec: RequestSpec) -> float:
    """1 for a host that has the content of the server's image."""
    return float(spec.image_id in host.images)


class Term(NamedTuple):
    """One weigher for one profile and spec: the worth of the number at index ``at`` from lowest to highest."""

    at: int
    low: float
    span: float
    worth: float


class Sum(NamedTuple):
    """The weight of hosts of one profile: *base*, and what their numbers are worth."""

    base: float
    terms: Sequence[Term]


def sum_of(profile: Profile, spec: RequestSpec, multipliers: Multipliers, low: Row, high: Row,
           own: Sequence[OwnWeigher] = ()) -> Sum:
    """The sum that is the weight of a host of *profile*, when the passing hosts' numbers lie between *low* and *high*.
    *own*: further weighers, whose numbers stand at the end of the rows. An aggregate's metadata
    ``<name>_weight_multiplier`` comes before the setting, the least of several (row WEI-01), without those that are
    ``malformed``."""
    policy = spec.group.policy if spec.group else ""
    found = []
    for weigher in WEIGHERS:
        span = high[weigher.at] - low[weigher.at]
        if span and weigher.policy in (None, policy):
            multiplier = _multiplier(profile, weigher.name, multipliers)
            if multiplier:
                found.append(Term(weigher.at, low[weigher.at], span, multiplier * weigher.sign))
    for at, one in enumerate(own, len(low) - len(own)):
        multiplier = _overridden(profile, one.name + MULTIPLIER, one.multiplier)
        if (span := high[at] - low[at]) and multiplier:
            found.append(Term(at, low[at], span, multiplier))
    leaves = spec.near_cell is not None and profile.cell_id != spec.near_cell  # rows XCR-07, WEI-11
    return Sum(-_multiplier(profile, "cross_cell_move", multipliers) if leaves else 0.0, found)


def _multiplier(profile: Profile, name: str, multipliers: Multipliers) -> float:
    usual: float = getattr(multipliers, name)
    return _overridden(profile, name + MULTIPLIER, usual) if profile.aggregates else usual


def weights(rows: Sequence[Row], whole: Sum) -> list[float]:
    """The weight of each row."""
    totals = [whole.base] * len(rows)
    for at, low, span, worth in whole.terms:
        totals = [total + worth * ((row[at] - low) / span) for total, row in zip(totals, rows, strict=True)]
    return totals


def bound(low: Row, high: Row, whole: Sum) -> float:
    """No row between *low* and *high* weighs more: ``weights`` are monotone in each number, also after rounding."""
    total = whole.base
    for at, least, span, worth in whole.terms:
        total += worth * (((high[at] if worth > 0 else low[at]) - least) / span)
    return total


def _overridden(profile: Profile, name: str, usual: float) -> float:
    values = (finite(metadata[name]) for metadata in profile.aggregates if name in metadata)
    return min((value for value in values if value is not None), default=usual)


def malformed(metadata: Mapping[str, str]) -> list[str]:
    """The multipliers of an aggregate's *metadata* that are no finite number, which nothing could be weighed with: they
    are not taken, and ignored where they stand already."""
    return sorted(name for name, text in metadata.items() if name.endswith(MULTIPLIER) and finite(text) is None)
