# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: they decide whether a host may get a server. Their names are Nova's. They are applied in order.

``sight`` says what a filter reads of a host, so that ``choose`` need not call the filter for each of 10,000 hosts:
``PROFILE``: properties that many hosts share. ``ROOM``: numbers, which are compared for blocks of hosts. ``NAME``: the
name; ``RequestSpec.only`` and ``never`` contain the same condition. ``HOST``: anything. ``CELLS`` (NUMA) and
``DEVICES`` (PCI): read only for the best hosts.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from magnetar_control.settings import USUAL_FILTERS as USUAL
from magnetar_core.hardware.image_properties import unsuited_properties
from magnetar_core.hardware.needs import missing_hardware
from magnetar_core.matching import matches_extra_spec

from . import aggregate_filters as of_aggregates
from . import own
from .figures import FIGURES, host_figure
from .host_state import FITS, IO_OPS, SERVERS, HostState, Profile
from .matching import query_holds
from .options import USUAL as USUAL_OPTIONS
from .options import Options
from .request_spec import RequestSpec, hint_texts
from .resource_classes import has_resource_classes, lacking_classes, lacking_functions

#: Filters that only apply if an operator names them. The hints of the first two reveal facts about hosts that users
#: must not learn; the others are off by default in Nova too.
OPTIONAL = ("SimpleCIDRAffinityFilter", "JsonFilter", "AllHostsFilter", "IsolatedHostsFilter", "NumInstancesFilter",
            "AggregateNumInstancesFilter", "IoOpsFilter", "AggregateIoOpsFilter", "TypeAffinityFilter",
            "AggregateTypeAffinityFilter", "AggregateImagePropertiesIsolation", "MetricsFilter")
TENANTS = "TenantAggregatesFilter"
#: Nova's filters that would do nothing here, and why.
REFUSED = {
    **dict.fromkeys(("AggregateCoreFilter", "AggregateRamFilter", "AggregateDiskFilter"), "the ratios that aggregates "
                    "say (cpu_allocation_ratio, ram_allocation_ratio, disk_allocation_ratio) count without it"),
    **dict.fromkeys(("ExactCoreFilter", "ExactRamFilter", "ExactDiskFilter"), "it was for bare metal"),
    "TrustedFilter": "hosts are not attested",
    "BaremetalFilter": "it was for bare metal"}
PROFILE, ROOM, NAME, HOST, CELLS, DEVICES = "profile", "room", "name", "host", "cells", "devices"
#: ``sight`` of filters that take longer than weighing a host: they check only the heaviest hosts, until enough pass.
LATE = (CELLS, DEVICES)


class Bound(NamedTuple):
    """The allowed range of a number that describes a host, such as its free memory. ``at``: the index of the number in
    ``HostState.numbers``. ``least``, ``most``: the first and the last number of the range."""

    at: int
    least: float = -math.inf
    most: float = math.inf


class Filter(NamedTuple):
    """One filter of the scheduler. ``passes(host, spec)`` returns whether the host passes; its docstring becomes the
    description of the filter in docs/reference/configuration.md.

    ``applies(spec)``: returns whether the filter can refuse any host for this request. ``sight``: which data of hosts
    ``passes`` reads, for example ``PROFILE`` (the properties that many hosts share) or ``ROOM`` (a single number, such
    as free memory). *bound*: for filters with the ``sight`` ``ROOM``, takes the shared properties of hosts (a
    ``Profile``) and the request, and returns the allowed range of the number. *optioned*: whether ``passes`` and
    *bound* have a parameter ``options`` for the settings. ``active(options)``: returns whether the filter does anything
    with these settings. *lacks*: returns, as a text for administrators, what a refused host lacks.
    """

    name: str
    sight: str
    passes: Callable[..., bool]
    applies: Callable[[RequestSpec], object] = lambda _spec: True
    bound: Callable[..., Bound] | None = None
    optioned: bool = False
    active: Callable[[Options], object] = lambda _options: True
    lacks: Callable[[HostState, RequestSpec], str] | None = None

    def under(self, options: Options) -> Filter:
        """Return a copy of the filter whose functions use the settings *options*."""
        if not self.optioned:
            return self
        return self._replace(passes=_named(self.passes, options), bound=self.bound and partial(
            self.bound, options=options), optioned=False)


def _named(passes: Callable[..., bool], options: Options) -> Callable[..., bool]:
    bound_filter = partial(passes, options=options)
    bound_filter.__doc__ = passes.__doc__
    return bound_filter


