# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a balance: a few live migrations that even out the load of hosts, or that empty one host.

Everything here is arithmetic on given figures; docs/explanation/balance.md explains the rules. The load of a host is
the greater of two shares: CPUs in use of all CPUs, and memory in use of all memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

#: Servers with less than this share of their host's load are not worth a migration to even out hosts.
LEAST_SHARE = 0.01
#: Pairs of server and host that are tried for one move.
TRIED = 200
#: Digits of loads that are compared, so that equal figures do not differ by rounding.
DIGITS = 6


@dataclass(frozen=True)
class LoadedHost:
    """A host with its measured use of CPUs and memory. ``gives``: whether servers may be moved away from it. ``takes``:
    whether servers may be moved to it."""

    name: str
    cpus: float
    memory_mb: float
    cpus_used: float
    memory_mb_used: float
    gives: bool = True
    takes: bool = True

    @property
    def cpu_load(self) -> float:
        """The share of the CPUs in use, from 0 to 1."""
        return max(0.0, self.cpus_used / self.cpus)

    @property
    def memory_load(self) -> float:
        """The share of the memory in use, from 0 to 1."""
        return max(0.0, self.memory_mb_used / self.memory_mb)

    @property
    def load(self) -> float:
        """The greater of ``cpu_load`` and ``memory_load``, rounded."""
        return round(max(self.cpu_load, self.memory_load), DIGITS)

    def changed_by(self, server: LoadedServer, sign: int) -> LoadedHost:
        """Return a copy of the host with the usage of *server* added (*sign* 1) or subtracted (*sign* -1)."""
        return replace(self, cpus_used=self.cpus_used + sign * server.cpus_used,
                       memory_mb_used=self.memory_mb_used + sign * server.memory_mb_used)


@dataclass(frozen=True)
class LoadedServer:
    """A server with its measured use of CPUs and memory. ``stays``: the reason why the server must not be moved; "" if
    it may be moved."""

    id: str
    name: str
    host: str
    cpus_used: float
    memory_mb_used: float
    stays: str = ""


class Move(NamedTuple):
    """A proposed live migration. ``reason``: a text with the loads of source and target before and after the move."""

    server: LoadedServer
    source: str
    target: str
    reason: str


class BalanceRules(NamedTuple):
    """The thresholds for proposing live migrations. A load is the used share of a host's CPUs or memory, from 0 to 1.

    Servers are moved away from a host when its load is above *least_load* and more than *start* above the mean of all
    hosts, until its load is at most *stop* above the mean. Each move must lower the load of the more loaded of its two
    hosts by at least *gain*, and must leave the load of its target at most *ceiling*. *moves*: the greatest number of
    moves; ``None`` for no limit.
    """

    moves: int | None = 10
    start: float = 0.15
    stop: float = 0.05
    gain: float = 0.03
    least_load: float = 0.4
    ceiling: float = 0.85


class Stay(NamedTuple):
    """A host or server for which no move was found, and the *reason*. A host: it is overloaded, and no server is moved
    away from it. A server: it stays on a host that must be emptied. ``name``: the name of the host or server."""

    name: str
    reason: str


@dataclass
class BalancePlan:
    """Proposed moves in their order. ``before``, ``after``: all hosts by name, with their usage before and after the
    moves. ``stays``: overloaded hosts and servers for which no move was found."""

    before: Mapping[str, LoadedHost]
    after: dict[str, LoadedHost]
    moves: list[Move] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)


#: Returns why the scheduler does not allow a move of a server to a host, and "" if it does. In that case the move
#: counts for all later questions.
MoveCheck = Callable[[LoadedServer, str], str]


def plan_balance(hosts: Sequence[LoadedHost], servers: Sequence[LoadedServer], rules: BalanceRules,
                 check: MoveCheck) -> BalancePlan:
    """Return a plan of moves that bring the loads of the hosts nearer to their mean, within *rules*. A host is never
    both source and target in a plan. *check*: takes a server and the name of a target, and returns the scheduler's
    reason against the move; "" if the scheduler allows the move. In this case, later calls of *check* count the server
    on the target."""
    planner = _Planner(hosts, servers, rules, check)
    while planner.may_go_on() and (source := planner.next_source()) is not None:
        planner.relieve(source)
    return planner.plan


def plan_freeing(hosts: Sequence[LoadedHost], servers: Sequence[LoadedServer], rules: BalanceRules, check: MoveCheck,
                 host: str) -> BalancePlan:
    """Return a plan of moves that empties *host* as far as possible. Servers with the most memory are moved first, each
    to the host that has the lowest load after the move. Servers that cannot be moved are in the plan's ``stays``.
    *rules*, *check*: as in ``plan_balance``."""
    planner = _Planner(hosts, servers, rules, check)
    for server in sorted(planner.servers.get(host, ()), key=lambda server: (-server.memory_mb_used, server.id)):
        if server.stays:
            planner.plan.stays.append(Stay(server.name, server.stays))
        elif planner.may_go_on():
            planner.free_from(server)
    return planner.plan


