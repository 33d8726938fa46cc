# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts in memory, arranged so that a choice among 10,000 visits few of them.

Hosts with the same profile (everything that does not change when servers come and go) and about the same load are
grouped into blocks, and blocks into larger blocks. A block knows the minimum and maximum of each number of its hosts,
so most blocks are taken or skipped as a whole (see ``choose``). These bounds are always exact. How similar the hosts of
a block are only affects the speed, so blocks are rearranged only after many changes."""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import orjson

from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.cell_look import CellSnapshot
from magnetar_control.store.hosts.host_row import HostRow, HostSummary
from magnetar_control.store.hosts.shared_disks import find_shared_storage
from magnetar_core.hardware.numa import Needs
from magnetar_core.version import version_number

from . import reserve
from .aggregate_filters import projects_of
from .filters import TENANTS, Filter
from .host_state import FITS, Block, HostState, Profile, Row, SavedClaims
from .request_spec import RequestSpec
from .rules import DEFAULT_RULES, Rules
from .weighers import malformed_multipliers

log = logging.getLogger(__name__)

#: Most hosts of a block without parts, and most parts of a block with parts. These values are the fastest for 10,000
#: hosts.
BLOCK, PARTS = 16, 8
#: Number of changes after which blocks are rearranged, plus one for every two hosts. This takes 0.1 s for 10,000 hosts;
#: no host is chosen meanwhile.
PATIENCE = 256
#: Properties of an agent's ``host`` resource that flavors and images may request.
CAPABILITIES = ("architecture", "cpu_info", "cpu_model", "disk_encryption", "emulated_architectures", "firmware",
                "hypervisor_type", "hypervisor_version", "libvirt_version", "machine_types", "memory_encryption",
                "secure_boot", "tpm_versions", "virt_types")
#: Capabilities that are versions.
VERSIONS = ("hypervisor_version", "libvirt_version")
#: Columns of a host's row that determine its profile; documents as text.
PROFILED = attrgetter("cell_id", "disabled", "cell_disabled", "forced_down", "info", "own_traits")


def can_plug_in(info: Mapping[str, Any], name: str) -> bool:
    """Return whether the host *name* can connect OVN ports: *info*, the report of its agent, shows no problem with OVN
    and an OVN chassis with the host's name."""
    ovn_state = info.get("ovn") or {}
    return ovn_state.get("reason") == "" and ovn_state.get("chassis") == name


