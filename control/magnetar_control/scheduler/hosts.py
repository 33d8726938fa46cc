# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts in memory, kept so that a choice among 10,000 visits few of them.

Hosts with the same profile (everything that does not change when servers come and go) that are about equally full stand
in blocks, and blocks in greater ones. A block knows the minimum and maximum of each number of its hosts, so most blocks
are taken or skipped as a whole (see ``choose``). The bounds are always exact; how similar the hosts of a block are
matters for speed only, so blocks are rearranged only after many changes.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import orjson

from magnetar_control.store.claims.allocations import RESOURCES, Amounts
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.cell_look import CellLook
from magnetar_core.hardware.numa import Needs
from magnetar_core.version import version_number

from .aggregate_filters import projects_of
from .filters import TENANTS, Filter
from .host_state import FITS, Block, HostState, Profile, Row
from .request_spec import RequestSpec
from .rules import DEFAULT_RULES, Rules
from .weighers import malformed

log = logging.getLogger(__name__)

#: Most hosts of a block without parts, and most parts of another: the fastest for 10,000 hosts.
BLOCK, PARTS = 16, 8
#: Changes after which blocks are rearranged, plus one for every two hosts. For 10,000 hosts that takes 0.1 s, in which
#: nothing is chosen.
PATIENCE = 256
#: Properties of an agent's ``host`` resource that flavors and images may ask for.
CAPABILITIES = ("architecture", "cpu_info", "cpu_model", "disk_encryption", "emulated_architectures", "firmware",
                "hypervisor_type", "hypervisor_version", "libvirt_version", "machine_types", "memory_encryption",
                "secure_boot", "tpm_versions", "virt_types")
#: Those of them that are versions.
VERSIONS = ("hypervisor_version", "libvirt_version")
#: Columns of ``store.hosts.hosts`` rows that are less when something has gone.
FREED = ("servers", "pcpus_used", "memory_mb_used")
#: Columns of ``store.hosts.hosts`` rows that make the profile; and those of what there is, what may be claimed and what
#: is.
PROFILED = itemgetter("cell_id", "disabled", "cell_disabled", "forced_down", "info", "own_traits")
AMOUNTS = tuple(itemgetter(*(f"{name}{what}" for name in RESOURCES)) for what in ("", "_limit", "_used"))


def can_plug_in(info: Mapping[str, Any], name: str) -> bool:
    """Whether the host *name* can give servers ports of OVN, as its agent says: its chassis is called as it is."""
    said = info.get("ovn") or {}
    return said.get("reason") == "" and said.get("chassis") == name


