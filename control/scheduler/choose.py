# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of hosts for a server.

``plainly`` below defines it: filter every host, weigh those that pass, take the best. ``choose`` returns the same
without visiting every host. A filter that sees only the profile is asked once for each profile. A block is taken as a
whole when even its fullest host has room, and skipped when even its emptiest has not. Blocks are weighed from the
greatest bound down, until no other block can hold a better host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from .filters import HOST, PROFILE, Filter
from .host_state import Block, HostState, Profile, Row
from .hosts import HostStates
from .request_spec import RequestSpec
from .rules import DEFAULT_RULES, Rules
from .weighers import Multipliers, Term, bound, terms, weight

#: The message for users, in Nova's words. Administrators read which filter refused how many hosts.
NO_VALID_HOST = "No valid host was found. There are not enough hosts available."


class Candidate(NamedTuple):
    """A host that may get the server."""

    host_id: str
    host: str
    cell_id: str
    zone: str
    weight: float


@dataclass(frozen=True)
class Explanation:
    """Number of hosts, number of hosts that each filter refused (a host counts for the first that did), and the best
    that passed."""

    hosts: int
    refused: dict[str, int]
    candidates: list[Candidate]

    def text(self) -> str:
        """One sentence for administrators."""
        if not self.hosts:
            return "No host is registered: start an agent and let a conductor find it."
        said = ", ".join(f"{name} {count}" for name, count in self.refused.items())
        return f"Of {self.hosts} hosts the filters refused: {said or 'none'}."


class NoValidHost(Exception):
    """No host may get the server; ``explanation`` says why, for administrators only."""

    def __init__(self, explanation: Explanation) -> None:
        super().__init__(NO_VALID_HOST)
        self.explanation = explanation

    @property
    def admin_text(self) -> str:
        """The whole reason."""
        return f"{NO_VALID_HOST} {self.explanation.text()}"


class Part(NamedTuple):
    """Hosts that passed, their rows, and the bounds of these: a block, or the rest of one."""

    profile: Profile
    hosts: Sequence[HostState]
    rows: Sequence[Row]
    low: Row
    high: Row


def choose(states: HostStates, spec: RequestSpec, count: int = 1, *, rules: Rules | None = None,
           random: Random | None = None) -> list[Candidate]:
    """Up to *count* hosts, best first. Raises ``NoValidHost``. *rules*: those of *states* when left out.

    Chance decides between hosts of equal weight, and which of the best ``rules.subset`` comes first, so that several
    conductors seldom choose the same host. Without *random* the order is deterministic.
    """
    rules = rules or states.rules or DEFAULT_RULES
    with states.lock:
        best = _best(_parts(states, spec, rules), spec, max(count, rules.subset), rules.multipliers, random)
        if not best:
            raise NoValidHost(explain(states, spec, rules=rules))
    if random and rules.subset > 1:
        best.insert(0, best.pop(random.randrange(min(rules.subset, len(best)))))
    return best[:count]


def explain(states: HostStates, spec: RequestSpec, count: int = 3, *, rules: Rules | None = None) -> Explanation:
    """The best hosts and how many each filter refused, for errors."""
    rules = rules or states.rules or DEFAULT_RULES
    asked = rules.asked(spec)
    refused: Counter[str] = Counter()
    with states.lock:
        seen: dict[tuple[Profile, Filter], bool] = {}
        passed = []
        for host in states.hosts.values():
            name = _refusal(host, spec, asked, seen)
            if name is None:
                passed.append(host)
            else:
                refused[name] += 1
        order = [name for name in dict.fromkeys(one.name for one in asked) if refused[name]]
        best = _best(_separate(passed, spec), spec, count, rules.multipliers, None) if passed else []
        return Explanation(len(states.hosts), {name: refused[name] for name in order}, best)


def plainly(states: HostStates, spec: RequestSpec, rules: Rules = DEFAULT_RULES) -> list[tuple[float, str]]:
    """The definition of ``choose``, host by host: weights and names of all that pass, best first. For tests and
    benchmarks."""
    asked = rules.asked(spec)
    passed = [host for host in states.hosts.values() if all(one.passes(host, spec) for one in asked)]
    rows = [host.row(spec.mates.get(host.name, 0)) for host in passed]
    columns = list(zip(*rows, strict=True))
    low, high = tuple(map(min, columns)), tuple(map(max, columns))
    found = [(weight(row, terms(host.profile, spec, rules.multipliers, low, high)), host.name)
             for row, host in zip(rows, passed, strict=True)]
    return sorted(found, key=lambda one: (-one[0], one[1]))


