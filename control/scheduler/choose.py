# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of hosts for a server.

Filter every host, weigh those that pass, take the best: ``choose`` returns the same (tests hold it to that) without
visiting every host. A filter that sees only the profile is asked once for each profile. A block is taken as a
whole when even its fullest host has room, and skipped when even its emptiest has not. Blocks are weighed from the
greatest bound down, until no other block can hold a better host. NUMA cells and devices are looked at last, of the
heaviest hosts, until enough have them; hosts that have not still count for the bounds of weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count as counted
from itertools import islice
from random import Random
from typing import NamedTuple

from magnetar_core.errors import Conflict

from .filters import CELLS, HOST, LATE, PROFILE, ROOM, Bound, Filter
from .host_state import FITS, Block, HostState, Profile, Row
from .hosts import HostStates
from .request_spec import RequestSpec
from .rules import Rules
from .weighers import Sum, bound, sum_of, weight

#: Filters that look at the image of a server, which a rebuild may change (Nova's RUN_ON_REBUILD).
OF_IMAGES = frozenset(("TraitsFilter", "IsolatedAggregatesFilter", "IsolatedHostsFilter",
                       "AggregateImagePropertiesIsolation", "ImagePropertiesFilter", "HardwareFilter"))


class Candidate(NamedTuple):
    """A host that may get the server."""

    host_id: str
    host: str
    cell_id: str
    weight: float


class NoValidHost(Conflict):
    """No valid host was found. There are not enough hosts available."""

    code = "no-valid-host"
    status = 500
    refused: Mapping[str, int] = {}  # how many hosts each filter refused; a host counts for the first that did

    @property
    def explanation(self) -> str:
        """Why, for administrators only."""
        return str(self.details["explanation"])


def choose(states: HostStates, spec: RequestSpec, count: int = 1, *, random: Random | None = None) -> list[Candidate]:
    """Up to *count* hosts, best first. Raises ``NoValidHost``. Chance decides between hosts of equal weight, and which
    of the best ``rules.subset`` comes first, so that conductors seldom choose the same; without *random* not."""
    rules = states.rules
    with states.lock:
        late = [one for one in states.asked(spec) if one.sight in LATE]
        best = _best(_parts(states, spec, rules), spec, late, max(count, rules.subset), rules, random)
        if not best:
            raise explain(states, spec)
    if random and rules.subset > 1:
        best.insert(0, best.pop(random.randrange(min(rules.subset, len(best)))))
    return best[:count]


def explain(states: HostStates, spec: RequestSpec) -> NoValidHost:
    """The error that says how many hosts each filter refuses, and what the best of them lacks."""
    with states.lock:
        asked = states.asked(spec)
        seen: dict[tuple[Profile, Filter], bool] = {}
        refused: dict[Filter, list[HostState]] = {one: [] for one in asked}
        for host in states.hosts.values():
            if (one := _refusal(host, spec, asked, seen)) is not None:
                refused[one].append(host)
        count, lacks = len(states.hosts), [_lack(one, hosts, spec) for one, hosts in refused.items() if hosts]
    found = Counter[str]()
    for one, hosts in refused.items():
        found[one.name] += len(hosts)
    found = +found
    said = ", ".join(f"{name} {count}" for name, count in found.items()) or "none"
    error = NoValidHost(explanation=" ".join((f"Of {count} hosts the filters refused: {said}.", *filter(None, lacks)))
                        if count else "No host is registered: start an agent and let a conductor find it.")
    error.refused = found
    return error


def why_not_image(states: HostStates, name: str, spec: RequestSpec) -> str:
    """Why the host *name*, on which a server is, may not have it with the image of *spec*; empty where it may."""
    with states.lock:
        host = states.hosts.get(name)
        if host is None:
            return ""
        asked = (one for one in states.asked(spec) if one.name in OF_IMAGES)
        refuses = next((one for one in asked if not one.passes(host, spec)), None)
        return "" if refuses is None else f"{refuses.name} refuses {name}. {_lack(refuses, [host], spec)}".rstrip()


def _lack(one: Filter, hosts: list[HostState], spec: RequestSpec) -> str:
    """What the best of the *hosts* that a filter refused lacks: the one with the most of a resource, of NUMA cells that
    with the most dedicated CPUs, or the first by name of those that lack the fewest traits."""
    if one.lacks is None:
        return ""
    if one.sight == CELLS or (one.sight == ROOM and one.bound is not None):
        at = FITS.pcpus if one.bound is None else one.bound(hosts[0].profile, spec).at
        best = max(hosts, key=lambda host: host.numbers[at])
        return f"{one.name}: the best of these, {best.name}, {one.lacks(best, spec)}."
    said = {host.profile: one.lacks(host, spec) for host in hosts}
    best = min(hosts, key=lambda host: (said[host.profile].count(" and "), host.name))
    return f"{one.name}: the best of these, {best.name}, {said[best.profile]}."


def _refusal(host: HostState, spec: RequestSpec, asked: list[Filter],
             seen: dict[tuple[Profile, Filter], bool]) -> Filter | None:
    """The first filter that refuses the host. Answers of filters that see only the profile are cached in *seen*."""
    for one in asked:
        if one.sight != PROFILE:
            passes = one.passes(host, spec)
        elif (known := seen.get((host.profile, one))) is not None:
            passes = known
        else:
            passes = seen[host.profile, one] = one.passes(host, spec)
        if not passes:
            return one
    return None