def is_available(host: HostState, spec: RequestSpec) -> bool:
    """The host's agent answers; the host and its cell are enabled. Both may be disabled if the request forces the host;
    servers of a disabled cell may move within it."""
    return takes_servers(host, spec) and host.profile.up


def takes_servers(host: HostState, spec: RequestSpec) -> bool:
    """Return whether the host and its cell are enabled for the server, even if the host's agent is down. A forced host
    and its cell may be disabled, and a server in a disabled cell may move within this cell."""
    profile = host.profile
    return (profile.enabled or spec.forced) and spec.may_enter(profile.cell_id, disabled=not profile.cell_enabled)


def in_requested_cell(host: HostState, spec: RequestSpec) -> bool:
    """The host is in the requested cell."""
    return host.profile.cell_id == spec.cell_id


def in_requested_zone(host: HostState, spec: RequestSpec) -> bool:
    """The host is in one of the requested zones."""
    return host.profile.zone in [zone.strip() for zone in (spec.availability_zone or "").split(",")]


def fits_numa_cells(host: HostState, spec: RequestSpec) -> bool:
    """The host has NUMA cells with enough dedicated CPUs, memory and huge pages for each NUMA cell of the server."""
    return spec.numa is None or not host.numa.lacks(spec.numa)


def lacking_cells(host: HostState, spec: RequestSpec) -> str:
    """Return a text that says what the host's NUMA cells lack for the server."""
    return f"does not fit: {host.numa.lacks(spec.numa) if spec.numa else ''}"


def room_filter(name: str, at: int, unit: str) -> Filter:
    """Return a filter that refuses hosts with too little of one resource. *name*: the name of the filter. *at*: the
    index of the resource in ``Amounts``. *unit*: its unit, for messages. If the server requests none of the resource,
    every host passes."""
    def passes(host: HostState, spec: RequestSpec) -> bool:
        """The host has enough of the resource left within its limit, and in total at least as much as the server needs.
        """
        return spec.amounts[at] <= host.numbers[FITS[at]]

    def lacks(host: HostState, spec: RequestSpec) -> str:
        return f"has room for {max(0, int(host.numbers[FITS[at]]))} of {spec.amounts[at]} {unit}"
    return Filter(name, ROOM, passes, lambda spec: spec.amounts[at] > 0,
                  lambda _profile, spec: Bound(FITS[at], spec.amounts[at]), lacks=lacks)


def few_servers(host: HostState, _spec: RequestSpec, *, options: Options) -> bool:
    """The host has fewer servers than the setting max_instances_per_host."""
    return host.servers < options.max_instances_per_host


def few_io_ops(host: HostState, _spec: RequestSpec, *, options: Options) -> bool:
    """Fewer servers than the setting max_io_ops_per_host are being built, resized, migrated, rescued, unshelved or
    saved on the host."""
    return host.io_ops < options.max_io_ops_per_host