class HostStates:
    """The scheduler's view of all hosts, by name, with their database rows (``rows``). Hold ``lock`` to read several
    values consistently.

    A host counts as down until the method ``up`` is called for it. *default_zone*: the availability zone of hosts whose
    aggregates name none. *rules*: the scheduler's settings.
    """

    def __init__(self, default_zone: str = "nova", rules: Rules = DEFAULT_RULES) -> None:
        self.lock, self.default_zone, self.rules = threading.RLock(), default_zone, rules
        self.hosts: dict[str, HostState] = {}
        self._blocks: list[Block] = []  # top-level blocks
        self._open: dict[Profile, Block] = {}  # by profile, the block for new hosts
        self._profiles: dict[bytes, Profile] = {}
        self._up: dict[str, bool] = {}
        self.rows: dict[str, HostRow] = {}
        self._aggregates: dict[str, list[Aggregate]] = {}
        self._projects: set[str] = set()  # projects with aggregates of their own
        self._changes = 0
        #: The summaries that ``read_hosts`` read last (``store.hosts.hosts.fetch_host_summaries``), and the hosts whose
        #: amounts were changed in memory since.
        self.summaries: dict[str, HostSummary] = {}
        self._assumed: set[str] = set()
        #: Hosts whose agents' reports are refused: nothing is requested of them.
        self.refused_hosts: set[str] = set()
        self._all_aggregates: list[Aggregate] = []

    def refresh(self, rows: Iterable[HostRow], aggregates: Iterable[Aggregate] | None = None,
                names: Collection[str] | None = None) -> None:
        """Update hosts from *rows*. Remove the hosts that are missing in *names* (default: the names in *rows*). If
        *aggregates* are given, they replace all aggregates."""
        with self.lock:
            if aggregates is not None and (every := list(aggregates)) != self._all_aggregates:
                self._grouped(every)
                self._all_aggregates = every
            rows = list(rows)
            names = {row.name for row in rows} if names is None else names
            for name in [name for name in self.hosts if name not in names]:
                self.gone(name)
            for row in rows:
                self.changed(row)

    def gone(self, name: str) -> None:
        """Remove a host that no longer exists."""
        with self.lock:
            if host := self.hosts.pop(name, None):
                self._leave(host)
                self.rows.pop(name)
                self._up.pop(name, None)
                self.refused_hosts.discard(name)
                self.summaries.pop(name, None)

    def has_assumed(self) -> bool:
        """Return whether this process has changed the claimed amounts of a host in memory since the last
        ``take_assumed``."""
        return bool(self._assumed)

    def take_assumed(self) -> set[str]:
        """Return the names of the hosts whose claimed amounts this process has changed in memory, and forget that they
        were changed. The caller must read these hosts again, since the database may have other amounts."""
        with self.lock:
            assumed, self._assumed = self._assumed, set()
            return assumed

    def changed(self, row: HostRow, *, strict: bool = False) -> None:
        """Update a host from its database row. If the agent's report in the row cannot be read, log the error, and
        treat the host as one without a report; with *strict*, raise the error instead."""
        try:
            self._change(row)
        except Exception:
            if strict:
                raise
            log.exception("host %s: its saved report is malformed; it counts as none until the agent sends a new one",
                          row.name)
            self._change(row.changed_columns(info="{}"))

    def _change(self, row: HostRow) -> None:
        with self.lock:
            name = row.name
            host = self.hosts.get(name)
            if host is None or host.id != row.id:
                if host is not None:
                    self._leave(host)
                host = self.hosts[name] = HostState(row.id, name)
                host.metrics_weight = self._weight({})
                self.rows.pop(name, None)
            old_row, self.rows[name] = self.rows.get(name), row
            old, new = old_row and old_row.stored, row.stored
            if old is None or old.endpoint != new.endpoint or old.info != new.info:
                host.host_ip = agent_ip_address(row)
            host.totals, host.limits, host.used = row.totals, row.limits, row.used
            host.servers, host.columns = new.servers, row
            if old is not None and (old.servers > new.servers or old.pcpus_used > new.pcpus_used
                                    or old.memory_mb_used > new.memory_mb_used):
                host.numa.freed()
                host.pci.freed()
            if host.counted() != host.numbers:
                self._touch(host)
            if host.block is None or old is None or PROFILED(old) != PROFILED(new):
                self._profiled(host)

    def follow_rules(self, rules: Rules) -> None:
        """Use the scheduler settings *rules* from now on, and update the values of hosts that depend on these
        settings."""
        with self.lock:
            self.rules = rules
            for host in self.hosts.values():
                host.metrics_weight = self._weight(host.metrics)
                self._touch(host)
                self._profiled(host)

    def up(self, name: str, up: bool) -> None:
        """Set whether the host *name* counts as up. This also works before the row of the host is read."""
        with self.lock:
            if up:
                self.refused_hosts.discard(name)
            if self._up.get(name, False) != up:
                self._up[name] = up
                if host := self.hosts.get(name):
                    self._profiled(host)

    def set_refused(self, name: str, *, refused: bool) -> None:
        """Set whether the reports of the host's agent are refused, for example because the agent names another host. A
        refused host counts as down."""
        with self.lock:
            if refused:
                self.refused_hosts.add(name)
                self.up(name, up=False)
            else:
                self.refused_hosts.discard(name)

    def seen(self, name: str, snapshot: CellSnapshot) -> None:
        """Update the host *name* from *snapshot*, which contains the heartbeats and other current data of all hosts of
        its cell."""
        with self.lock:
            heartbeat = snapshot.up.get(name)
            self.up(name, heartbeat is not None)
            if snapshot.refused or self.refused_hosts:
                self.set_refused(name, refused=name in snapshot.refused)
            self.busy(name, snapshot.io_ops.get(name, 0))
            if heartbeat:
                self.save_report(name, heartbeat.get("metrics") or {}, heartbeat.get("images") or ())
            if snapshot.flavors is not None and (host := self.hosts.get(name)):
                host.flavors = frozenset(snapshot.flavors.get(name, ()))

    def used(self, name: str, more: Amounts, flavor: str = "", numa: Needs | None = None,
             devices: Mapping[str, int] = MappingProxyType({})) -> None:
        """Count a server of the flavor named *flavor* on the host *name* in memory: add *more* to the claimed amounts,
        and count its NUMA needs *numa* and its PCI *devices* (number by name). Also count it as a server that is being
        built."""
        with self.lock:
            if host := self.hosts.get(name):
                self._assumed.add(name)
                host.used = Amounts(*(had + n for had, n in zip(host.used, more, strict=True)))
                host.servers += 1
                host.io_ops += 1
                host.flavors |= {flavor}
                host.numa.placed(numa)
                host.pci.placed(devices)
                self._touch(host)

    def unused(self, name: str, numa: Needs | None, devices: Mapping[str, int]) -> None:
        """Undo ``used`` for a server whose claim failed. *numa*, *devices*: as passed to ``used``. The claimed amounts
        are not reverted: the caller must read the host's row again, and call ``changed``."""
        with self.lock:
            if host := self.hosts.get(name):
                host.io_ops = max(0, host.io_ops - 1)
                host.numa.unplaced(numa)
                host.pci.unplaced(devices)
                self._touch(host)

    def save_claims(self, name: str) -> SavedClaims:
        """Return a copy of the host's present claims, to be passed to ``restore_claims``."""
        with self.lock:
            host = self.hosts[name]
            return SavedClaims(host.used, host.servers, host.io_ops, host.flavors, copy(host.numa), copy(host.pci))

    def restore_claims(self, name: str, saved: SavedClaims) -> None:
        """Undo all calls of ``used`` for the host since the call of ``save_claims`` that returned *saved*."""
        with self.lock:
            host = self.hosts[name]
            host.used, host.servers, host.io_ops, host.flavors = saved.used, saved.servers, saved.io_ops, saved.flavors
            host.numa, host.pci = saved.numa, saved.pci
            self._touch(host)

    def refused(self, name: str) -> None:
        """After the database has refused a claim on the host *name*, use the numbers of free PCI devices in its agent's
        last report. Before this call, ``HostPci`` may count all devices as free, because a server has left the host and
        its agent has not reported since."""
        with self.lock:
            if host := self.hosts.get(name):
                host.pci.refused()

    def busy(self, name: str, io_ops: int) -> None:
        """Set how many servers load the disks of the host *name* by their present actions, such as builds and
        migrations (``cell_look.io_ops``). If a server is placed on the host after this call, ``used`` increments this
        number. The next call of this method replaces the number; *io_ops* then includes the placed server."""
        with self.lock:
            host = self.hosts.get(name)
            if host and host.io_ops != io_ops:
                host.io_ops = io_ops
                self._touch(host)

    def save_report(self, name: str, metrics: Mapping[str, float], images: Iterable[str]) -> None:
        """Save *metrics* (value by name) that the agent of the host reports, and the ids of the *images* whose content
        the host has."""
        with self.lock:
            if host := self.hosts.get(name):
                host.metrics, host.images = dict(metrics), frozenset(images)
                if (weight := self._weight(host.metrics)) != host.metrics_weight:
                    host.metrics_weight = weight
                    self._touch(host)

    def _weight(self, metrics: Mapping[str, float]) -> float:
        """Return the number by which the metrics weigher compares a host: the sum of each metric times its ratio in the
        settings. If a metric is missing, return the weight that the settings define for unavailable metrics."""
        options = self.rules.options
        if options.metrics.keys() <= metrics.keys():
            return sum(float(metrics[name]) * ratio for name, ratio in options.metrics.items())
        return options.weight_of_unavailable

    def count_build(self, name: str, well: bool) -> None:
        """Count a build that has ended on the host *name*. *well*: whether the build was successful. A successful build
        resets the count of failed builds, any other build increments it. Also decrement the number that ``busy`` has
        set."""
        with self.lock:
            if host := self.hosts.get(name):
                host.failed_builds = 0 if well else host.failed_builds + 1
                host.io_ops = max(0, host.io_ops - 1)
                self._touch(host)

    def filters_for(self, spec: RequestSpec) -> list[Filter]:
        """Return the filters that may refuse a host for *spec*. If no aggregate is reserved for the server's project,
        leave out the filter for such aggregates (``TENANTS``), unless the settings require an aggregate for each
        project."""
        free = spec.project_id not in self._projects and not self.rules.options.tenants_need_aggregates
        filters = [host_filter for host_filter in self.rules.filters_for(spec)
                   if not (free and host_filter.name == TENANTS)]
        if self.rules.options.reserve_room_to_fail and reserve.claims_more(spec):
            filters.append(reserve.reserve_filter(self.hosts.values()))
        return filters

    def blocks(self) -> list[Block]:
        """Return all top-level blocks: groups of similar hosts that the scheduler can often accept or skip together.
        They contain the current numbers of their hosts, such as free memory, and the minimum and maximum of each
        number. Hold ``lock`` during the call. The call may move hosts to other blocks, so read ``HostState.block`` only
        afterwards."""
        if self._changes > PATIENCE + len(self.hosts) // 2:
            self._arrange()
        return [block.fresh() for block in self._blocks]

    def _grouped(self, aggregates: Iterable[Aggregate]) -> None:
        old_aggregates, self._aggregates, self._projects = self._aggregates, {}, set()
        for aggregate in aggregates:
            if aggregate.hosts and (ignored := malformed_multipliers(
                aggregate.metadata)) and aggregate.metadata not in (
                    old_aggregate.metadata for old_aggregate in old_aggregates.get(aggregate.hosts[0], ())):
                log.warning("aggregate %s: its metadata %s is no finite number, and ignored: the settings count",
                            aggregate.name, ", ".join(ignored))
            self._projects.update(projects_of(aggregate.metadata))
            for name in aggregate.hosts:
                self._aggregates.setdefault(name, []).append(aggregate)
        for name in old_aggregates.keys() | self._aggregates.keys():
            if name in self.hosts and old_aggregates.get(name) != self._aggregates.get(name):
                self._profiled(self.hosts[name])

    def _touch(self, host: HostState) -> None:
        host.numbers = host.counted()
        self._changes += 1
        if host.block:
            host.block.touch()

    def _profiled(self, host: HostState) -> None:
        profile = self._profile(self.rows[host.name])
        if host.block is None or host.profile is not profile:
            self._leave(host)
            host.profile = profile
            host.block = self._block(profile)
            host.block.hosts.append(host)
            host.block.touch()
            self._changes += 1

    def _block(self, profile: Profile) -> Block:
        """Return the block (a group of similar hosts that the scheduler can often accept or skip together) that has
        space for another host of *profile*. If the last block of the profile is full, create a new block."""
        block = self._open.get(profile)
        if block is None or len(block.hosts) >= BLOCK:
            whole = block.whole if block else None
            if whole is None or len(whole.parts) >= PARTS:
                whole = Block(profile)
                self._blocks.append(whole)
            block = self._open[profile] = Block(profile)
            whole.add(block)
        return block

    def _leave(self, host: HostState) -> None:
        if not host.block:
            return
        block, host.block = host.block, None
        block.hosts.remove(host)
        block.touch()
        self._changes += 1
        while not (block.hosts or block.parts):  # remove blocks that have become empty
            if self._open.get(block.profile) is block:
                del self._open[block.profile]
            if block.whole is None:
                self._blocks.remove(block)
                break
            block.whole.parts.remove(block)
            block = block.whole

    def _profile(self, row: HostRow) -> Profile:
        name, info = row.name, row.info
        self.hosts[name].disk_storage, self.hosts[name].reaches_disk_storage = find_shared_storage(info)
        self.hosts[name].numa.save_report(info)
        self.hosts[name].pci.save_report(info)
        if self.hosts[name].counted() != self.hosts[name].numbers:
            self._touch(self.hosts[name])
        aggregates = tuple(aggregate.metadata for aggregate in self._aggregates.get(name, ()))
        zone = next((metadata["availability_zone"] for metadata in aggregates if "availability_zone" in metadata),
                    self.default_zone)
        enabled, cell_enabled = not row.disabled, not row.cell_disabled
        up = self._up.get(name, False) and not row.forced_down
        capabilities = {key: info[key] for key in CAPABILITIES if info.get(key) is not None}
        # Nova compares versions as numbers, and the Compute API shows them so: ">= 7002000".
        capabilities |= {key: version_number(str(info[key])) for key in VERSIONS if key in capabilities}
        if devices := self.hosts[name].pci.whole():
            capabilities["pci_devices"] = devices
        if can_plug_in(info, name):
            capabilities["ovn"] = True
        traits = sorted({*(info.get("traits") or ()), *row.own_traits})
        isolated = name in self.rules.options.isolated_hosts
        key = orjson.dumps((row.cell_id, cell_enabled, zone, enabled, up, capabilities, aggregates, traits,
                            isolated), option=orjson.OPT_SORT_KEYS)
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = Profile(key, row.cell_id, zone, enabled, up, capabilities, aggregates,
                                                    frozenset(traits), isolated, cell_enabled)
        return profile

    def _arrange(self) -> None:
        """Rebuild all blocks (groups of hosts that the scheduler can often accept or skip together), so that similar
        hosts are in the same block: group hosts by profile, then repeatedly split the groups by free memory, disk,
        shared CPUs or dedicated CPUs."""
        by_profile: dict[Profile, list[HostState]] = {}
        for host in self.hosts.values():
            by_profile.setdefault(host.profile, []).append(host)
        self._profiles = {profile.key: profile for profile in by_profile}
        self._blocks, self._open, self._changes = [], {}, 0
        for profile, hosts in by_profile.items():
            self._blocks.append(_arranged(profile, [((*host.numbers[3:6], host.numbers[FITS.pcpus]), host)
                                                    for host in hosts]))


