# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice and claim of a host: the scheduler chooses from the hosts in memory, and a claim in the database decides
whether the server fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from magnetar_control.documents import FlavorOfServer, ImageOfServer, ServerNic
from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Claim, claim_by_single_statement
from magnetar_control.store.claims.nic_bandwidth import RequestedResources
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import aggregates, hosts
from magnetar_core import bandwidth
from magnetar_core.hardware import pci

from .choose import Candidate, best_hosts, choose_hosts
from .hosts import HostStates
from .request_spec import RequestSpec, requested_resources, with_current_offers

#: Number of candidates of one choice. When a claim is refused, the next is tried before the scheduler chooses again.
CANDIDATES = 3
#: Number of refused claims after which a host is ignored, even if it looks free.
PATIENCE = 5
#: Number of changed hosts above which all hosts are read.
MANY = 100


def place_server(database: Database, states: HostStates, spec: RequestSpec, *, map_cell: bool = True,
                 random: Random | None = None) -> Candidate:
    """Choose a host for the server of *spec*, claim the server's resources there in the database, and return the host.
    With *map_cell*, also map the server to the host's cell.

    If the database refuses the claim, read this host again, and choose again. If no host passes the filters, read all
    hosts again, because a host may just have been enabled or added to a zone. If still no host passes, raise
    ``NoValidHost``; nothing is claimed then. If an earlier attempt may have claimed a host, look for this claim with
    ``allocations.fetch_server_claims`` before you call this function. *random*: as in ``best_hosts``.
    """
    refused: Counter[str] = Counter()
    looked = False
    while True:
        candidates = (choose_hosts if looked else best_hosts)(states, spec, CANDIDATES, random=random)
        if not candidates:
            looked = True
            read_hosts(database, states)
            spec = with_current_offers(database, spec)
            continue
        for candidate in candidates:
            if _claimed(database, spec, candidate, map_cell):
                states.used(candidate.host, spec.amounts, spec.flavor_name, spec.numa, spec.devices)
                return candidate
            read_host(database, states, candidate.host)
            states.refused(candidate.host)
            refused[candidate.host] += 1
            if refused[candidate.host] == PATIENCE:
                spec = replace(spec, ignored=spec.ignored | {candidate.host})
        if spec.group:
            with database.read() as connection:
                spec = replace(spec, group=hosts.fetch_scheduling_group(connection, spec.server_id))
        spec = with_current_offers(database, spec)


def place_servers(database: Database, states: HostStates, requests: Sequence[RequestSpec], *,
                  random: Random | None = None) -> dict[str, Candidate]:
    """Choose a host for each server of *requests*, and claim the resources of all servers in one transaction. The
    servers must not have claims or server groups. *random*: as in ``best_hosts``.

    Return the chosen hosts by uuid of the server. Nothing is claimed for a server that is missing in the result, such
    as one with custom resource classes: call ``place_server`` for it. If this raises an error, the claims may have been
    committed: see ``allocations.fetch_server_claims``.
    """
    placements = []
    for spec in requests:
        if spec.resources:
            continue
        for candidate in best_hosts(states, spec, random=random):  # there may be none among the hosts in memory
            states.used(candidate.host, spec.amounts, spec.flavor_name, spec.numa, spec.devices)
            placements.append((spec, candidate))
    if not placements:
        return {}
    if _all_claimed(database, placements):
        return {spec.server_id: candidate for spec, candidate in placements}
    for spec, candidate in placements:
        states.unused(candidate.host, spec.numa, spec.devices)
    for name in {candidate.host for _spec, candidate in placements}:
        read_host(database, states, name)
    return {}


def _all_claimed(database: Database, placements: Sequence[tuple[RequestSpec, Candidate]]) -> bool:
    if len(placements) == 1:
        return _claimed(database, *placements[0], map_cell=True)
    claims = [_claim(*placement) for placement in placements]
    try:
        with database.write() as connection:
            if not allocations.claim_for_servers(connection, claims):
                raise _Refused
    except _Refused:
        return False
    return True


class _Refused(Exception):
    """The error that rolls a transaction back because a claim in it was refused: another conductor has claimed the
    resources first."""


def _claim(spec: RequestSpec, candidate: Candidate) -> Claim:
    return Claim(spec.server_id, spec.project_id, candidate.host_id, candidate.cell_id, spec.amounts, spec.devices)


def _claimed(database: Database, spec: RequestSpec, candidate: Candidate, map_cell: bool) -> bool:
    at_once = database.kind == "postgresql" and map_cell and not (spec.devices or spec.resources or spec.group)

    def once() -> bool:
        if at_once:
            with database.single() as connection:
                done = claim_by_single_statement(connection, _claim(spec, candidate), ignore_disabled=spec.forced)
            if done is not None:
                return done
        with database.write() as connection:
            return allocations.claim_host_resources(
                connection, spec.server_id, spec.server_id, candidate.host_id, spec.amounts, devices=spec.devices,
                resources=spec.resources, nics=spec.nics, isolate=spec.isolate, project_id=spec.project_id,
                cell_id=candidate.cell_id if map_cell else None, group=spec.group, ignore_disabled=spec.forced)
    return database.retried(once)


def hold_ports(database: Database, server_id: str, host_id: str, made_of: tuple[FlavorOfServer, ImageOfServer],
               nics: Callable[[], Iterable[ServerNic]]) -> bool:
    """Change a server's claim on its host to include the resources that its NICs request now. *made_of*: (flavor,
    image) of the server. *nics*: returns the server's NICs; it is called within the transaction. Return ``False``,
    without a change, if the host has too few resources left."""
    def wanted() -> RequestedResources:
        return requested_resources(*made_of, list(nics()))._replace(isolate=False)  # Nova requests one port alone then

    def once() -> bool:
        with database.write() as connection:
            return allocations.set_claimed_resources(connection, server_id, host_id, wanted)
    return database.retried(once)


def describe_nic_needs(nic: Mapping[str, Any]) -> str:
    """Return a text for users about the resources that a NIC requests of its host."""
    needs = [bandwidth.describe_bandwidth(nic["resources"])] if nic.get("resources") else []
    return " and ".join([*needs, *(f"a free {pci.describe_devices(name, single=True)}" for name in nic.get("devices")
                                   or ())])


def read_host(database: Database, states: HostStates, name: str) -> None:
    """Read the host *name* again from the database into *states*; remove it from *states* if it no longer exists."""
    with database.read() as connection:
        row = hosts.fetch_host_row(connection, name)
    if row is not None:
        states.changed(row)
    else:
        states.gone(name)


def read_hosts(database: Database, states: HostStates) -> None:
    """Read all hosts and aggregates again from the database into *states*. Of each host, first only a ``HostSummary``
    is read: a few columns that show whether the host has changed. Unchanged hosts are not read completely."""
    with database.read() as connection:
        assumed, summaries = states.take_assumed(), hosts.fetch_host_summaries(connection)
        changed = [row for row in summaries if row.name in assumed or states.summaries.get(row.name) != row]
        ids = None if len(changed) > MANY else [row.id for row in changed]
        rows = hosts.fetch_host_rows(connection, ids=ids) if changed else []
        groups = aggregates.fetch_aggregate_rows(connection)
    states.refresh(rows, groups, {row.name for row in summaries})
    states.summaries.update({row.name: row for row in changed})
