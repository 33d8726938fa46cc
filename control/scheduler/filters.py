# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: whether a host may get a server. Names are those of Nova's filters.

They are applied in order. ``sight`` says what a filter looks at, so that ``choose`` need not ask it for each of 10,000
hosts: the profile that many hosts share, the numbers that blocks have bounds of, the name (also in ``RequestSpec.only``
or ``never``), or the single host.
"""

from __future__ import annotations

import difflib
import ipaddress
import operator
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from magnetar_control.settings import USUAL_FILTERS as USUAL
from magnetar_core.hardware.image_properties import unsuited

from .host_state import HostState
from .request_spec import RequestSpec, hint

#: Not applied unless an operator names them: their hints answer questions about hosts that users may not ask.
OPTIONAL = ("SimpleCIDRAffinityFilter", "JsonFilter")
PROFILE, ROOM, NAME, HOST = "profile", "room", "name", "host"


class Filter(NamedTuple):
    """``passes(host, spec)``. For specs that ``asked`` returns false for, it passes every host."""

    name: str
    sight: str
    passes: Callable[[HostState, RequestSpec], bool]
    asked: Callable[[RequestSpec], object] = lambda _spec: True


#: What ComputeCapabilitiesFilter and JsonFilter find in a host beside its profile's capabilities (spec row FIL-11).
FIGURES: dict[str, Callable[[HostState], Any]] = {
    **dict.fromkeys(("host", "hypervisor_hostname"), attrgetter("name")),
    "host_ip": attrgetter("host_ip"),
    **dict.fromkeys(("id", "uuid"), attrgetter("id")),
    **dict.fromkeys(("vcpus", "vcpus_total"), attrgetter("totals.vcpus")),
    "vcpus_used": attrgetter("used.vcpus"),
    **dict.fromkeys(("memory_mb", "total_usable_ram_mb"), attrgetter("totals.memory_mb")),
    "memory_mb_used": attrgetter("used.memory_mb"),
    "free_ram_mb": lambda host: host.totals.memory_mb - host.used.memory_mb,
    **dict.fromkeys(("local_gb", "total_usable_disk_gb"), attrgetter("totals.disk_gb")),
    "local_gb_used": attrgetter("used.disk_gb"),
    "disk_mb_used": lambda host: host.used.disk_gb * 1024,
    "free_disk_gb": lambda host: host.totals.disk_gb - host.used.disk_gb,
    "free_disk_mb": lambda host: (host.totals.disk_gb - host.used.disk_gb) * 1024,
    **dict.fromkeys(("num_instances", "running_vms"), attrgetter("servers")),
    "num_io_ops": attrgetter("io_ops"), "failed_builds": attrgetter("failed_builds")}
#: Compared as numbers; "=" means at least (spec row DIS-05).
NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le}
#: Compared as text.
TEXTS: dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq, "s!=": operator.ne, "s>=": operator.ge, "s>": operator.gt, "s<=": operator.le,
    "s<": operator.lt}
QUERY: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def matches(value: Any, text: str) -> bool:
    """Whether a host's *value* (text, number, list of texts) is as *text* of an extra spec asks (spec row FIL-10)."""
    first, _space, rest = text.strip().partition(" ")
    rest = rest.strip()
    if first in NUMBERS:
        try:
            return NUMBERS[first](float(value), float(rest))
        except (TypeError, ValueError):
            return False
    if first in TEXTS:
        return TEXTS[first](str(value), rest)
    held = value if isinstance(value, (list, tuple, dict)) else str(value)
    if first == "<in>":
        return rest in held
    if first == "<all-in>":
        return all(word in held for word in rest.split())
    if first == "<or>":
        return str(value) in [word.strip() for word in rest.split("<or>")]
    return str(value) == text.strip()


def query(texts: Sequence[str], figure: Callable[[str], Any]) -> bool:
    """Whether all JSON expressions hold, such as ``[">=", "$free_ram_mb", 1024]`` or ``["and", [...], [...]]``;
    ``figure`` returns the value of ``$name``. Malformed ones do not hold."""
    try:
        return all(_holds(orjson.loads(text), figure) for text in texts)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return False


def _holds(expression: Any, figure: Callable[[str], Any]) -> bool:
    verb, *terms = expression
    if verb == "and":
        return all(_holds(term, figure) for term in terms)
    if verb == "or":
        return any(_holds(term, figure) for term in terms)
    if verb == "not":
        return not any(_holds(term, figure) for term in terms)
    first, *others = [figure(term[1:]) if isinstance(term, str) and term.startswith("$") else term for term in terms]
    if first is None or not others:
        return False
    if verb == "in":
        return first in others
    return all(QUERY[verb](first, other) for other in others)


def compute(host: HostState, spec: RequestSpec) -> bool:
    """The host is enabled, in an enabled cell, or was forced; and its agent answers."""
    return (host.profile.enabled or spec.forced) and host.profile.up


