# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: whether a host may get a server. Names are those of Nova's filters.

They are applied in order. ``sight`` says what a filter looks at, so that ``choose`` need not ask it for each of 10,000
hosts: the profile that many hosts share, the numbers that blocks have bounds of, the name (also in ``RequestSpec.only``
or ``never``), the single host,
or its NUMA cells, for which only the best are asked.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from magnetar_control.settings import USUAL_FILTERS as USUAL
from magnetar_core.hardware.image_properties import unsuited
from magnetar_core.hardware.needs import lacking
from magnetar_core.matching import matches

from . import aggregate_filters as of_aggregates
from . import own
from .figures import FIGURES, figure
from .host_state import FITS, IO_OPS, SERVERS, HostState, Profile
from .matching import query
from .options import USUAL as USUAL_OPTIONS
from .options import Options
from .request_spec import RequestSpec, hint
from .resource_classes import classes, lacking_classes, lacking_functions

#: Not applied unless an operator names them: hints of the first two answer questions about hosts that users may not
#: ask, the others are those that Nova does not apply by itself either.
OPTIONAL = ("SimpleCIDRAffinityFilter", "JsonFilter", "AllHostsFilter", "IsolatedHostsFilter", "NumInstancesFilter",
            "AggregateNumInstancesFilter", "IoOpsFilter", "AggregateIoOpsFilter", "TypeAffinityFilter",
            "AggregateTypeAffinityFilter", "AggregateImagePropertiesIsolation", "MetricsFilter")
TENANTS = "TenantAggregatesFilter"
#: Filters of Nova that would do nothing here, and why.
REFUSED = {
    **dict.fromkeys(("AggregateCoreFilter", "AggregateRamFilter", "AggregateDiskFilter"), "the ratios that aggregates "
                    "say (cpu_allocation_ratio, ram_allocation_ratio, disk_allocation_ratio) count without it"),
    **dict.fromkeys(("ExactCoreFilter", "ExactRamFilter", "ExactDiskFilter"), "it was for bare metal"),
    "TrustedFilter": "hosts are not attested",
    "BaremetalFilter": "it was for bare metal"}
PROFILE, ROOM, NAME, HOST, CELLS, DEVICES = "profile", "room", "name", "host", "cells", "devices"
#: What takes longer to look at than a host takes to weigh: the heaviest hosts are looked at, until enough pass.
LATE = (CELLS, DEVICES)


class Bound(NamedTuple):
    """The number ``HostState.numbers[at]`` must lie between these."""

    at: int
    least: float = -math.inf
    most: float = math.inf


class Filter(NamedTuple):
    """``passes(host, spec)``. For specs that ``asked`` returns false for, it passes every host. Of one that looks at
    ``ROOM``, *bound* says the same of a profile. *optioned*: both take the settings, as ``options``; ``active`` says
    whether they have it do something at all. *lacks*: what a host that is refused lacks, for administrators."""

    name: str
    sight: str
    passes: Callable[..., bool]
    asked: Callable[[RequestSpec], object] = lambda _spec: True
    bound: Callable[..., Bound] | None = None
    optioned: bool = False
    active: Callable[[Options], object] = lambda _options: True
    lacks: Callable[[HostState, RequestSpec], str] | None = None

    def under(self, options: Options) -> Filter:
        """The filter with the settings that it takes."""
        if not self.optioned:
            return self
        return self._replace(passes=_named(self.passes, options), bound=self.bound and partial(
            self.bound, options=options), optioned=False)


def _named(passes: Callable[..., bool], options: Options) -> Callable[..., bool]:
    found = partial(passes, options=options)
    found.__doc__ = passes.__doc__
    return found


def compute(host: HostState, spec: RequestSpec) -> bool:
    """The host is enabled, in an enabled cell or that of a server that moves, or was forced; and its agent answers."""
    return takes_servers(host, spec) and host.profile.up


