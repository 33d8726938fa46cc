# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of hosts for a server.

The rule is: filter every host, weigh the hosts that pass, take the best. ``choose_hosts`` returns the same result
without visiting every host; tests check that. A filter that reads only the profile (the properties that many hosts
share) is called once for each profile. A block (a group of similar hosts) passes as a whole if even its fullest host
has room, and is skipped if even its emptiest has none. Blocks are opened in the order of the upper bounds of their
hosts' weights, until enough hosts weigh more than every remaining bound. NUMA cells and devices are checked last, for
the heaviest hosts, until enough pass. The scale of the weights includes hosts that fail this last check.
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
from .host_state import FITS, Block, HostState, Profile, bounds_of_rows
from .hosts import HostStates
from .request_spec import RequestSpec
from .rules import Rules
from .weighers import WeightSum, sum_of, weight_bound, weights_of_rows

#: Filters that read the image of a server, which a rebuild may change (Nova's RUN_ON_REBUILD).
OF_IMAGES = frozenset(("TraitsFilter", "IsolatedAggregatesFilter", "IsolatedHostsFilter",
                       "AggregateImagePropertiesIsolation", "ImagePropertiesFilter", "HardwareFilter"))


#: The filter that refuses hosts that do not answer.
UP = "ComputeFilter"


class Candidate(NamedTuple):
    """A host that may get the server, with its weight. A host with a greater weight is preferred."""

    host_id: str
    host: str
    cell_id: str
    weight: float


#: A host with its weight, or a block with the upper bound of its weights.
_Weighed = tuple[float, Block | HostState]


class NoValidHost(Conflict):
    """No valid host was found. There are not enough hosts available."""

    code = "no-valid-host"
    status = 500
    refused: Mapping[str, int] = {}  # how many hosts each filter refused; a host counts for the first that did

    @property
    def explanation(self) -> str:
        """The reason, which only administrators may see."""
        return str(self.details["explanation"])


def choose_hosts(states: HostStates, spec: RequestSpec, count: int = 1, *,
                 random: Random | None = None) -> list[Candidate]:
    """Return up to *count* hosts that pass the filters, best first. *random*: as in ``best_hosts``. Raises
    ``NoValidHost`` if no host passes."""
    with states.lock:
        candidates = best_hosts(states, spec, count, random=random)
        if not candidates:
            raise explain_refusals(states, spec)
    return candidates


def best_hosts(states: HostStates, spec: RequestSpec, count: int = 1, *,
               random: Random | None = None) -> list[Candidate]:
    """Return up to *count* hosts that pass the filters, best first; an empty list if none passes. *random* orders hosts
    of equal weight, and chooses which of the best ``rules.subset`` hosts comes first, so that different conductors
    seldom choose the same host. Without *random*, the order is always the same."""
    rules = states.rules
    with states.lock:
        filters = states.filters_for(spec)
        late = [host_filter for host_filter in filters if host_filter.sight in LATE]
        parts = _parts(states, spec, [host_filter for host_filter in filters if host_filter.sight not in LATE], rules)
        candidates = [Candidate(host.id, host.name, host.profile.cell_id, w) for w, host in islice(
            (weighed for weighed in _heaviest(parts, spec, rules, random)
             if all(late_filter.passes(weighed[1], spec) for late_filter in late)),
            max(count, rules.subset))]
    if candidates and random and rules.subset > 1:
        candidates.insert(0, candidates.pop(random.randrange(min(rules.subset, len(candidates)))))
    return candidates[:count]


def explain_refusals(states: HostStates, spec: RequestSpec) -> NoValidHost:
    """Return the ``NoValidHost`` error for *spec*. The explanation in this error says how many hosts each filter
    refused, and which requirements the best of the refused hosts does not meet."""
    with states.lock:
        filters = states.filters_for(spec)
        cached_answers: dict[tuple[Profile, Filter], bool] = {}
        refused: dict[Filter, list[HostState]] = {host_filter: [] for host_filter in filters}
        for host in states.hosts.values():
            if (host_filter := _refusal(host, spec, filters, cached_answers)) is not None:
                refused[host_filter].append(host)
        count, lacks = len(states.hosts), [_lack_text(host_filter, hosts, spec) for host_filter,
                                           hosts in refused.items() if hosts]
    counts = Counter[str]()
    for host_filter, hosts in refused.items():
        counts[host_filter.name] += len(hosts)
    counts = +counts
    counts_text = ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
    error = NoValidHost(explanation=" ".join((f"Of {count} hosts the filters refused: {counts_text}.",
                                              *filter(None, lacks)))
                        if count else "No host is registered: start an agent and let a conductor find it.")
    error.refused = counts
    return error


def would_pass(states: HostStates, spec: RequestSpec, names: Collection[str]) -> bool:
    """Return whether any of the hosts *names* is down now, but would pass all filters if it were up. Hosts that an
    administrator has forced down do not count."""
    with states.lock:
        filters = [host_filter for host_filter in states.filters_for(spec) if host_filter.name != UP]
        return any(
            takes_servers(host, spec) and not host.profile.up and not host.columns.forced_down
            and all(host_filter.passes(host, spec) for host_filter in filters)
            for name in names if (host := states.hosts.get(name)) is not None)