def cell(host: HostState, spec: RequestSpec) -> bool:
    """The host is in the cell that the spec names."""
    return host.profile.cell_id == spec.cell_id


def zone(host: HostState, spec: RequestSpec) -> bool:
    """The host is in one of the zones asked for."""
    return host.profile.zone in [one.strip() for one in (spec.availability_zone or "").split(",")]


def room(at: int) -> Callable[[HostState, RequestSpec], bool]:
    """The filter of one resource; what is not asked for is never short."""
    def passes(host: HostState, spec: RequestSpec) -> bool:
        """The host has enough left within its limit, and no less in all than the server needs."""
        return spec.amounts[at] <= 0 or spec.amounts[at] <= host.numbers[at]
    return passes


def requested(host: HostState, spec: RequestSpec) -> bool:
    """It is the host that was asked for."""
    return host.name == spec.host


def not_ignored(host: HostState, spec: RequestSpec) -> bool:
    """It is not one of the ignored hosts (tried before)."""
    return host.name not in spec.ignored


def volumes(host: HostState, spec: RequestSpec) -> bool:
    """The server's root volume lies there."""
    return host.name in (spec.volume_hosts or ())


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
    """The numbers of the host are as the flavor's extra specs ask."""
    return all(matches(FIGURES[path[0]](host), text) for path, text in wanted_capabilities(spec) if path[0] in FIGURES)


def image(host: HostState, spec: RequestSpec) -> bool:
    """The host can run the image: architecture, hypervisor type and vm_mode (spec row FIL-14)."""
    return next(unsuited(spec.image, host.profile.capabilities), None) is None


def aggregate_specs(host: HostState, spec: RequestSpec) -> bool:
    """The host is in aggregates with the metadata that extra specs of that scope ask for; a value may be several, with
    commas."""
    for key, text in spec.extra_specs.items():
        scope, _colon, name = key.partition(":")
        if scope == "aggregate_instance_extra_specs":
            values = [one.strip() for data in host.profile.aggregates if name in data for one in data[name].split(",")]
            if not any(matches(value, text) for value in values):
                return False
    return True


def tenants(host: HostState, spec: RequestSpec) -> bool:
    """The host is in no aggregate for other projects only with metadata filter_tenant_id (spec row FIL-04)."""
    allowed = [one.strip() for data in host.profile.aggregates for key in data if key.startswith("filter_tenant_id")
               for one in data[key].split(",")]
    return not allowed or spec.project_id in allowed


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
    Filter("AggregateMultiTenancyIsolation", PROFILE, tenants, lambda spec: not spec.forced),
    Filter("AggregateInstanceExtraSpecsFilter", PROFILE, aggregate_specs, lambda spec: spec.extra_specs),
    Filter("ComputeCapabilitiesFilter", PROFILE, capabilities, lambda spec: spec.extra_specs),
    Filter("ImagePropertiesFilter", PROFILE, image, lambda spec: spec.image),
    Filter("CoreFilter", ROOM, room(0)),
    Filter("RamFilter", ROOM, room(1)),
    Filter("DiskFilter", ROOM, room(2)),
    Filter("VolumeHostFilter", NAME, volumes, lambda spec: spec.volume_hosts is not None),
    Filter("DifferentHostFilter", NAME, different, lambda spec: spec.different_host),
    Filter("SameHostFilter", NAME, same, lambda spec: spec.same_host is not None),
    Filter("ServerGroupAntiAffinityFilter", NAME, apart,
           lambda spec: spec.group and spec.group.policy == "anti-affinity"),
    Filter("ServerGroupAffinityFilter", NAME, together, lambda spec: spec.group and spec.group.policy == "affinity"),
    Filter("ComputeCapabilitiesFilter", HOST, figures,
           lambda spec: any(path[0] in FIGURES for path, _text in wanted_capabilities(spec))),
    Filter("SimpleCIDRAffinityFilter", HOST, near, lambda spec: spec.hints.get("build_near_host_ip")),
    Filter("JsonFilter", HOST, queried, lambda spec: spec.hints.get("query")),
)


def enabled(names: Iterable[str] = USUAL) -> tuple[Filter, ...]:
    """The filters *names*, and those that are always applied, since a claim would be refused otherwise. Raises
    ``ValueError`` for an unknown name."""
    wanted, known = set(names), dict.fromkeys(one.name for one in FILTERS)
    for wrong in sorted(wanted - known.keys()):
        near = difflib.get_close_matches(wrong, known, 1)
        raise ValueError(f"there is no filter {wrong!r}; " + (f"did you mean {near[0]}? " if near else "") +
                         f"There are {', '.join(known)}.")
    return tuple(one for one in FILTERS if one.name in wanted or one.name not in (*USUAL, *OPTIONAL))


#: What is applied without any setting.
USUAL_FILTERS = enabled()
