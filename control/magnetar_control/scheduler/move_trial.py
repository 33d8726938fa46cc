# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves that are only tried: each is checked by the scheduler's filters, and counts for the next one, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from magnetar_control.store.claims.allocations import RESOURCES

from .choose import best_hosts, explain_refusals
from .hosts import HostStates
from .room import HostRoom, PlacedServer, check_host_room
from .trial import Inventories, Trial


class MoveTrial(Trial):
    """A simulation of moves of servers between the hosts *states*, in memory. ``undo`` reverts the placements that only
    try whether the servers of a failed host would fit (``place``), but not the moves (``move``). *servers_by_host*: the
    servers on each host; each simulated move changes the simulation's copy."""

    def __init__(self, states: HostStates, inventories: Inventories,
                 servers_by_host: Mapping[str, Sequence[PlacedServer]]) -> None:
        super().__init__(states, inventories)
        self.servers_by_host = {host: list(servers) for host, servers in servers_by_host.items()}
        self._moved = Counter[tuple[str, str]]()  # amounts of resource classes that moves have changed

    def move(self, server: PlacedServer, target: str) -> str:
        """Return the reason why the scheduler refuses a move of *server* to the host *target*. If the scheduler allows
        the move, return "", and count the server on *target* from now on."""
        spec = self.current_spec(replace(server.spec, host=target, volume_hosts=None), server.group)
        if not best_hosts(self.states, spec):
            return explain_refusals(self.states, spec).explanation
        source, before = str(server.row.host), self._taken.copy()
        self._claim(spec, target)
        self._moved.update(self._taken)
        self._moved.subtract(before)
        self._release(server, source)
        self._kept.pop(target)
        self._refused.clear()
        self._candidates.clear()
        if server.group is not None:
            self._joined.clear()
            server.group.hosts[server.row.id] = [target]
        self.servers_by_host[source].remove(server)
        self.servers_by_host.setdefault(target, []).append(
            server._replace(spec=replace(server.spec, ignored=frozenset([target]))))
        return ""

    def _release(self, server: PlacedServer, source: str) -> None:
        """Remove the claims of *server* from its old host *source*. The bandwidth that the server's NICs claim on
        *source* stays claimed, because this simulation does not know which network card provides it."""
        row = self.states.rows[source]
        values = {f"{name}_used": getattr(row.used, name) - amount
                  for name, amount in zip(RESOURCES, server.spec.amounts, strict=True)}
        self.states.changed(row.changed_columns(**values, servers=row.stored.servers - 1))
        for name, amount in server.spec.of_no_nic.items():
            self._taken[source, name] -= amount
            self._moved[source, name] -= amount

    def undo(self) -> None:
        """Revert the placements that only tried whether the servers of a failed host would fit (``place``). The moves
        (``move``) stay."""
        super().undo()
        self._taken.update(self._moved)

    def rooms(self, names: Collection[str]) -> list[HostRoom]:
        """Return for each of the hosts *names* whether all of its servers would fit on other hosts if this host failed
        after the simulated moves."""
        return [check_host_room(self, name, self.servers_by_host.get(name, [])) for name in sorted(names)]
