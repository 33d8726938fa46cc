# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of hosts for a server.

Filter every host, weigh those that pass, take the best: ``choose`` returns the same (tests hold it to that) without
visiting every host. A filter that sees only the profile is asked once for each profile. A block is taken as a
whole when even its fullest host has room, and skipped when even its emptiest has not. Of blocks, their parts and hosts
the one with the greatest bound is looked into next, until hosts enough weigh more than that. NUMA cells and devices are
looked at last, of the heaviest hosts, until enough have them; hosts without still count for the bounds of weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count as counted
from itertools import islice
from operator import itemgetter
from random import Random
from typing import NamedTuple

from magnetar_core.errors import Conflict

from .filters import CELLS, HOST, LATE, PROFILE, ROOM, Bound, Filter, takes_servers
from .host_state import FITS, Block, HostState, Profile, bounds
from .hosts import HostStates
from .request_spec import RequestSpec
from .rules import Rules
from .weighers import Sum, bound, sum_of, weights

#: Filters that look at the image of a server, which a rebuild may change (Nova's RUN_ON_REBUILD).
OF_IMAGES = frozenset(("TraitsFilter", "IsolatedAggregatesFilter", "IsolatedHostsFilter",
                       "AggregateImagePropertiesIsolation", "ImagePropertiesFilter", "HardwareFilter"))


#: The filter that refuses hosts that do not answer.
UP = "ComputeFilter"


class Candidate(NamedTuple):
    """A host that may get the server."""

    host_id: str
    host: str
    cell_id: str
    weight: float


#: A host and its weight, or a block and a bound of the weights of its hosts.
_Weighed = tuple[float, Block | HostState]


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
    """As ``best``; raises ``NoValidHost`` where there is none."""
    with states.lock:
        found = best(states, spec, count, random=random)
        if not found:
            raise explain(states, spec)
    return found


def best(states: HostStates, spec: RequestSpec, count: int = 1, *, random: Random | None = None) -> list[Candidate]:
    """Up to *count* hosts, best first. Chance decides between hosts of equal weight, and which of the best
    ``rules.subset`` comes first, so that conductors seldom choose the same; without *random* not."""
    rules = states.rules
    with states.lock:
        asked = states.asked(spec)
        late = [one for one in asked if one.sight in LATE]
        parts = _parts(states, spec, [one for one in asked if one.sight not in LATE], rules)
        found = [Candidate(host.id, host.name, host.profile.cell_id, w) for w, host in islice(
            (one for one in _heaviest(parts, spec, rules, random) if all(each.passes(one[1], spec) for each in late)),
            max(count, rules.subset))]
    if found and random and rules.subset > 1:
        found.insert(0, found.pop(random.randrange(min(rules.subset, len(found)))))
    return found[:count]


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


def would_pass(states: HostStates, spec: RequestSpec, names: Collection[str]) -> bool:
    """Return whether one of the hosts *names* does not answer now, and could have the server if it did."""
    with states.lock:
        asked = [one for one in states.asked(spec) if one.name != UP]
        return any(
            takes_servers(host, spec) and not host.profile.up and not host.columns["forced_down"]
            and all(one.passes(host, spec) for one in asked)
            for name in names if (host := states.hosts.get(name)) is not None)


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


def _parts(states: HostStates, spec: RequestSpec, asked: list[Filter], rules: Rules) -> list[Block]:
    """The hosts that the filters *asked* pass."""
    single = [one for one in asked if one.sight == HOST]
    if spec.only is not None or single or rules.own:
        names = states.hosts if spec.only is None else spec.only
        hosts = [states.hosts[name] for name in names if name in states.hosts]
        passed = [(host, (*host.row(spec.mates.get(host.name, 0)), *(one.worth(host, spec) for one in rules.own)))
                  for host in hosts if all(one.passes(host, spec) for one in asked)]
        return [Block(host.profile, [host], [row], row, row) for host, row in passed]
    shared = [one for one in asked if one.sight == PROFILE]
    roomy = [one.bound for one in asked if one.sight == ROOM and one.bound is not None]
    passing: dict[Profile, list[Bound] | None] = {}
    blocks, parts = states.blocks(), list[Block]()
    special = _special(states, spec)
    for block in blocks:
        profile = block.profile
        if profile not in passing:
            one_host = _a_host(block)
            passing[profile] = [one(profile, spec) for one in roomy] if all(
                one.passes(one_host, spec) for one in shared) else None
        if (needs := passing[profile]) is not None:
            _sift(block, spec, needs, special, parts)
    return parts