def _refusal(host: HostState, spec: RequestSpec, asked: list[Filter],
             seen: dict[tuple[Profile, Filter], bool]) -> str | None:
    """The first filter that refuses the host. Answers of filters that see only the profile are cached in *seen*."""
    for one in asked:
        if one.sight != PROFILE:
            passes = one.passes(host, spec)
        elif (known := seen.get((host.profile, one))) is not None:
            passes = known
        else:
            passes = seen[host.profile, one] = one.passes(host, spec)
        if not passes:
            return one.name
    return None


def _parts(states: HostStates, spec: RequestSpec, rules: Rules) -> list[Part]:
    """The hosts that pass all filters."""
    asked = rules.asked(spec)
    single = [one for one in asked if one.sight == HOST]
    if spec.only is not None or single:
        names = states.hosts if spec.only is None else spec.only
        hosts = [states.hosts[name] for name in names if name in states.hosts]
        return _separate([host for host in hosts if all(one.passes(host, spec) for one in asked)], spec)
    shared = [one for one in asked if one.sight == PROFILE]
    passing: dict[Profile, bool] = {}
    blocks = states.blocks()
    special = {host.block for name in {*spec.never, *spec.mates} if (host := states.hosts.get(name))}
    parts = []
    needs = [(at, n) for at, n in enumerate(spec.amounts) if n > 0]
    for block in blocks:
        passes = passing.get(block.profile)
        if passes is None:
            passes = passing[block.profile] = all(one.passes(block.hosts[0], spec) for one in shared)
        if not passes or any(n > block.high[at] for at, n in needs):
            continue
        if block in special or any(n > block.low[at] for at, n in needs):
            if part := _sifted(block, spec, needs):
                parts.append(part)
        else:
            parts.append(Part(block.profile, block.hosts, block.rows, block.low, block.high))
    return parts


def _sifted(block: Block, spec: RequestSpec, needs: list[tuple[int, int]]) -> Part | None:
    """The hosts of a block that pass."""
    never, mates = spec.never, spec.mates
    left = [(host, row) for host, row in zip(block.hosts, block.rows, strict=True)
            if all(n <= row[at] for at, n in needs) and host.name not in never]
    if not left:
        return None
    rows = [(*row[:-1], mates.get(host.name, 0)) for host, row in left] if mates else [row for _host, row in left]
    columns = list(zip(*rows, strict=True))
    return Part(block.profile, [host for host, _row in left], rows, tuple(map(min, columns)), tuple(map(max, columns)))


def _separate(hosts: list[HostState], spec: RequestSpec) -> list[Part]:
    parts = []
    for host in hosts:
        row = host.row(spec.mates.get(host.name, 0))
        parts.append(Part(host.profile, [host], [row], row, row))
    return parts


def _best(parts: list[Part], spec: RequestSpec, count: int, multipliers: Multipliers,
          random: Random | None) -> list[Candidate]:
    """The *count* heaviest hosts of all parts, heaviest first."""
    if not parts:
        return []
    low = tuple(map(min, zip(*(part.low for part in parts), strict=True)))
    high = tuple(map(max, zip(*(part.high for part in parts), strict=True)))
    sums: dict[Profile, list[Term]] = {}
    bounds = []
    for at, part in enumerate(parts):
        sum_of = sums.get(part.profile)
        if sum_of is None:
            sum_of = sums[part.profile] = terms(part.profile, spec, multipliers, low, high)
        bounds.append((-bound(part.low, part.high, sum_of), random.random() if random else 0.0, at))
    bounds.sort()
    best: list[tuple[float, HostState]] = []
    floor = -math.inf
    for most, _chance, at in bounds:
        if len(best) == count and -most <= floor:
            break
        best = _merged(best, parts[at], sums[parts[at].profile], floor, count, random)
        if len(best) == count:
            floor = best[-1][0]
    return [Candidate(host.id, host.name, host.profile.cell_id, host.profile.zone, w) for w, host in best]


def _merged(best: list[tuple[float, HostState]], part: Part, sum_of: list[Term], floor: float, count: int,
            random: Random | None) -> list[tuple[float, HostState]]:
    """The best of those found and of a part. Of equal ones, those found first; within the part chance decides."""
    weights = [weight(row, sum_of) for row in part.rows]
    found = [(w, host) for w, host in zip(weights, part.hosts, strict=True) if w > floor]
    if random and len(found) > 1:
        turn = random.randrange(len(found))
        found = found[turn:] + found[:turn]
    return sorted(best + found, key=lambda one: one[0], reverse=True)[:count]