def few_servers_of_aggregate(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """The host has fewer servers than the lowest max_instances_per_host in the metadata of its aggregates; without such
    metadata, fewer than the setting."""
    return host.servers <= _servers(host.profile, spec, options=options).most


def few_io_ops_of_aggregate(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """Fewer servers are being built, resized, migrated, rescued, unshelved or saved on the host than
    max_io_ops_per_host: the lowest of the host's aggregates, or else the setting."""
    return host.io_ops <= _io_ops(host.profile, spec, options=options).most


def _servers(profile: Profile, _spec: RequestSpec, *, options: Options) -> Bound:
    most = of_aggregates.least_metadata_number(profile.aggregates, "max_instances_per_host",
                                               options.max_instances_per_host)
    return Bound(SERVERS, most=math.ceil(most) - 1)


def _io_ops(profile: Profile, _spec: RequestSpec, *, options: Options) -> Bound:
    most = of_aggregates.least_metadata_number(profile.aggregates, "max_io_ops_per_host", options.max_io_ops_per_host)
    return Bound(IO_OPS, most=math.ceil(most) - 1)


def all_hosts(_host: HostState, _spec: RequestSpec) -> bool:
    """Every host passes this filter."""
    return True


def matches_image_isolation(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """For an image in the setting isolated_images, the host is in isolated_hosts. For another image, or without one,
    the host is not in isolated_hosts, unless restrict_isolated_hosts_to_isolated_images is false."""
    if spec.image_id in options.isolated_images:
        return host.profile.isolated
    return not host.profile.isolated or not options.restrict_isolated_hosts_to_isolated_images


def has_required_traits(host: HostState, spec: RequestSpec) -> bool:
    """The host has the traits that flavor and image require (trait:NAME=required), and none that the flavor forbids."""
    return spec.traits.required <= host.profile.traits and spec.traits.forbidden.isdisjoint(host.profile.traits)


def lacking_traits(host: HostState, spec: RequestSpec) -> str:
    """Return a text about the required traits that the host lacks and the forbidden traits that it has; empty if there
    are no such traits."""
    return " and ".join(spec.traits.lacking(host.profile.traits))


def tells_all_metrics(host: HostState, _spec: RequestSpec, *, options: Options) -> bool:
    """The host reports all metrics that the setting metrics_weight_setting names."""
    return options.metrics.keys() <= host.metrics.keys()


def other_flavor(host: HostState, spec: RequestSpec) -> bool:
    """The host has no server of the requested flavor (Liberty's TypeAffinityFilter)."""
    return spec.flavor_name not in host.flavors


def is_requested_host(host: HostState, spec: RequestSpec) -> bool:
    """The host is the host that the request names."""
    return host.name == spec.host


def not_ignored(host: HostState, spec: RequestSpec) -> bool:
    """The request does not exclude the host, for example because it was tried before."""
    return host.name not in spec.ignored


def reaches_volumes(host: HostState, spec: RequestSpec) -> bool:
    """The host stores the server's volumes or reaches their shared pools, except volumes that any host can attach. For
    evacuations, it also reaches the shared storage of the disks."""
    return host.name in (spec.volume_hosts or ())


def with_ovn(host: HostState, _spec: RequestSpec) -> bool:
    """If the server has or requests OVN ports, the host can connect OVN ports."""
    return host.profile.capabilities.get("ovn") is True


def meets_different_host(host: HostState, spec: RequestSpec) -> bool:
    """The host has none of the servers in the scheduler hint different_host."""
    return host.name not in spec.different_host


def meets_same_host(host: HostState, spec: RequestSpec) -> bool:
    """The host has one of the servers in the scheduler hint same_host."""
    return host.name in (spec.same_host or ())


def meets_anti_affinity(host: HostState, spec: RequestSpec) -> bool:
    """The host has fewer other members of the server group than the group's policy anti-affinity allows."""
    return spec.group is None or spec.group.hosts.get(host.name, 0) < spec.group.max_per_host


def meets_affinity(host: HostState, spec: RequestSpec) -> bool:
    """If the server group has the policy affinity, and other members of the group have hosts, the host is one of these
    hosts."""
    return spec.group is None or not spec.group.hosts or host.name in spec.group.hosts


def required_capabilities(spec: RequestSpec) -> Iterable[tuple[list[str], str]]:
    """Yield (path, required value) for each extra spec that compares a capability of the host: extra specs with the
    scope ``capabilities``, and extra specs without a scope. The path is the name of the capability, split at colons."""
    for key, text in spec.extra_specs.items():
        scope, *path = key.split(":")
        if not path:
            yield [scope], text
        elif scope == "capabilities":
            yield path, text


def has_required_capabilities(host: HostState, spec: RequestSpec) -> bool:
    """The host has the capabilities that extra specs require. Hosts that report no such capability are refused, unless
    the extra spec has no scope and may be for another filter."""
    for path, text in required_capabilities(spec):
        if path[0] in FIGURES:
            continue
        value: Any = host.profile.capabilities
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None and f"capabilities:{':'.join(path)}" not in spec.extra_specs:
            continue
        if value is None or not matches_extra_spec(value, text):
            return False
    return True


def has_required_figures(host: HostState, spec: RequestSpec) -> bool:
    """Return whether the host's numbers (such as ``free_ram_mb``) match the flavor's extra specs. If the host does not
    report a number that an extra spec names, the host does not match."""
    return all((actual := host_figure(host, path)) is not None and matches_extra_spec(actual, text)
               for path, text in required_capabilities(spec) if path[0] in FIGURES)


def can_run_image(host: HostState, spec: RequestSpec) -> bool:
    """The host can run the image: architecture, hypervisor type and vm_mode."""
    return next(unsuited_properties(spec.image, host.profile.capabilities), None) is None


def has_needed_hardware(host: HostState, spec: RequestSpec) -> bool:
    """The host provides the hardware that flavor and image request, such as a firmware."""
    return next(missing_hardware(spec.hardware, host.profile.capabilities), None) is None


def lacking_hardware(host: HostState, spec: RequestSpec) -> str:
    """Return a text that says what the host lacks for the hardware that flavor and image request."""
    return " and ".join(f"lacks {need}" for _field, need in missing_hardware(spec.hardware, host.profile.capabilities))


def has_free_devices(host: HostState, spec: RequestSpec) -> bool:
    """The host has enough free PCI devices of the requested aliases and physical networks. If the server has NUMA
    cells, devices are as near as the PCI NUMA affinity requires."""
    return not lacking_pci_devices(host, spec)


def devices_in_all(host: HostState, spec: RequestSpec) -> bool:
    """Return whether the host has as many PCI devices as *spec* requests, whether these are free or in use now."""
    devices_by_name = host.profile.capabilities.get("pci_devices", {})
    return all(devices_by_name.get(name, {}).get("total", 0) >= count for name, count in spec.devices.items())


def lacking_pci_devices(host: HostState, spec: RequestSpec) -> str:
    """Return a text about the free PCI devices that the host lacks; empty if it has enough."""
    lacks = host.pci.lacks(spec.devices, spec.hardware.get("pci_numa_affinity", ""), host.numa, spec.numa,
                           spec.has_devices.get(host.name, {}))
    if not lacks and spec.nics and (functions := lacking_functions(host, spec)):
        lacks = [functions]
    return " and ".join(f"lacks {lack}" for lack in lacks)


def in_hinted_network(host: HostState, spec: RequestSpec) -> bool:
    """The host's IP address is in the network of the scheduler hints build_near_host_ip and cidr."""
    try:
        network = ipaddress.ip_network(
            hint_texts(spec.hints, "build_near_host_ip")[0] + (hint_texts(spec.hints, "cidr") or ["/24"])[0],
            strict=False)
        return ipaddress.ip_address(host.host_ip) in network
    except ValueError:
        return False


def matches_query_hint(host: HostState, spec: RequestSpec) -> bool:
    """The host matches the scheduler hint query, a JSON expression over properties of hosts."""
    return query_holds(hint_texts(spec.hints, "query"),
                       lambda name: FIGURES[name](host) if name in FIGURES else host.profile.capabilities.get(name))


FILTERS: tuple[Filter, ...] = (
    Filter("ComputeFilter", PROFILE, is_available),
    Filter("CellFilter", PROFILE, in_requested_cell, lambda spec: spec.cell_id is not None),
    Filter("AvailabilityZoneFilter", PROFILE, in_requested_zone, lambda spec: spec.availability_zone),
    Filter("RequestedDestinationFilter", NAME, is_requested_host, lambda spec: spec.host is not None),
    Filter("RetryFilter", NAME, not_ignored, lambda spec: spec.ignored),
    Filter(TENANTS, PROFILE, of_aggregates.own_aggregate, lambda spec: not spec.forced,
           active=lambda options: options.tenant_aggregates),
    Filter("IsolatedAggregatesFilter", PROFILE, of_aggregates.isolated_traits, lambda spec: not spec.forced,
           active=lambda options: options.isolated_aggregates),
    Filter("TraitsFilter", PROFILE, has_required_traits, lambda spec: any(spec.traits), lacks=lacking_traits),
    Filter("AllHostsFilter", PROFILE, all_hosts, lambda _spec: False),
    Filter("IsolatedHostsFilter", PROFILE, matches_image_isolation, lambda spec: not spec.past_filters, optioned=True,
           active=lambda options: options.isolated_hosts or options.isolated_images),
    Filter("AggregateMultiTenancyIsolation", PROFILE, of_aggregates.aggregates_allow_project,
           lambda spec: not spec.past_filters),
    Filter("AggregateTypeAffinityFilter", PROFILE, of_aggregates.aggregates_allow_flavor,
           lambda spec: not spec.past_filters),
    Filter("AggregateImagePropertiesIsolation", PROFILE, of_aggregates.image_properties,
           lambda spec: spec.image and not spec.past_filters, optioned=True),
    Filter("AggregateInstanceExtraSpecsFilter", PROFILE, of_aggregates.aggregate_specs, lambda spec: spec.extra_specs,
           lacks=of_aggregates.lacking_specs),
    Filter("ComputeCapabilitiesFilter", PROFILE, has_required_capabilities, lambda spec: spec.extra_specs),
    Filter("ImagePropertiesFilter", PROFILE, can_run_image, lambda spec: spec.image and not spec.past_filters),
    Filter("OvnFilter", PROFILE, with_ovn, lambda spec: spec.needs_ovn),
    Filter("HardwareFilter", PROFILE, has_needed_hardware, lambda spec: spec.hardware, lacks=lacking_hardware),
    room_filter("CoreFilter", 0, "CPUs"),
    room_filter("RamFilter", 1, "MiB of memory"),
    room_filter("DiskFilter", 2, "GiB of disk"),
    room_filter("PcpuFilter", 3, "dedicated CPUs"),
    Filter("ResourceClassFilter", NAME, has_resource_classes, lambda spec: spec.resources, lacks=lacking_classes),
    Filter("NUMATopologyFilter", CELLS, fits_numa_cells, lambda spec: spec.numa, lacks=lacking_cells),
    Filter("NumInstancesFilter", ROOM, few_servers, lambda spec: not spec.past_filters,
           lambda _profile, _spec, *, options: Bound(SERVERS, most=options.max_instances_per_host - 1), optioned=True),
    Filter("AggregateNumInstancesFilter", ROOM, few_servers_of_aggregate, lambda spec: not spec.past_filters, _servers,
           optioned=True),
    Filter("IoOpsFilter", ROOM, few_io_ops, lambda spec: not spec.past_filters,
           lambda _profile, _spec, *, options: Bound(IO_OPS, most=options.max_io_ops_per_host - 1), optioned=True),
    Filter("AggregateIoOpsFilter", ROOM, few_io_ops_of_aggregate, lambda spec: not spec.past_filters, _io_ops,
           optioned=True),
    Filter("VolumeHostFilter", NAME, reaches_volumes, lambda spec: spec.volume_hosts is not None),
    Filter("DifferentHostFilter", NAME, meets_different_host, lambda spec: spec.different_host),
    Filter("SameHostFilter", NAME, meets_same_host, lambda spec: spec.same_host is not None),
    Filter("ServerGroupAntiAffinityFilter", NAME, meets_anti_affinity,
           lambda spec: spec.group and spec.group.policy == "anti-affinity"),
    Filter("ServerGroupAffinityFilter", NAME, meets_affinity, lambda spec: spec.group and spec.group.policy
           == "affinity"),
    Filter("ComputeCapabilitiesFilter", HOST, has_required_figures,
           lambda spec: any(path[0] in FIGURES for path, _text in required_capabilities(spec))),
    Filter("PciPassthroughFilter", DEVICES, has_free_devices, lambda spec: spec.devices, lacks=lacking_pci_devices),
    Filter("PciPassthroughFilter", PROFILE, devices_in_all, lambda spec: spec.devices, lacks=lacking_pci_devices),
    Filter("TypeAffinityFilter", HOST, other_flavor, lambda spec: not spec.past_filters),
    Filter("MetricsFilter", HOST, tells_all_metrics, lambda spec: not spec.past_filters, optioned=True,
           active=lambda options: options.metrics),
    Filter("SimpleCIDRAffinityFilter", HOST, in_hinted_network, lambda spec: spec.hints.get("build_near_host_ip")),
    Filter("JsonFilter", HOST, matches_query_hint, lambda spec: spec.hints.get("query")),
)


def applied_filters(names: Iterable[str] = USUAL, options: Options = USUAL_OPTIONS) -> tuple[Filter, ...]:
    """Return the filters to apply: the filters *names*, and the filters that cannot be switched off. If a filter that
    cannot be switched off refuses a host, a claim on this host would fail anyway. Each filter gets the settings
    *options*. Filters that do nothing with these settings are left out.

    A name that is not one of Magnetar's filters is looked up as a custom filter in installed packages
    (``own.GROUP_FILTERS``). Custom filters come last, in the order of *names*. Raises ``ValueError`` for an unknown
    name, and for filters of Nova that have no effect in Magnetar (``REFUSED``).
    """
    names = list(dict.fromkeys(names))
    requested_names, known_names = set(names), dict.fromkeys(host_filter.name for host_filter in FILTERS)
    for name in sorted(requested_names & REFUSED.keys()):
        raise ValueError(f"{name} would do nothing here: {REFUSED[name]}. Remove it.")
    added = {name: own.load_custom_function(own.GROUP_FILTERS, name) for name in names if name not in known_names}
    for wrong in sorted(name for name, function in added.items() if function is None):
        near = difflib.get_close_matches(wrong, known_names, 1)
        raise ValueError(f"there is no filter {wrong!r}; " + (f"did you mean {near[0]}? " if near else "") +
                         f"There are {', '.join(known_names)}, and those of packages with an entry point of the group "
                         f"{own.GROUP_FILTERS}.")
    applied = [host_filter.under(options) for host_filter in FILTERS
               if (host_filter.name in requested_names or host_filter.name not in (*USUAL, *OPTIONAL))
               and host_filter.active(options)]
    return (*applied, *(Filter(name, HOST, own.guard_custom_function(name, function, False),
                               lambda spec: not spec.past_filters)
                        for name, function in added.items() if function is not None))


#: The filters that apply by default.
USUAL_FILTERS = applied_filters()