def why_not_image(states: HostStates, name: str, spec: RequestSpec) -> str:
    """Return the reason why the server of *spec* must not run with the spec's image on its present host *name*, for a
    rebuild; an empty text if the server may."""
    with states.lock:
        host = states.hosts.get(name)
        if host is None:
            return ""
        filters = (host_filter for host_filter in states.filters_for(spec) if host_filter.name in OF_IMAGES)
        refuses = next((host_filter for host_filter in filters if not host_filter.passes(host, spec)), None)
        return "" if refuses is None else f"{refuses.name} refuses {name}. {_lack_text(refuses, [host], spec)}".rstrip()


def _lack_text(host_filter: Filter, hosts: list[HostState], spec: RequestSpec) -> str:
    """Return a text about the requirement that *host_filter* found unmet on the best of *hosts*, all of which it
    refused; empty if the filter has no ``lacks``. The best host depends on the filter. For a filter of one resource, it
    is the host with the most of this resource; for a filter of NUMA cells, the host with the most free dedicated CPUs;
    for any other filter, the host with the fewest unmet requirements (the first by name of several such hosts)."""
    if host_filter.lacks is None:
        return ""
    if host_filter.sight == CELLS or (host_filter.sight == ROOM and host_filter.bound is not None):
        at = FITS.pcpus if host_filter.bound is None else host_filter.bound(hosts[0].profile, spec).at
        best = max(hosts, key=lambda host: host.numbers[at])
        return f"{host_filter.name}: the best of these, {best.name}, {host_filter.lacks(best, spec)}."
    lack_by_profile = {host.profile: host_filter.lacks(host, spec) for host in hosts}
    best = min(hosts, key=lambda host: (lack_by_profile[host.profile].count(" and "), host.name))
    return f"{host_filter.name}: the best of these, {best.name}, {lack_by_profile[best.profile]}."


def _refusal(host: HostState, spec: RequestSpec, filters: list[Filter],
             cached_answers: dict[tuple[Profile, Filter], bool]) -> Filter | None:
    """Return the first of *filters* that refuses the host; ``None`` if the host passes all filters. *cached_answers*: a
    cache, filled here, for filters that read only the host's profile (the properties that many hosts share)."""
    for host_filter in filters:
        if host_filter.sight != PROFILE:
            passes = host_filter.passes(host, spec)
        elif (cached_answer := cached_answers.get((host.profile, host_filter))) is not None:
            passes = cached_answer
        else:
            passes = cached_answers[host.profile, host_filter] = host_filter.passes(host, spec)
        if not passes:
            return host_filter
    return None


def _parts(states: HostStates, spec: RequestSpec, filters: list[Filter], rules: Rules) -> list[Block]:
    """Return blocks (groups of similar hosts) that together contain exactly the hosts that pass all *filters*; an empty
    list if none passes. Blocks contain a row for each host: the tuple of the host's numbers, such as free memory. If
    *rules* contain computed weighers, such as custom weighers, their numbers are appended to each row."""
    single = [host_filter for host_filter in filters if host_filter.sight == HOST]
    if spec.only is not None or single or rules.computed_weighers:
        names = states.hosts if spec.only is None else spec.only
        hosts = [states.hosts[name] for name in names if name in states.hosts]
        passed = [(host, (*host.row(spec.mates.get(host.name, 0)),
                          *(weigher.worth(host, spec) for weigher in rules.computed_weighers)))
                  for host in hosts if all(host_filter.passes(host, spec) for host_filter in filters)]
        return [Block(host.profile, [host], [row], row, row) for host, row in passed]
    shared = [host_filter for host_filter in filters if host_filter.sight == PROFILE]
    roomy = [host_filter.bound for host_filter in filters if host_filter.sight == ROOM
             and host_filter.bound is not None]
    passing: dict[Profile, list[Bound] | None] = {}
    blocks, parts = states.blocks(), list[Block]()
    special = _special(states, spec)
    for block in blocks:
        profile = block.profile
        if profile not in passing:
            one_host = _a_host(block)
            passing[profile] = [room_bound(profile, spec) for room_bound in roomy] if all(
                host_filter.passes(one_host, spec) for host_filter in shared) else None
        if (needs := passing[profile]) is not None:
            _sift(block, spec, needs, special, parts)
    return parts


def _a_host(block: Block) -> HostState:
    while block.parts:
        block = block.parts[0]
    return block.hosts[0]


def _special(states: HostStates, spec: RequestSpec) -> set[Block]:
    """Return the blocks (groups of similar hosts) whose hosts must be checked one by one, because the minimum and
    maximum of the hosts' numbers, such as free memory, do not decide for all hosts of the block. These blocks contain
    hosts that are excluded by name (``spec.never``), or that have members of the server's group (``spec.mates``)."""
    special_blocks: set[Block] = set()
    for name in {*spec.never, *spec.mates}:
        block = host.block if (host := states.hosts.get(name)) else None
        while block is not None and block not in special_blocks:
            special_blocks.add(block)
            block = block.whole
    return special_blocks


