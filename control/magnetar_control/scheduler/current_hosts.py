# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts as the databases have them now, for questions to the scheduler outside of conductors."""

from __future__ import annotations

from functools import partial

from magnetar_control.settings import Settings
from magnetar_control.store.hosts import aggregates, cell_look, hosts
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import Store

from .hosts import HostStates
from .rules import scheduler_rules


def read_current_hosts(store: Store, settings: Settings) -> HostStates:
    """Return the scheduler's view of all hosts, read from the API database and all cells. The hosts of a cell whose
    database does not answer count as down. Failed builds are not included, because only conductors count them, in
    memory."""
    states = HostStates(settings.default_availability_zone, scheduler_rules(settings))
    with store.api.read() as connection:
        rows, groups = hosts.fetch_host_rows(connection), aggregates.fetch_aggregate_rows(connection)
    states.refresh(rows, groups)
    read_snapshot = partial(cell_look.read_cell_hosts, settings.host_down_after, states.rules.looks_at_flavors)
    cell_states = scatter_gather(store, read_snapshot, settings.cell_timeout)
    for row in rows:
        states.seen(row.name, cell_states.get(row.cell_id) or cell_look.NOTHING)
    return states