class HostStates:
    """All hosts; ``rows``: of ``store.hosts.hosts``, by name. Hold ``lock`` while reading more than one thing. A host
    is down until ``up`` says otherwise. *default_zone*: of hosts in no aggregate with a zone. *rules*: those of
    choices."""

    def __init__(self, default_zone: str = "nova", rules: Rules = DEFAULT_RULES) -> None:
        self.lock, self.default_zone, self.rules = threading.RLock(), default_zone, rules
        self.hosts: dict[str, HostState] = {}
        self._blocks: list[Block] = []  # those that are parts of no other
        self._open: dict[Profile, Block] = {}  # by profile, the block for new hosts
        self._profiles: dict[bytes, Profile] = {}
        self._up: dict[str, bool] = {}
        self.rows: dict[str, Mapping[Any, Any]] = {}
        self._aggregates: dict[str, list[Aggregate]] = {}
        self._projects: set[str] = set()  # those that aggregates are for
        self._changes = 0

    def refresh(self, rows: Iterable[Mapping[Any, Any]], aggregates: Iterable[Aggregate] | None = None) -> None:
        """Replace all hosts (rows of ``store.hosts.hosts.every``), and all aggregates where given."""
        with self.lock:
            if aggregates is not None:
                self._grouped(aggregates)
            rows = list(rows)
            names = {row["name"] for row in rows}
            for name in [name for name in self.hosts if name not in names]:
                self.gone(name)
            for row in rows:
                self.changed(row)

    def gone(self, name: str) -> None:
        """Remove a host."""
        with self.lock:
            if host := self.hosts.pop(name, None):
                self._leave(host)
                self.rows.pop(name)
                self._up.pop(name, None)

    def changed(self, row: Mapping[Any, Any]) -> None:
        """Update a host from a row of ``store.hosts.hosts``."""
        with self.lock:
            name = row["name"]
            host = self.hosts.get(name)
            if host is None or host.id != row["id"]:
                if host is not None:
                    self._leave(host)
                host = self.hosts[name] = HostState(row["id"], name)
                host.metrics_weight = self._weight({})
                self.rows.pop(name, None)
            before, self.rows[name] = self.rows.get(name), row
            if before is None or before["endpoint"] != row["endpoint"] or before["info"] != row["info"]:
                host.host_ip = address(row)
            host.totals, host.limits, host.used = (Amounts(*columns(row)) for columns in AMOUNTS)
            host.servers, host.columns = row["servers"], row
            if before is not None and any(before[one] > row[one] for one in FREED):
                host.numa.freed()
                host.pci.freed()
            if host.counted() != host.numbers:
                self._touch(host)
            if host.block is None or before is None or PROFILED(before) != PROFILED(row):
                self._profiled(host)

    def up(self, name: str, up: bool) -> None:
        """Set whether a host's agent answers; the host need not be known yet."""
        with self.lock:
            if self._up.get(name, False) != up:
                self._up[name] = up
                if host := self.hosts.get(name):
                    self._profiled(host)

    def seen(self, name: str, look: CellLook) -> None:
        """Set what a look at its cell has found of a host."""
        with self.lock:
            told = look.up.get(name)
            self.up(name, told is not None)
            self.busy(name, look.io_ops.get(name, 0))
            if told:
                self.told(name, told.get("metrics") or {}, told.get("images") or ())
            if look.flavors is not None and (host := self.hosts.get(name)):
                host.flavors = frozenset(look.flavors.get(name, ()))

    def used(self, name: str, more: Amounts, flavor: str = "", numa: Needs | None = None,
             devices: Mapping[str, int] = MappingProxyType({})) -> None:
        """A server of a *flavor* was placed on a host: add *more* to what is claimed of it, *numa* to what comes to
        its cells, and its *devices*. It keeps the disks busy from now on."""
        with self.lock:
            if host := self.hosts.get(name):
                host.used = Amounts(*(had + n for had, n in zip(host.used, more, strict=True)))
                host.servers += 1
                host.io_ops += 1
                host.flavors |= {flavor}
                host.numa.placed(numa)
                host.pci.placed(devices)
                self._touch(host)

    def unused(self, name: str, numa: Needs | None, devices: Mapping[str, int]) -> None:
        """A server that ``used`` has noted was not placed: nothing of it comes. What is claimed there is to be read
        again (``changed``)."""
        with self.lock:
            if host := self.hosts.get(name):
                host.io_ops = max(0, host.io_ops - 1)
                host.numa.unplaced(numa)
                host.pci.unplaced(devices)
                self._touch(host)

    def refused(self, name: str) -> None:
        """A claim of a host was refused."""
        with self.lock:
            if host := self.hosts.get(name):
                host.pci.refused()

    def busy(self, name: str, io_ops: int) -> None:
        """Set how many servers on a host keep its disks busy, as it was found (``servers.io_ops``). One that was placed
        there since is in what is found next."""
        with self.lock:
            host = self.hosts.get(name)
            if host and host.io_ops != io_ops:
                host.io_ops = io_ops
                self._touch(host)

    def told(self, name: str, metrics: Mapping[str, float], images: Iterable[str]) -> None:
        """Set what a host's agent told of it: *metrics*, and ids of the *images* whose content it has."""
        with self.lock:
            if host := self.hosts.get(name):
                host.metrics, host.images = dict(metrics), frozenset(images)
                if (weight := self._weight(host.metrics)) != host.metrics_weight:
                    host.metrics_weight = weight
                    self._touch(host)

    def _weight(self, metrics: Mapping[str, float]) -> float:
        """The metrics of a host as one number: the sum of each times what it is worth (spec row WEI-05)."""
        options = self.rules.options
        if options.metrics.keys() <= metrics.keys():
            return sum(float(metrics[name]) * ratio for name, ratio in options.metrics.items())
        return options.weight_of_unavailable

    def built(self, name: str, well: bool) -> None:
        """A build has ended there. A successful one resets the count of failures."""
        with self.lock:
            if host := self.hosts.get(name):
                host.failed_builds = 0 if well else host.failed_builds + 1
                host.io_ops = max(0, host.io_ops - 1)
                self._touch(host)

    def asked(self, spec: RequestSpec) -> list[Filter]:
        """The filters that may refuse a host for *spec*. A project without an aggregate of its own is bound to none,
        unless the setting says that each needs one."""
        free = spec.project_id not in self._projects and not self.rules.options.tenants_need_aggregates
        return [one for one in self.rules.asked(spec) if not (free and one.name == TENANTS)]

    def blocks(self) -> list[Block]:
        """All blocks that are parts of no other; hold ``lock``. It may move hosts: read a host's ``block`` afterwards.
        """
        if self._changes > PATIENCE + len(self.hosts) // 2:
            self._arrange()
        return [block.fresh() for block in self._blocks]

    def _grouped(self, aggregates: Iterable[Aggregate]) -> None:
        before, self._aggregates, self._projects = self._aggregates, {}, set()
        for aggregate in aggregates:
            if aggregate.hosts and (ignored := malformed(aggregate.metadata)) and aggregate.metadata not in (
                    one.metadata for one in before.get(aggregate.hosts[0], ())):
                log.warning("aggregate %s: its metadata %s is no finite number, and ignored: the settings count",
                            aggregate.name, ", ".join(ignored))
            self._projects.update(projects_of(aggregate.metadata))
            for name in aggregate.hosts:
                self._aggregates.setdefault(name, []).append(aggregate)
        for name in before.keys() | self._aggregates.keys():
            if name in self.hosts and before.get(name) != self._aggregates.get(name):
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
        """The block for a new host."""
        found = self._open.get(profile)
        if found is None or len(found.hosts) >= BLOCK:
            whole = found.whole if found else None
            if whole is None or len(whole.parts) >= PARTS:
                whole = Block(profile)
                self._blocks.append(whole)
            found = self._open[profile] = Block(profile)
            whole.add(found)
        return found

    def _leave(self, host: HostState) -> None:
        if not host.block:
            return
        block, host.block = host.block, None
        block.hosts.remove(host)
        block.touch()
        self._changes += 1
        while not (block.hosts or block.parts):  # which nothing is known of
            if self._open.get(block.profile) is block:
                del self._open[block.profile]
            if block.whole is None:
                self._blocks.remove(block)
                break
            block.whole.parts.remove(block)
            block = block.whole

    def _profile(self, row: Mapping[Any, Any]) -> Profile:
        name, info = row["name"], orjson.loads(row["info"])
        self.hosts[name].numa.hear(info)
        self.hosts[name].pci.hear(info)
        if self.hosts[name].counted() != self.hosts[name].numbers:
            self._touch(self.hosts[name])
        aggregates = tuple(one.metadata for one in self._aggregates.get(name, ()))
        zone = next((one["availability_zone"] for one in aggregates if "availability_zone" in one), self.default_zone)
        enabled, cell_enabled = not row["disabled"], not row["cell_disabled"]
        up = self._up.get(name, False) and not row["forced_down"]
        capabilities = {key: info[key] for key in CAPABILITIES if info.get(key) is not None}
        # Nova compares versions as numbers, and the Compute API shows them so: ">= 7002000".
        capabilities |= {key: version_number(str(info[key])) for key in VERSIONS if key in capabilities}
        if devices := self.hosts[name].pci.whole():
            capabilities["pci_devices"] = devices
        if can_plug_in(info, name):
            capabilities["ovn"] = True
        traits = sorted({*(info.get("traits") or ()), *orjson.loads(row["own_traits"])})
        isolated = name in self.rules.options.isolated_hosts
        key = orjson.dumps((row["cell_id"], cell_enabled, zone, enabled, up, capabilities, aggregates, traits,
                            isolated), option=orjson.OPT_SORT_KEYS)
        found = self._profiles.get(key)
        if found is None:
            found = self._profiles[key] = Profile(key, row["cell_id"], zone, enabled, up, capabilities, aggregates,
                                                  frozenset(traits), isolated, cell_enabled)
        return found

    def _arrange(self) -> None:
        """Put similar hosts into the same blocks: by profile, then by halving along free memory, disk and CPUs of both
        kinds."""
        by_profile: dict[Profile, list[HostState]] = {}
        for host in self.hosts.values():
            by_profile.setdefault(host.profile, []).append(host)
        self._profiles = {profile.key: profile for profile in by_profile}
        self._blocks, self._open, self._changes = [], {}, 0
        for profile, hosts in by_profile.items():
            self._blocks.append(_arranged(profile, [((*host.numbers[3:6], host.numbers[FITS.pcpus]), host)
                                                    for host in hosts]))