def _sift(block: Block, spec: RequestSpec, needs: list[Bound], special: set[Block],
          passing_blocks: list[Block]) -> None:
    """Append the hosts of *block* (a group of similar hosts) that pass to *passing_blocks*: the block itself if all of
    its hosts pass, otherwise smaller blocks with the hosts that pass. *needs*: the allowed ranges of the numbers, such
    as free memory, that describe each host. *special*: blocks whose hosts must be checked one by one."""
    low, high, whole = block.low, block.high, block not in special
    for at, least, most in needs:
        if least > high[at] or most < low[at]:
            return
        if least > low[at] or most < high[at]:
            whole = False
    if whole:
        passing_blocks.append(block)
    elif block.parts:
        for part in block.parts:
            _sift(part, spec, needs, special, passing_blocks)
    elif (passing := _sifted(block, spec, needs)) is not None:
        passing_blocks.append(passing)


def _sifted(block: Block, spec: RequestSpec, needs: list[Bound]) -> Block | None:
    never, mates = spec.never, spec.mates
    least = [(at, n) for at, n, _most in needs if n > block.low[at]]  # bounds that not all hosts of the block meet
    most = [(at, n) for at, _least, n in needs if n < block.high[at]]
    passing_rows = [(host, row) for host, row in zip(block.hosts, block.rows, strict=True)
                    if all(n <= row[at] for at, n in least) and host.name not in never]
    if most:
        passing_rows = [(host, row) for host, row in passing_rows if all(row[at] <= n for at, n in most)]
    if not passing_rows:
        return None
    rows = [(*row[:-1], mates.get(host.name, 0)) for host, row in passing_rows] if mates else [row for _host,
                                                                                               row in passing_rows]
    return Block(block.profile, [host for host, _row in passing_rows], rows, *bounds_of_rows(rows, rows))


def _heaviest(parts: list[Block], spec: RequestSpec, rules: Rules,
              random: Random | None) -> Iterator[tuple[float, HostState]]:
    """Yield (weight, host) for the hosts of the blocks (groups of similar hosts) *parts*, in descending order of
    weight. Weights are computed only as far as the caller iterates. *rules*: has the multipliers and the custom
    weighers. *random* orders hosts of equal weight; without it, they come in the order of *parts*."""
    if not parts:
        return
    low, high = bounds_of_rows([part.low for part in parts], [part.high for part in parts])
    sums: dict[tuple[Profile | None, str], WeightSum] = {}
    heap: list[tuple[float, float, int, Block | HostState, Iterator[_Weighed], WeightSum]] = []
    number, chance = counted(step=-1), random.random if random else float

    def push(them: Iterator[_Weighed], turn: float, whole: WeightSum) -> None:
        """Push the next element of the iterator *them* onto the heap, a (weight, host) or (weight, block); do nothing
        if the iterator is exhausted. The heap is ordered by weight. Equal weights are ordered by *turn*: a random
        number, or the position of the block. If *turn* is equal too, the latest push comes first, so that a host comes
        before the block that contains it. *whole*: the formula of the weights."""
        if (first := next(them, None)) is not None:
            heappush(heap, (-first[0], turn, next(number), first[1], them, whole))

    for at, part in enumerate(parts):
        key = (part.profile if part.profile.aggregates else None), part.profile.cell_id  # all that a sum depends on
        if key not in sums:
            sums[key] = sum_of(part.profile, spec, rules.multipliers, low, high, rules.computed_weighers)
        turn = 1 - chance() ** (1 / part.size) if random else at  # distributed as the least of ``size`` random numbers
        push(iter([(weight_bound(part.low, part.high, sums[key]), part)]), turn, sums[key])
    while heap:
        value, turn, _number, heaviest, following, whole = heappop(heap)
        push(following, turn, whole)
        if isinstance(heaviest, Block):
            push(_ordered(heaviest, whole, chance()), turn, whole)
        else:
            yield -value, heaviest


def _ordered(block: Block, whole: WeightSum, chance: float) -> Iterator[_Weighed]:
    """Return an iterator of (weight, host) for the hosts of *block* (a group of similar hosts), or of (upper bound of
    the weights, block) for the smaller blocks in it, greatest first. *whole*: the formula of the weights. *chance*: a
    random number from 0 to 1 that chooses which of several equal first elements comes first."""
    them: Sequence[Block | HostState] = block.parts or block.hosts
    values = [weight_bound(part.low, part.high, whole) for part in block.parts] or weights_of_rows(block.rows, whole)
    ordered = sorted(zip(values, them, strict=True), key=itemgetter(0), reverse=True)
    same = next((at for at, weighed in enumerate(ordered) if weighed[0] != ordered[0][0]), len(ordered))
    turn = int(chance * same)
    return iter(ordered[turn:same] + ordered[:turn] + ordered[same:])