def _a_host(block: Block) -> HostState:
    while block.parts:
        block = block.parts[0]
    return block.hosts[0]


def _special(states: HostStates, spec: RequestSpec) -> set[Block]:
    """The blocks in which are hosts that cannot pass, or that weigh what is not in their rows."""
    found: set[Block] = set()
    for name in {*spec.never, *spec.mates}:
        block = host.block if (host := states.hosts.get(name)) else None
        while block is not None and block not in found:
            found.add(block)
            block = block.whole
    return found


def _sift(block: Block, spec: RequestSpec, needs: list[Bound], special: set[Block], found: list[Block]) -> None:
    """Add to *found* the blocks of those hosts of *block* that pass."""
    low, high, whole = block.low, block.high, block not in special
    for at, least, most in needs:
        if least > high[at] or most < low[at]:
            return
        if least > low[at] or most < high[at]:
            whole = False
    if whole:
        found.append(block)
    elif block.parts:
        for part in block.parts:
            _sift(part, spec, needs, special, found)
    elif (passing := _sifted(block, spec, needs)) is not None:
        found.append(passing)


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
    return Block(block.profile, [host for host, _row in left], rows, *bounds(rows, rows))


def _heaviest(parts: list[Block], spec: RequestSpec, rules: Rules,
              random: Random | None) -> Iterator[tuple[float, HostState]]:
    """Weights and hosts of all parts, heaviest first, as far as they are asked for. Chance decides between equals."""
    if not parts:
        return
    low, high = bounds([part.low for part in parts], [part.high for part in parts])
    sums: dict[tuple[Profile | None, str], Sum] = {}
    heap: list[tuple[float, float, int, Block | HostState, Iterator[_Weighed], Sum]] = []
    number, chance = counted(step=-1), random.random if random else float

    def push(them: Iterator[_Weighed], turn: float, whole: Sum) -> None:
        """Push the first of *them*, which are in order; the next one comes when that is looked into. Of equal ones in
        one block the last that was pushed comes first: a host before a block that has none better."""
        if (first := next(them, None)) is not None:
            heappush(heap, (-first[0], turn, next(number), first[1], them, whole))

    for at, part in enumerate(parts):
        key = (part.profile if part.profile.aggregates else None), part.profile.cell_id  # what a sum looks at
        if key not in sums:
            sums[key] = sum_of(part.profile, spec, rules.multipliers, low, high, rules.own)
        turn = 1 - chance() ** (1 / part.size) if random else at  # the least of so many numbers by chance
        push(iter([(bound(part.low, part.high, sums[key]), part)]), turn, sums[key])
    while heap:
        value, turn, _number, one, others, whole = heappop(heap)
        push(others, turn, whole)
        if isinstance(one, Block):
            push(_ordered(one, whole, chance()), turn, whole)
        else:
            yield -value, one


def _ordered(block: Block, whole: Sum, chance: float) -> Iterator[_Weighed]:
    """The parts of a block by their bounds, or its hosts by their weights, the greatest first; of those that are as
    great *chance* (from 0 to 1) says which."""
    them: Sequence[Block | HostState] = block.parts or block.hosts
    values = [bound(part.low, part.high, whole) for part in block.parts] or weights(block.rows, whole)
    found = sorted(zip(values, them, strict=True), key=itemgetter(0), reverse=True)
    same = next((at for at, one in enumerate(found) if one[0] != found[0][0]), len(found))
    turn = int(chance * same)
    return iter(found[turn:same] + found[:turn] + found[same:])
