# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose a host and claim it: the memory proposes, the database decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from magnetar_control.store import aggregates, allocations, hosts
from magnetar_control.store.database import Database

from .choose import Candidate, NoValidHost, choose
from .hosts import HostStates
from .request_spec import RequestSpec
from .rules import Rules

#: Candidates of one choice. When a claim is refused, the next is tried before choosing again.
CANDIDATES = 3
#: How often a host may look free and refuse the claim before it is ignored.
PATIENCE = 5


def place(database: Database, states: HostStates, spec: RequestSpec, *, consumer_id: str | None = None,
          map_cell: bool = True, rules: Rules | None = None, random: Random | None = None) -> Candidate:
    """Choose a host and claim it for the spec's server (or for *consumer_id*); with *map_cell*, map the server to the
    host's cell. Raises ``NoValidHost``, with nothing claimed.

    A host whose claim is refused is read again from the database and weighed again. Before ``NoValidHost`` is raised,
    all hosts are read again: one may have been enabled, or put into a zone, a moment ago. Call ``allocations.held``
    first when an earlier attempt may have claimed.
    """
    refused: Counter[str] = Counter()
    looked = False
    while True:
        try:
            candidates = choose(states, spec, CANDIDATES, rules=rules, random=random)
        except NoValidHost:
            if looked:
                raise
            looked = True
            _look_at_all(database, states)
            continue
        for found in candidates:
            if _claimed(database, spec, found, consumer_id or spec.server_id, map_cell):
                states.used(found.host, spec.amounts)
                return found
            _look_again(database, states, found.host)
            refused[found.host] += 1
            if refused[found.host] == PATIENCE:
                spec = replace(spec, ignored=spec.ignored | {found.host})
        if spec.group:
            with database.read() as connection:
                spec = replace(spec, group=hosts.group_of(connection, spec.server_id))


def place_all(database: Database, states: HostStates, requests: Sequence[RequestSpec], *,
              random: Random | None = None) -> dict[str, Candidate]:
    """As ``place``, for several servers without claims and groups, claimed in one transaction. Returns the claimed
    hosts by server uuid; nothing is claimed for the other servers, and ``place`` finds out why. When this raises, it
    may have claimed: see ``allocations.held``."""
    found = []
    for spec in requests:
        try:
            [one] = choose(states, spec, random=random)
        except NoValidHost:  # as far as the memory knows
            continue
        states.used(one.host, spec.amounts)
        found.append((spec, one))
    if found and not _all_claimed(database, found):
        for name in {one.host for _spec, one in found}:
            _look_again(database, states, name)
        return {}
    return {spec.server_id: one for spec, one in found}


class _Refused(Exception):
    """Another conductor was faster; nothing is claimed."""


def _all_claimed(database: Database, found: Sequence[tuple[RequestSpec, Candidate]]) -> bool:
    try:
        with database.write() as connection:
            if not allocations.claim_all(connection, [
                    allocations.Claim(spec.server_id, spec.project_id, one.host_id, one.cell_id, spec.amounts)
                    for spec, one in found]):
                raise _Refused
    except _Refused:
        return False
    return True


def _claimed(database: Database, spec: RequestSpec, found: Candidate, consumer_id: str, map_cell: bool) -> bool:
    def once() -> bool:
        with database.write() as connection:
            return allocations.claim(
                connection, consumer_id, spec.server_id, found.host_id, spec.amounts,
                project_id=spec.project_id, cell_id=found.cell_id if map_cell else None, group=spec.group,
                anyway=False)
    return database.retried(once)


def _look_again(database: Database, states: HostStates, name: str) -> None:
    with database.read() as connection:
        row = hosts.show(connection, name)
    if row is not None:
        states.changed(row)
    else:
        states.gone(name)


def _look_at_all(database: Database, states: HostStates) -> None:
    with database.read() as connection:
        rows, groups = hosts.every(connection), aggregates.every(connection)
    states.refresh(rows, groups)


__all__ = ["NoValidHost", "place", "place_all"]