class _Planner:
    """The builder of a plan: it adds one move after the other."""

    def __init__(self, hosts: Sequence[LoadedHost], servers: Sequence[LoadedServer], rules: BalanceRules,
                 check: MoveCheck) -> None:
        self.rules, self.check = rules, check
        before = {host.name: host for host in hosts}
        self.plan = BalancePlan(before, dict(before))
        loads = [host.load for host in hosts if host.gives or host.takes]
        self.mean = sum(loads) / len(loads) if loads else 0.0
        self.servers: dict[str, list[LoadedServer]] = {}
        for server in servers:
            self.servers.setdefault(server.host, []).append(server)
        self._givers: set[str] = set()
        self._takers: set[str] = set()
        self._done: set[str] = set()  # hosts that cannot give more

    def may_go_on(self) -> bool:
        """Return whether the plan may have another move (``rules.moves``)."""
        return self.rules.moves is None or len(self.plan.moves) < self.rules.moves

    def next_source(self) -> LoadedHost | None:
        """Return the most loaded of the hosts from which a server should be moved away; ``None`` if there is no such
        host."""
        rules = self.rules
        sources = [host for host in self.plan.after.values()
                   if host.gives and host.name not in self._done | self._takers and host.load > rules.least_load
                   and host.load > self.mean + (rules.stop if host.name in self._givers else rules.start)]
        return max(sources, key=lambda host: (host.load, host.name), default=None)

    def relieve(self, source: LoadedHost) -> None:
        """Add the best move away from *source* that the scheduler allows, among the best ``TRIED`` moves. If the
        scheduler allows none of them, do not choose *source* again. In this case, also add *source* to the plan's
        ``stays`` if no server was moved away from it before."""
        refusal = ""
        for server, target in self._choices(source)[:TRIED]:
            if not (why := self.check(server, target.name)):
                self._add(server, source, target)
                return
            refusal = refusal or f"The best move, {server.name} to {target.name}, is not allowed: {why}"
        self._done.add(source.name)
        if source.name not in self._givers:
            self.plan.stays.append(Stay(source.name, refusal or self._why_none(source)))

    def _choices(self, source: LoadedHost) -> list[tuple[LoadedServer, LoadedHost]]:
        """Return the useful moves away from *source* as (server, target), best first. A move is useful if it keeps the
        limits in ``rules``, and leaves the target's load at most ``rules.start`` above the mean. The best move most
        lowers the load of the more loaded of the two hosts (in whole percentage points). Among equal moves, a server
        with less memory to copy comes first."""
        rules, choices = self.rules, []
        highest = min(rules.ceiling, round(self.mean + rules.start, DIGITS))
        targets = self._targets(source)
        for server in self.servers.get(source.name, ()):
            if server.stays or _share(server, source) < LEAST_SHARE:
                continue
            rest = source.changed_by(server, -1).load
            for target in targets:
                load = target.changed_by(server, 1).load
                gain = round(source.load - max(rest, load), DIGITS)
                if load <= highest and gain >= rules.gain:
                    choices.append((-round(gain, 2), server.memory_mb_used, target.load, server.id, target.name,
                                    server, target))
        return [choice[-2:] for choice in sorted(choices, key=lambda choice: choice[:5])]

    def _targets(self, source: LoadedHost) -> list[LoadedHost]:
        return [host for host in self.plan.after.values()
                if host.takes and host.name != source.name and host.name not in self._givers]

    def _why_none(self, source: LoadedHost) -> str:
        staying = [server for server in self.servers.get(source.name, ()) if server.stays]
        if not self._targets(source):
            return "No other host may take servers."
        text = "No single move makes the loads more even."
        return f"{text} {len(staying)} servers stay, such as {staying[0].name}: {staying[0].stays}" if staying else text

    def free_from(self, server: LoadedServer) -> None:
        """Add a move of *server* to the host that has the lowest load after the move. Only the best ``TRIED`` hosts are
        checked. If the scheduler refuses these hosts, or their load would be above ``rules.ceiling``, add the reason to
        the plan's ``stays``."""
        source, why = self.plan.after[server.host], "No other host may take servers."
        after = sorted((host.changed_by(server, 1).load, host.name, host) for host in self._targets(source))
        for load, name, target in after[:TRIED]:
            if load > self.rules.ceiling:
                why = f"On any host that takes it the load would be above {self.rules.ceiling:.0%}."
            elif not (why := self.check(server, name)):
                self._add(server, source, target)
                return
        self.plan.stays.append(Stay(server.name, why))

    def _add(self, server: LoadedServer, source: LoadedHost, target: LoadedHost) -> None:
        rest, filled = source.changed_by(server, -1), target.changed_by(server, 1)
        self.plan.moves.append(Move(server, source.name, target.name, (
            f"{source.name} {source.load:.0%} -> {rest.load:.0%}, {target.name} {target.load:.0%} -> {filled.load:.0%} "
            f"({'memory' if source.memory_load > source.cpu_load else 'CPU'} of {source.name}; mean {self.mean:.0%})")))
        self.plan.after |= {source.name: rest, target.name: filled}
        self.servers[source.name].remove(server)
        self._givers.add(source.name)
        self._takers.add(target.name)


def _share(server: LoadedServer, host: LoadedHost) -> float:
    """Return the load that *server* alone causes or would cause on *host*: the greater of its shares of the host's CPUs
    and memory."""
    return max(server.cpus_used / host.cpus, server.memory_mb_used / host.memory_mb)