def _parts(states: HostStates, spec: RequestSpec, rules: Rules) -> list[Block]:
    """The hosts that all filters pass but those of ``LATE``."""
    asked = [one for one in states.asked(spec) if one.sight not in LATE]
    single = [one for one in asked if one.sight == HOST]
    if spec.only is not None or single or rules.own:
        names = states.hosts if spec.only is None else spec.only
        hosts = [states.hosts[name] for name in names if name in states.hosts]
        passed = [(host, (*host.row(spec.mates.get(host.name, 0)), *(one.worth(host, spec) for one in rules.own)))
                  for host in hosts if all(one.passes(host, spec) for one in asked)]
        return [Block(host.profile, [host], [row], row, row) for host, row in passed]
    shared = [one for one in asked if one.sight == PROFILE]
    passing: dict[Profile, list[Bound] | None] = {}
    blocks = states.blocks()
    special = {host.block for name in {*spec.never, *spec.mates} if (host := states.hosts.get(name))}
    parts = []
    bounds = [one.bound for one in asked if one.sight == ROOM and one.bound is not None]
    for block in blocks:
        if block.profile not in passing:
            passing[block.profile] = [one(block.profile, spec) for one in bounds] if all(
                one.passes(block.hosts[0], spec) for one in shared) else None
        needs, low, high = passing[block.profile], block.low, block.high
        if needs is None or any(least > high[at] or most < low[at] for at, least, most in needs):
            continue
        if block in special or any(least > low[at] or most < high[at] for at, least, most in needs):
            if part := _sifted(block, spec, needs):
                parts.append(part)
        else:
            parts.append(block)
    return parts


def _sifted(block: Block, spec: RequestSpec, needs: list[Bound]) -> Block | None:
    never, mates = spec.never, spec.mates
    least = [(at, n) for at, n, _most in needs if n > block.low[at]]  # what not all hosts of the block have
    most = [(at, n) for at, _least, n in needs if n < block.high[at]]
    left = [(host, row) for host, row in zip(block.hosts, block.rows, strict=True)
            if all(n <= row[at] for at, n in least) and host.name not in never]
    if most:
        left = [(host, row) for host, row in left if all(row[at] <= n for at, n in most)]
    if not left:
        return None
    rows = [(*row[:-1], mates.get(host.name, 0)) for host, row in left] if mates else [row for _host, row in left]
    columns = list(zip(*rows, strict=True))
    return Block(block.profile, [host for host, _row in left], rows, tuple(map(min, columns)), tuple(map(max, columns)))


def _best(parts: list[Block], spec: RequestSpec, late: list[Filter], count: int, rules: Rules,
          random: Random | None) -> list[Candidate]:
    """The *count* heaviest hosts of all parts that *late* filters pass, heaviest first."""
    if not parts:
        return []
    low: Row = tuple(map(min, zip(*(part.low for part in parts), strict=True)))
    high: Row = tuple(map(max, zip(*(part.high for part in parts), strict=True)))
    sums: dict[Profile, Sum] = {}
    bounds = []
    for at, part in enumerate(parts):
        whole = sums.get(part.profile)
        if whole is None:
            whole = sums[part.profile] = sum_of(part.profile, spec, rules.multipliers, low, high, rules.own)
        bounds.append((-bound(part.low, part.high, whole), random.random() if random else 0.0, at))
    bounds.sort()
    if late:
        fitting = (one for one in _heaviest(parts, bounds, sums, random)
                   if all(each.passes(one[1], spec) for each in late))
        return [_candidate(host, w) for w, host in islice(fitting, count)]
    best: list[tuple[float, HostState]] = []
    floor = -math.inf
    for most, _chance, at in bounds:
        if len(best) == count and -most <= floor:
            break
        best = _merged(best, parts[at], sums[parts[at].profile], floor, count, random)
        if len(best) == count:
            floor = best[-1][0]
    return [_candidate(host, w) for w, host in best]


def _candidate(host: HostState, weight: float) -> Candidate:
    return Candidate(host.id, host.name, host.profile.cell_id, weight)


def _heaviest(parts: list[Block], bounds: list[tuple[float, float, int]], sums: Mapping[Profile, Sum],
              random: Random | None) -> Iterator[tuple[float, HostState]]:
    """All hosts of the parts, heaviest first, as far as they are asked for: to look at the cells or devices of a host
    takes longer than to weigh a block. *bounds* are sorted."""
    heap: list[tuple[float, float, int, HostState]] = []
    number = counted()
    for most, _chance, at in bounds:
        while heap and heap[0][0] <= most:
            w, _turn, _number, host = heappop(heap)
            yield -w, host
        for row, host in zip(parts[at].rows, parts[at].hosts, strict=True):
            turn = random.random() if random else 0.0
            heappush(heap, (-weight(row, sums[parts[at].profile]), turn, next(number), host))
    while heap:
        w, _turn, _number, host = heappop(heap)
        yield -w, host


def _merged(best: list[tuple[float, HostState]], part: Block, whole: Sum, floor: float, count: int,
            random: Random | None) -> list[tuple[float, HostState]]:
    """The best of those found and of a part. Of equal ones, those found first; within the part chance decides."""
    weights = [weight(row, whole) for row in part.rows]
    found = [(w, host) for w, host in zip(weights, part.hosts, strict=True) if w > floor]
    if random and len(found) > 1:
        turn = random.randrange(len(found))
        found = found[turn:] + found[:turn]
    return sorted(best + found, key=lambda one: one[0], reverse=True)[:count]