def address(row: Mapping[Any, Any]) -> str:
    """The IP address of a host: that of its agent's endpoint, or, where the endpoint has a name or is a socket, the one
    that the agent tells; empty where it tells none."""
    name = urlsplit(row["endpoint"]).hostname or ""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return str(orjson.loads(row["info"]).get("address") or "")


def _arranged(profile: Profile, hosts: list[tuple[Row, HostState]]) -> Block:
    """A block of hosts, in whose parts similar ones are together."""
    found = Block(profile)
    if len(hosts) <= BLOCK:
        found.hosts = [host for _row, host in hosts]
        for host in found.hosts:
            host.block = found
    else:
        for part in _halved(hosts, PARTS):
            found.add(_arranged(profile, part))
    return found


def _halved(hosts: list[tuple[Row, HostState]], parts: int) -> Iterator[list[tuple[Row, HostState]]]:
    """Halve along the number with the greatest relative spread, until there are so many *parts* or each fits a block
    without parts."""
    if len(hosts) <= BLOCK or parts == 1:
        yield hosts
        return
    columns: list[tuple[float, ...]] = list(zip(*(row for row, _host in hosts), strict=True))

    def spread(at: int) -> float:
        low, high = min(columns[at]), max(columns[at])
        return (high - low) / (abs(high) + abs(low) + 1)

    at = max(range(len(columns)), key=spread)
    hosts.sort(key=lambda one: one[0][at])
    middle = len(hosts) // 2
    yield from _halved(hosts[:middle], parts // 2)
    yield from _halved(hosts[middle:], parts // 2)
