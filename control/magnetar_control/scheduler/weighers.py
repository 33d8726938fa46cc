# SPDX-License-Identifier: GPL-3.0-or-later
"""Weighers: they decide which of the passing hosts is best. Each weighs one number of the host's row.

The weight of a host is the sum, over all weighers, of multiplier x (number - lowest) / (highest - lowest), with the
lowest and highest number among the hosts that passed the filters. A number that is the same everywhere adds nothing.
For a move that may leave the server's cell, hosts of other cells weigh ``cross_cell_move`` less."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar_core.matching import parse_finite

from .host_state import DEVICES, FAILED_BUILDS, IO_OPS, MATES, METRICS, HostState, Profile, Row
from .request_spec import RequestSpec


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of weighers, with the names and defaults of Nova's settings
    ``filter_scheduler.*_weight_multiplier``. A negative multiplier stacks servers on few hosts instead of spreading
    them; for ``io_ops``, a positive multiplier stacks them. ``soft_*``, ``pci`` and ``build_failure`` should be
    positive."""

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
#: Suffix of the names of multipliers in settings and metadata.
MULTIPLIER = "_weight_multiplier"


class Weigher(NamedTuple):
    """A weigher that compares hosts by a number that is stored for each host, such as free memory. The tuple of all
    such numbers is the host's row. ``name``: the name of its multiplier. ``at``: the index of this number in the row.
    ``sign``: 1 if more is better, -1 if less is better. ``policy``: the server group policy for which it is used;
    ``None`` for always."""

    name: str
    at: int
    sign: int = 1
    policy: str | None = None  # the group policy that it applies to; ``None`` for always


WEIGHERS: tuple[Weigher, ...] = (
    Weigher("build_failure", FAILED_BUILDS, -1), Weigher("ram", 4), Weigher("cpu", 3), Weigher("disk", 5),
    Weigher("io_ops", IO_OPS), Weigher("metrics", METRICS), Weigher("pci", DEVICES, -1),
    Weigher("soft_affinity", MATES, 1, "soft-affinity"), Weigher("soft_anti_affinity", MATES, -1, "soft-anti-affinity"))


class ComputedWeigher(NamedTuple):
    """A weigher, for example a custom weigher, whose number is not stored for each host like the free memory.
    ``worth(host, spec)`` computes the number for each host that passed the filters; this is slower than reading it.
    ``multiplier``: from the settings."""

    name: str
    worth: Callable[[HostState, RequestSpec], float]
    multiplier: float


def image_locality(host: HostState, spec: RequestSpec) -> float:
    """Return 1 for a host that has the content of the server's image, otherwise 0."""
    return float(spec.image_id in host.images)


class WeightTerm(NamedTuple):
    """The contribution of a single weigher to the weight of a host: ``worth`` * (number - ``low``) / ``span``. The
    weigher compares hosts by this number, for example by their free memory. The number is the element ``at`` of the
    host's ``Row`` (the tuple of numbers that describe a host). ``low``: the lowest number of all hosts that passed the
    filters. ``span``: their highest number minus the lowest. ``worth``: the weigher's multiplier with its sign."""

    at: int
    low: float
    span: float
    worth: float


class WeightSum(NamedTuple):
    """The formula for the weights of hosts that have the same ``Profile`` (properties such as zone and aggregates):
    ``base`` plus the contributions of the weighers in ``terms``. ``base``: 0, or a negative number for hosts of another
    cell than the server that is moved."""

    base: float
    terms: Sequence[WeightTerm]


def sum_of(profile: Profile, spec: RequestSpec, multipliers: Multipliers, low: Row, high: Row,
           computed_weighers: Sequence[ComputedWeigher] = ()) -> WeightSum:
    """Return the formula for the weights of hosts of *profile*. *low*, *high*: the minimum and maximum of each number
    that describes a host, such as free memory, among the hosts that passed the filters.

    *computed_weighers*: custom weighers; their numbers are at the end of *low* and *high*. The metadata
    ``<name>_weight_multiplier`` of a host's aggregates overrides *multipliers*. If several aggregates have it, the
    lowest value applies; values that are not numbers are ignored.
    """
    policy = spec.group.policy if spec.group else ""
    terms = []
    for weigher in WEIGHERS:
        span = high[weigher.at] - low[weigher.at]
        if span and weigher.policy in (None, policy):
            multiplier = _multiplier(profile, weigher.name, multipliers)
            if multiplier:
                terms.append(WeightTerm(weigher.at, low[weigher.at], span, multiplier * weigher.sign))
    for at, computed_weigher in enumerate(computed_weighers, len(low) - len(computed_weighers)):
        multiplier = _overridden(profile, computed_weigher.name + MULTIPLIER, computed_weigher.multiplier)
        if (span := high[at] - low[at]) and multiplier:
            terms.append(WeightTerm(at, low[at], span, multiplier))
    leaves = spec.near_cell is not None and profile.cell_id != spec.near_cell
    return WeightSum(-_multiplier(profile, "cross_cell_move", multipliers) if leaves else 0.0, terms)


def _multiplier(profile: Profile, name: str, multipliers: Multipliers) -> float:
    usual: float = getattr(multipliers, name)
    return _overridden(profile, name + MULTIPLIER, usual) if profile.aggregates else usual


def weights_of_rows(rows: Sequence[Row], whole: WeightSum) -> list[float]:
    """Return the weight of each host by the formula *whole*. *rows*: for each host, the tuple of numbers that describe
    it, such as free memory."""
    totals = [whole.base] * len(rows)
    for at, low, span, worth in whole.terms:
        totals = [total + worth * ((row[at] - low) / span) for total, row in zip(totals, rows, strict=True)]
    return totals


def weight_bound(low: Row, high: Row, whole: WeightSum) -> float:
    """Return an upper bound of the weights that the formula *whole* gives to hosts whose numbers, such as free memory,
    lie between those of *low* and *high*. The bound also holds after rounding, because ``weights_of_rows`` is monotone
    in each number."""
    total = whole.base
    for at, least, span, worth in whole.terms:
        total += worth * (((high[at] if worth > 0 else low[at]) - least) / span)
    return total


def _overridden(profile: Profile, name: str, usual: float) -> float:
    values = (parse_finite(metadata[name]) for metadata in profile.aggregates if name in metadata)
    return min((value for value in values if value is not None), default=usual)


def malformed_multipliers(metadata: Mapping[str, str]) -> list[str]:
    """Return the names of those multipliers in an aggregate's *metadata* that are not finite numbers. The API refuses
    such values; existing ones are ignored."""
    return sorted(name for name, text in metadata.items() if name.endswith(MULTIPLIER) and parse_finite(text) is None)