def agent_ip_address(row: HostRow) -> str:
    """Return the IP address of a host: the address in its agent's endpoint or, if the endpoint has a name or is a
    socket, the address that the agent reports. Return an empty text if the agent reports none."""
    name = urlsplit(row.endpoint).hostname or ""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return str(row.info.get("address") or "")


def _arranged(profile: Profile, hosts: list[tuple[Row, HostState]]) -> Block:
    """Return a block, a group of hosts that the scheduler can often accept or skip together, with *hosts*: a list of
    (free amounts of memory and other resources, host). If there are many hosts, the block contains smaller blocks, each
    with similar hosts."""
    block = Block(profile)
    if len(hosts) <= BLOCK:
        block.hosts = [host for _row, host in hosts]
        for host in block.hosts:
            host.block = block
    else:
        for part in _halved(hosts, PARTS):
            block.add(_arranged(profile, part))
    return block


def _halved(hosts: list[tuple[Row, HostState]], parts: int) -> Iterator[list[tuple[Row, HostState]]]:
    """Yield groups of similar hosts from *hosts*, a list of (free amounts of memory and other resources, host). Halve
    the list, and then each half, by the amount that varies most, until there are *parts* groups or each group is small
    enough for a block that contains no smaller blocks."""
    if len(hosts) <= BLOCK or parts == 1:
        yield hosts
        return
    columns: list[tuple[float, ...]] = list(zip(*(row for row, _host in hosts), strict=True))

    def spread(at: int) -> float:
        low, high = min(columns[at]), max(columns[at])
        return (high - low) / (abs(high) + abs(low) + 1)

    at = max(range(len(columns)), key=spread)
    hosts.sort(key=lambda row_and_host: row_and_host[0][at])
    middle = len(hosts) // 2
    yield from _halved(hosts[:middle], parts // 2)
    yield from _halved(hosts[middle:], parts // 2)