def takes_servers(host: HostState, spec: RequestSpec) -> bool:
    """Return whether the operator lets the host take the server, whether its agent answers or not."""
    profile = host.profile
    return (profile.enabled or spec.forced) and spec.may_enter(profile.cell_id, disabled=not profile.cell_enabled)


def cell(host: HostState, spec: RequestSpec) -> bool:
    """The host is in the cell that the spec names."""
    return host.profile.cell_id == spec.cell_id


def zone(host: HostState, spec: RequestSpec) -> bool:
    """The host is in one of the zones asked for."""
    return host.profile.zone in [one.strip() for one in (spec.availability_zone or "").split(",")]


def numa(host: HostState, spec: RequestSpec) -> bool:
    """The host has NUMA cells with the dedicated CPUs, memory and pages that the server needs of each (spec row
    FIL-19)."""
    return spec.numa is None or not host.numa.lacks(spec.numa)


def lacking_cells(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of them."""
    return f"does not fit: {host.numa.lacks(spec.numa) if spec.numa else ''}"


def room(name: str, at: int, unit: str) -> Filter:
    """The filter of one resource; what is not asked for is never short."""
    def passes(host: HostState, spec: RequestSpec) -> bool:
        """The host has enough left within its limit, and no less in all than the server needs."""
        return spec.amounts[at] <= host.numbers[FITS[at]]

    def lacks(host: HostState, spec: RequestSpec) -> str:
        return f"has room for {max(0, int(host.numbers[FITS[at]]))} of {spec.amounts[at]} {unit}"
    return Filter(name, ROOM, passes, lambda spec: spec.amounts[at] > 0,
                  lambda _profile, spec: Bound(FITS[at], spec.amounts[at]), lacks=lacks)


def few_servers(host: HostState, _spec: RequestSpec, *, options: Options) -> bool:
    """The host has fewer servers than the setting max_instances_per_host (spec row FIL-20)."""
    return host.servers < options.max_instances_per_host


def few_io_ops(host: HostState, _spec: RequestSpec, *, options: Options) -> bool:
    """Fewer servers than the setting max_io_ops_per_host are being built, resized, migrated, rescued, unshelved or
    saved there (spec row FIL-16)."""
    return host.io_ops < options.max_io_ops_per_host


def few_servers_of_aggregate(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """As NumInstancesFilter, with the least max_instances_per_host that the host's aggregates say (spec row FIL-05)."""
    return host.servers <= _servers(host.profile, spec, options=options).most


def few_io_ops_of_aggregate(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """As IoOpsFilter, with the least max_io_ops_per_host that the host's aggregates say (spec row FIL-03)."""
    return host.io_ops <= _io_ops(host.profile, spec, options=options).most


def _servers(profile: Profile, _spec: RequestSpec, *, options: Options) -> Bound:
    most = of_aggregates.least(profile.aggregates, "max_instances_per_host", options.max_instances_per_host)
    return Bound(SERVERS, most=math.ceil(most) - 1)


def _io_ops(profile: Profile, _spec: RequestSpec, *, options: Options) -> Bound:
    most = of_aggregates.least(profile.aggregates, "max_io_ops_per_host", options.max_io_ops_per_host)
    return Bound(IO_OPS, most=math.ceil(most) - 1)


def all_hosts(_host: HostState, _spec: RequestSpec) -> bool:
    """Always (spec row FIL-07)."""
    return True


def isolated(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """A server of an image of the setting isolated_images: the host is one of isolated_hosts. Of another image, or
    without one: it is none of them, unless restrict_isolated_hosts_to_isolated_images is false (spec row FIL-15)."""
    if spec.image_id in options.isolated_images:
        return host.profile.isolated
    return not host.profile.isolated or not options.restrict_isolated_hosts_to_isolated_images


def traits(host: HostState, spec: RequestSpec) -> bool:
    """The host has the traits that flavor and image require (trait:NAME=required), and none that the flavor forbids
    (spec row ALL-06)."""
    return spec.traits.required <= host.profile.traits and spec.traits.forbidden.isdisjoint(host.profile.traits)


def lacking_traits(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of the traits, or has too many."""
    return " and ".join(spec.traits.lacking(host.profile.traits))


def metered(host: HostState, _spec: RequestSpec, *, options: Options) -> bool:
    """The host tells all metrics of the setting metrics_weight_setting (spec row FIL-18)."""
    return options.metrics.keys() <= host.metrics.keys()


def other_flavor(host: HostState, spec: RequestSpec) -> bool:
    """The host has no server of this flavor (Liberty's TypeAffinityFilter)."""
    return spec.flavor_name not in host.flavors


def requested(host: HostState, spec: RequestSpec) -> bool:
    """It is the host that was asked for."""
    return host.name == spec.host


def not_ignored(host: HostState, spec: RequestSpec) -> bool:
    """It is not one of the ignored hosts (tried before)."""
    return host.name not in spec.ignored


def volumes(host: HostState, spec: RequestSpec) -> bool:
    """The server's root volume lies there."""
    return host.name in (spec.volume_hosts or ())


def with_ovn(host: HostState, _spec: RequestSpec) -> bool:
    """The host can give the server its ports of OVN."""
    return host.profile.capabilities.get("ovn") is True


def different(host: HostState, spec: RequestSpec) -> bool:
    """The host has none of the servers of the hint different_host."""
    return host.name not in spec.different_host


def same(host: HostState, spec: RequestSpec) -> bool:
    """The host has one of the servers of the hint same_host."""
    return host.name in (spec.same_host or ())


def apart(host: HostState, spec: RequestSpec) -> bool:
    """The host has fewer other members of the group than the policy anti-affinity allows."""
    return spec.group is None or spec.group.hosts.get(host.name, 0) < spec.group.max_per_host


def together(host: HostState, spec: RequestSpec) -> bool:
    """The host has the group's other members (policy affinity), if any has a host."""
    return spec.group is None or not spec.group.hosts or host.name in spec.group.hosts


def wanted_capabilities(spec: RequestSpec) -> Iterable[tuple[list[str], str]]:
    """Paths of capabilities and values they must have: extra specs of the scope capabilities, or of none (FIL-09)."""
    for key, text in spec.extra_specs.items():
        scope, *path = key.split(":")
        if not path:
            yield [scope], text
        elif scope == "capabilities":
            yield path, text


def capabilities(host: HostState, spec: RequestSpec) -> bool:
    """The host has the capabilities of the flavor's extra specs. An unknown name refuses the host, unless it is
    without the scope: it belongs to another filter then."""
    for path, text in wanted_capabilities(spec):
        if path[0] in FIGURES:
            continue
        value: Any = host.profile.capabilities
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None and f"capabilities:{':'.join(path)}" not in spec.extra_specs:
            continue
        if value is None or not matches(value, text):
            return False
    return True


def figures(host: HostState, spec: RequestSpec) -> bool:
    """The numbers of the host are as the flavor's extra specs ask. One that it has not got is as none asks."""
    return all((found := figure(host, path)) is not None and matches(found, text)
               for path, text in wanted_capabilities(spec) if path[0] in FIGURES)


def image(host: HostState, spec: RequestSpec) -> bool:
    """The host can run the image: architecture, hypervisor type and vm_mode (spec row FIL-14)."""
    return next(unsuited(spec.image, host.profile.capabilities), None) is None


def hardware(host: HostState, spec: RequestSpec) -> bool:
    """The host has what the hardware of flavor and image needs of it: a firmware, say."""
    return next(lacking(spec.hardware, host.profile.capabilities), None) is None


def lacking_hardware(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks for it."""
    return " and ".join(f"lacks {what}" for _field, what in lacking(spec.hardware, host.profile.capabilities))


def devices(host: HostState, spec: RequestSpec) -> bool:
    """The host has enough free PCI devices of the aliases and physical networks that the server's flavor and ports ask
    for, near its NUMA cells (spec row FIL-21)."""
    return not lacking_devices(host, spec)


def devices_in_all(host: HostState, spec: RequestSpec) -> bool:
    """The host has as many of each in all, whoever has them."""
    there = host.profile.capabilities.get("pci_devices", {})
    return all(there.get(name, {}).get("total", 0) >= count for name, count in spec.devices.items())


def lacking_devices(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of them."""
    found = host.pci.lacks(spec.devices, spec.hardware.get("pci_numa_affinity", ""), host.numa, spec.numa,
                           spec.has_devices.get(host.name, {}))
    if not found and spec.nics and (functions := lacking_functions(host, spec)):
        found = [functions]
    return " and ".join(f"lacks {what}" for what in found)


def near(host: HostState, spec: RequestSpec) -> bool:
    """The host has an address in the network of the hints build_near_host_ip and cidr."""
    try:
        network = ipaddress.ip_network(
            hint(spec.hints, "build_near_host_ip")[0] + (hint(spec.hints, "cidr") or ["/24"])[0], strict=False)
        return ipaddress.ip_address(host.host_ip) in network
    except ValueError:
        return False


def queried(host: HostState, spec: RequestSpec) -> bool:
    """The host matches the hint query, a JSON expression over properties of hosts (spec row FIL-17)."""
    return query(hint(spec.hints, "query"),
                 lambda name: FIGURES[name](host) if name in FIGURES else host.profile.capabilities.get(name))


FILTERS: tuple[Filter, ...] = (
    Filter("ComputeFilter", PROFILE, compute),
    Filter("CellFilter", PROFILE, cell, lambda spec: spec.cell_id is not None),
    Filter("AvailabilityZoneFilter", PROFILE, zone, lambda spec: spec.availability_zone),
    Filter("RequestedDestinationFilter", NAME, requested, lambda spec: spec.host is not None),
    Filter("RetryFilter", NAME, not_ignored, lambda spec: spec.ignored),
    Filter(TENANTS, PROFILE, of_aggregates.own_aggregate, lambda spec: not spec.forced,
           active=lambda options: options.tenant_aggregates),
    Filter("IsolatedAggregatesFilter", PROFILE, of_aggregates.isolated_traits, lambda spec: not spec.forced,
           active=lambda options: options.isolated_aggregates),
    Filter("TraitsFilter", PROFILE, traits, lambda spec: any(spec.traits), lacks=lacking_traits),
    Filter("AllHostsFilter", PROFILE, all_hosts, lambda _spec: False),
    Filter("IsolatedHostsFilter", PROFILE, isolated, lambda spec: not spec.past_filters, optioned=True,
           active=lambda options: options.isolated_hosts or options.isolated_images),
    Filter("AggregateMultiTenancyIsolation", PROFILE, of_aggregates.tenants, lambda spec: not spec.past_filters),
    Filter("AggregateTypeAffinityFilter", PROFILE, of_aggregates.flavors, lambda spec: not spec.past_filters),
    Filter("AggregateImagePropertiesIsolation", PROFILE, of_aggregates.image_properties,
           lambda spec: spec.image and not spec.past_filters, optioned=True),
    Filter("AggregateInstanceExtraSpecsFilter", PROFILE, of_aggregates.aggregate_specs, lambda spec: spec.extra_specs,
           lacks=of_aggregates.lacking_specs),
    Filter("ComputeCapabilitiesFilter", PROFILE, capabilities, lambda spec: spec.extra_specs),
    Filter("ImagePropertiesFilter", PROFILE, image, lambda spec: spec.image and not spec.past_filters),
    Filter("OvnFilter", PROFILE, with_ovn, lambda spec: spec.needs_ovn),
    Filter("HardwareFilter", PROFILE, hardware, lambda spec: spec.hardware, lacks=lacking_hardware),
    room("CoreFilter", 0, "CPUs"),
    room("RamFilter", 1, "MiB of memory"),
    room("DiskFilter", 2, "GiB of disk"),
    room("PcpuFilter", 3, "dedicated CPUs"),
    Filter("ResourceClassFilter", NAME, classes, lambda spec: spec.resources, lacks=lacking_classes),
    Filter("NUMATopologyFilter", CELLS, numa, lambda spec: spec.numa, lacks=lacking_cells),
    Filter("NumInstancesFilter", ROOM, few_servers, lambda spec: not spec.past_filters,
           lambda _profile, _spec, *, options: Bound(SERVERS, most=options.max_instances_per_host - 1), optioned=True),
    Filter("AggregateNumInstancesFilter", ROOM, few_servers_of_aggregate, lambda spec: not spec.past_filters, _servers,
           optioned=True),
    Filter("IoOpsFilter", ROOM, few_io_ops, lambda spec: not spec.past_filters,
           lambda _profile, _spec, *, options: Bound(IO_OPS, most=options.max_io_ops_per_host - 1), optioned=True),
    Filter("AggregateIoOpsFilter", ROOM, few_io_ops_of_aggregate, lambda spec: not spec.past_filters, _io_ops,
           optioned=True),
    Filter("VolumeHostFilter", NAME, volumes, lambda spec: spec.volume_hosts is not None),
    Filter("DifferentHostFilter", NAME, different, lambda spec: spec.different_host),
    Filter("SameHostFilter", NAME, same, lambda spec: spec.same_host is not None),
    Filter("ServerGroupAntiAffinityFilter", NAME, apart,
           lambda spec: spec.group and spec.group.policy == "anti-affinity"),
    Filter("ServerGroupAffinityFilter", NAME, together, lambda spec: spec.group and spec.group.policy == "affinity"),
    Filter("ComputeCapabilitiesFilter", HOST, figures,
           lambda spec: any(path[0] in FIGURES for path, _text in wanted_capabilities(spec))),
    Filter("PciPassthroughFilter", DEVICES, devices, lambda spec: spec.devices, lacks=lacking_devices),
    Filter("PciPassthroughFilter", PROFILE, devices_in_all, lambda spec: spec.devices, lacks=lacking_devices),
    Filter("TypeAffinityFilter", HOST, other_flavor, lambda spec: not spec.past_filters),
    Filter("MetricsFilter", HOST, metered, lambda spec: not spec.past_filters, optioned=True,
           active=lambda options: options.metrics),
    Filter("SimpleCIDRAffinityFilter", HOST, near, lambda spec: spec.hints.get("build_near_host_ip")),
    Filter("JsonFilter", HOST, queried, lambda spec: spec.hints.get("query")),
)


def enabled(names: Iterable[str] = USUAL, options: Options = USUAL_OPTIONS) -> tuple[Filter, ...]:
    """The filters *names*, and those that are always applied, since a claim would be refused otherwise; all with the
    settings that they take. Names that are none of these are those of one's own (``own.GROUP_FILTERS``), which come
    last, in the order of *names*. Raises ``ValueError`` for an unknown name, and for one that would do nothing."""
    names = list(dict.fromkeys(names))
    wanted, known = set(names), dict.fromkeys(one.name for one in FILTERS)
    for name in sorted(wanted & REFUSED.keys()):
        raise ValueError(f"{name} would do nothing here: {REFUSED[name]}. Remove it.")
    added = {name: own.found(own.GROUP_FILTERS, name) for name in names if name not in known}
    for wrong in sorted(name for name, function in added.items() if function is None):
        near = difflib.get_close_matches(wrong, known, 1)
        raise ValueError(f"there is no filter {wrong!r}; " + (f"did you mean {near[0]}? " if near else "") +
                         f"There are {', '.join(known)}, and those of packages with an entry point of the group "
                         f"{own.GROUP_FILTERS}.")
    applied = [one.under(options) for one in FILTERS
               if (one.name in wanted or one.name not in (*USUAL, *OPTIONAL)) and one.active(options)]
    return (*applied, *(Filter(name, HOST, own.guarded(name, function, False), lambda spec: not spec.past_filters)
                        for name, function in added.items() if function is not None))


#: What is applied without any setting.
USUAL_FILTERS = enabled()
