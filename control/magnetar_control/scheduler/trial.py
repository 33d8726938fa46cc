# SPDX-License-Identifier: GPL-3.0-or-later
"""Placements that are only tried: the scheduler chooses, and the claims are made in memory and taken back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from magnetar_control.store.claims.inventories import InventoryRow, available_amount
from magnetar_control.store.claims.nic_bandwidth import (
    RequestedResources,
    apply_bandwidth_places,
    bandwidth_placements,
)
from magnetar_control.store.hosts.room_rows import GroupOfHosts

from .choose import best_hosts, explain_refusals
from .host_state import SavedClaims
from .hosts import HostStates
from .request_spec import RequestSpec

#: The inventories of hosts by name and resource class.
Inventories = Mapping[str, Mapping[str, InventoryRow]]


#: Number of hosts that are kept for servers of one shape.
CANDIDATES = 64


def shape_of_spec(spec: RequestSpec) -> Hashable:
    """Return a cache key for the request *spec*. Requests with equal keys fit on the same hosts, apart from the hosts
    that each request excludes in its field ``ignored``. Only for requests without server group, hints and custom
    resource classes."""
    return (spec.project_id, spec.amounts, spec.numa, spec.flavor_name, spec.vcpus, _sorted_items(spec.extra_specs),
            _sorted_items(spec.image), spec.machine, spec.image_id, spec.availability_zone, spec.cell_id,
            spec.volume_hosts, spec.needs_ovn, _sorted_items(spec.devices))


def _sorted_items(mapping: Mapping[str, Any]) -> Hashable:
    return tuple(sorted((name, str(value)) for name, value in mapping.items()))


class Trial:
    """A simulation that places servers on the hosts *states* in memory. It changes the claims in *states*, so no other
    code may use *states*. *inventories*: the inventories of custom resource classes by host."""

    def __init__(self, states: HostStates, inventories: Inventories) -> None:
        self.states, self.inventories = states, inventories
        self._kept: dict[str, SavedClaims] = {}
        self._taken = Counter[tuple[str, str]]()  # by host and resource class
        self._joined: dict[str, Counter[str]] = {}  # servers placed in a group, by host
        self._refused: set[Hashable] = set()  # shapes without a host: claims only grow until ``undo``
        self._candidates: dict[Hashable, deque[str]] = {}  # the best hosts of each shape

    def place(self, spec: RequestSpec, group: GroupOfHosts | None = None) -> str | None:
        """Return the name of the host that the scheduler would choose for the server of *spec*, and count the server's
        claims on this host from now on; ``None`` if no host passes the filters. *group*: the server's group."""
        spec = self.current_spec(spec, group)
        plain = spec.group is None and not spec.resources and not spec.hints
        shape = shape_of_spec(spec) if plain else None
        if shape in self._refused:
            return None
        name = self._known_host(shape, spec) if shape is not None else None
        if name is None:
            name = next((candidate.host for candidate in best_hosts(self.states, spec)), None)
        if name is not None:
            self._claim(spec, name)
        elif shape is not None:
            self._refused.add(shape)
        return name

    def _known_host(self, shape: Hashable, spec: RequestSpec) -> str | None:
        """Return a host that was among the best for an earlier server with the same *shape* (see ``shape_of_spec``), if
        it still passes all filters; otherwise ``None``. Servers with equal shapes get the best hosts in turn. Checking
        one host is a hundred times faster than a full choice."""
        if shape not in self._candidates:
            unbound = replace(spec, ignored=frozenset())
            self._candidates[shape] = deque(
                candidate.host for candidate in best_hosts(self.states, unbound, CANDIDATES))
        names, filters = self._candidates[shape], self.states.filters_for(spec)
        for _turn in range(len(names)):
            names.rotate(-1)
            host = self.states.hosts[names[-1]]
            if all(host_filter.passes(host, spec) for host_filter in filters):
                return host.name
        return None

    def why_not(self, spec: RequestSpec, group: GroupOfHosts | None = None) -> str:
        """Return a text that says which filters refuse the hosts for the server of *spec*, and which requirements the
        best of the refused hosts does not meet. *group*: the server's group."""
        return explain_refusals(self.states, self.current_spec(spec, group)).explanation

    def undo(self) -> None:
        """Revert all claims of this simulation."""
        for name, kept in self._kept.items():
            self.states.restore_claims(name, kept)
        self._kept.clear()
        self._taken.clear()
        self._joined.clear()
        self._refused.clear()

    def current_spec(self, spec: RequestSpec, group: GroupOfHosts | None) -> RequestSpec:
        """Return a copy of *spec*; two fields of the copy take the simulated claims into account: the hosts of the
        other members of *group*, and the unclaimed amounts of the requested resource classes on each host."""
        if group is not None:
            members = Counter(host for server, hosts in group.hosts.items() if server != spec.server_id
                              for host in hosts) + self._joined.get(group.group.id, Counter())
            spec = replace(spec, group=replace(group.group, hosts=members))
        return replace(spec, offers=self._offers(spec)) if spec.resources else spec

    def _offers(self, spec: RequestSpec) -> dict[str, dict[str, int]]:
        """Return the unclaimed amounts of the resource classes in *spec* after the simulated claims, as {host:
        {resource class: amount}}."""
        beginnings = tuple(f"{kind}:{nic.network}/" for nic in spec.nics if nic.devices for kind in nic.amounts)
        offers: dict[str, dict[str, int]] = {}
        for host, rows in self.inventories.items():
            for name, row in rows.items():
                if name in spec.resources or name.startswith(beginnings):
                    left = available_amount(row, spec.resources.get(name, row.min_unit)) - self._taken[host, name]
                    offers.setdefault(host, {})[name] = max(0, left)
        return offers

    def _claim(self, spec: RequestSpec, name: str) -> None:
        if name not in self._kept:
            self._kept[name] = self.states.save_claims(name)
        self.states.used(name, spec.amounts, spec.flavor_name, spec.numa, spec.devices)
        self.states.busy(name, self._kept[name].io_ops)  # the servers are not there at the same moment
        if spec.group is not None:
            self._joined.setdefault(spec.group.id, Counter())[name] += 1
        if spec.resources:
            places = next(bandwidth_placements(spec.nics, spec.offers.get(name, {}), spec.isolate), {})
            desired = RequestedResources(spec.resources, spec.devices, spec.nics, spec.isolate)
            for kind, amount in apply_bandwidth_places(desired, places)[0].items():
                self._taken[name, kind] += amount
