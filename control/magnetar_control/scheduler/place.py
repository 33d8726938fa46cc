# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose a host and claim it: the memory proposes, the database decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Claim
from magnetar_control.store.claims.claim_at_once import claim_at_once
from magnetar_control.store.claims.nic_bandwidth import WantedResources
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import aggregates, hosts
from magnetar_core import bandwidth
from magnetar_core.hardware import pci

from .choose import Candidate, best, choose
from .hosts import HostStates
from .request_spec import RequestSpec, offered, wanted_of

#: Candidates of one choice. When a claim is refused, the next is tried before choosing again.
CANDIDATES = 3
#: How often a host may look free and refuse the claim before it is ignored.
PATIENCE = 5


def place(database: Database, states: HostStates, spec: RequestSpec, *, map_cell: bool = True,
          random: Random | None = None) -> Candidate:
    """Choose a host and claim it for the spec's server; with *map_cell*, map the server to the host's cell. Raises
    ``NoValidHost``, with nothing claimed. A host whose claim is refused is read and weighed again. Before
    ``NoValidHost``, all hosts are read again: one may have been enabled, or put into a zone, a moment ago. Call
    ``allocations.held`` first when an earlier attempt may have claimed."""
    refused: Counter[str] = Counter()
    looked = False
    while True:
        candidates = (choose if looked else best)(states, spec, CANDIDATES, random=random)
        if not candidates:
            looked = True
            read_hosts(database, states)
            spec = offered(database, spec)
            continue
        for found in candidates:
            if _claimed(database, spec, found, map_cell):
                states.used(found.host, spec.amounts, spec.flavor_name, spec.numa, spec.devices)
                return found
            read_host(database, states, found.host)
            states.refused(found.host)
            refused[found.host] += 1
            if refused[found.host] == PATIENCE:
                spec = replace(spec, ignored=spec.ignored | {found.host})
        if spec.group:
            with database.read() as connection:
                spec = replace(spec, group=hosts.group_of(connection, spec.server_id))
        spec = offered(database, spec)


def place_all(database: Database, states: HostStates, requests: Sequence[RequestSpec], *,
              random: Random | None = None) -> dict[str, Candidate]:
    """As ``place``, for several servers without claims and groups, claimed in one transaction. Returns the claimed
    hosts by server uuid; nothing is claimed for the other servers (those that ask for custom resource classes are among
    them), and ``place`` finds out why. When this raises, it may have claimed: see ``allocations.held``."""
    found = []
    for spec in requests:
        if spec.resources:
            continue
        for one in best(states, spec, random=random):  # there may be none, as far as the memory knows
            states.used(one.host, spec.amounts, spec.flavor_name, spec.numa, spec.devices)
            found.append((spec, one))
    if not found:
        return {}
    if _all_claimed(database, found):
        return {spec.server_id: one for spec, one in found}
    for spec, one in found:
        states.unused(one.host, spec.numa, spec.devices)
    for name in {one.host for _spec, one in found}:
        read_host(database, states, name)
    return {}


def _all_claimed(database: Database, found: Sequence[tuple[RequestSpec, Candidate]]) -> bool:
    if len(found) == 1:
        return _claimed(database, *found[0], map_cell=True)
    claims = [_claim(*one) for one in found]
    try:
        with database.write() as connection:
            if not allocations.claim_all(connection, claims):
                raise _Refused
    except _Refused:
        return False
    return True


class _Refused(Exception):
    """Another conductor was faster; nothing is claimed."""


def _claim(spec: RequestSpec, found: Candidate) -> Claim:
    return Claim(spec.server_id, spec.project_id, found.host_id, found.cell_id, spec.amounts, spec.devices)


def _claimed(database: Database, spec: RequestSpec, found: Candidate, map_cell: bool) -> bool:
    at_once = database.kind == "postgresql" and map_cell and not (spec.devices or spec.resources or spec.group)

    def once() -> bool:
        if at_once:
            with database.single() as connection:
                done = claim_at_once(connection, _claim(spec, found), anyway=spec.forced)
            if done is not None:
                return done
        with database.write() as connection:
            return allocations.claim(
                connection, spec.server_id, spec.server_id, found.host_id, spec.amounts, devices=spec.devices,
                resources=spec.resources, nics=spec.nics, isolate=spec.isolate, project_id=spec.project_id,
                cell_id=found.cell_id if map_cell else None, group=spec.group, anyway=spec.forced)
    return database.retried(once)


def hold_ports(database: Database, server_id: str, host_id: str, made_of: tuple[Mapping[str, Any], Mapping[str, Any]],
               nics: Callable[[], Iterable[Mapping[str, Any]]]) -> bool:
    """Have a server (*made_of* a flavor and an image) hold what the ports ask that it has now (*nics*), beside all else
    that it holds of its host. ``False``, and nothing changed, where the host has not enough left."""
    def wanted() -> WantedResources:
        return wanted_of(*made_of, list(nics()))._replace(isolate=False)  # Nova asks for one port alone then

    def once() -> bool:
        with database.write() as connection:
            return allocations.set_resources(connection, server_id, host_id, wanted)
    return database.retried(once)


def in_words(nic: Mapping[str, Any]) -> str:
    """What a NIC asks of its host, to be read."""
    found = [bandwidth.in_words(nic["resources"])] if nic.get("resources") else []
    return " and ".join([*found, *(f"a free {pci.in_words(name, one=True)}" for name in nic.get("devices") or ())])


def read_host(database: Database, states: HostStates, name: str) -> None:
    """Read one host again."""
    with database.read() as connection:
        row = hosts.show(connection, name)
    if row is not None:
        states.changed(row)
    else:
        states.gone(name)


def read_hosts(database: Database, states: HostStates) -> None:
    """Read all hosts and aggregates again."""
    with database.read() as connection:
        rows, groups = hosts.every(connection), aggregates.every(connection)
    states.refresh(rows, groups)
