# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that look at the metadata of the aggregates that a host is in (spec rows AGG, FIL)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from magnetar_control.store.claims.allocations import Ratios
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.matching import finite, matches

from .figures import FIGURES
from .host_state import HostState
from .options import Options
from .request_spec import RequestSpec

#: Metadata of aggregates that says no property of an image, though its name may look like one.
_NO_PROPERTIES = ("availability_zone", "filter_tenant_id", "instance_type", "max_instances_per_host",
                  "max_io_ops_per_host")

#: Metadata of which the least number above 0 counts.
NUMBERS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio", "max_instances_per_host",
           "max_io_ops_per_host")


def values(aggregates: Iterable[Mapping[str, str]], name: str) -> list[str]:
    """What the metadata of aggregates says under *name*; each may say several, with commas."""
    return [one.strip() for data in aggregates if name in data for one in data[name].split(",")]


def least(aggregates: Iterable[Mapping[str, str]], name: str, usual: float) -> float:
    """The least number above 0 that the aggregates say under *name*; *usual* where none says one (spec rows FIL-03,
    FIL-05)."""
    return min((n for text in values(aggregates, name) if (n := finite(text) or 0.0) > 0), default=usual)


def ratios(aggregates: Sequence[Mapping[str, str]], usual: Ratios) -> Ratios:
    """The allocation ratios of a host: the least that the metadata of its aggregates says in cpu_allocation_ratio,
    ram_allocation_ratio and disk_allocation_ratio, else the *usual* (spec rows AGG-10, SCHED-022, -027, -030)."""
    return Ratios(*(least(aggregates, f"{name}_allocation_ratio", n)
                    for name, n in zip(("cpu", "ram", "disk"), usual, strict=True)))


def projects_of(metadata: Mapping[str, str]) -> list[str]:
    """The projects that an aggregate is for (``filter_tenant_id``, with any suffix; spec row AGG-06)."""
    return [one.strip() for name in metadata if name.startswith("filter_tenant_id")
            for one in metadata[name].split(",") if one.strip()]


def asked_of_aggregates(host: HostState, extra_specs: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield names of metadata and the texts that their values must match: extra specs of the scope
    ``aggregate_instance_extra_specs``, and as in Nova those without a scope, except for names that another part of
    Magnetar acts on (``hide_hypervisor_id``) and for capabilities of the host (``cpu_model``)."""
    for key, text in extra_specs.items():
        scope, colon, name = key.partition(":")
        if colon:
            if scope == "aggregate_instance_extra_specs":
                yield name, text
        elif not (key in FIGURES or key in host.profile.capabilities or FLAVOR_SPECS.find(key)):
            yield key, text


def _unmet(host: HostState, spec: RequestSpec) -> Iterator[tuple[str, str]]:
    """Yield what extra specs ask of aggregates and no aggregate of the host has."""
    return ((name, text) for name, text in asked_of_aggregates(host, spec.extra_specs)
            if not any(matches(value, text) for value in values(host.profile.aggregates, name)))


def aggregate_specs(host: HostState, spec: RequestSpec) -> bool:
    """The host is in aggregates with the metadata that extra specs of that scope, or of none, ask for; a value may be
    several, with commas."""
    return next(_unmet(host, spec), None) is None


def lacking_specs(host: HostState, spec: RequestSpec) -> str:
    """Return which metadata no aggregate of the host has."""
    return " and ".join(f"is in no aggregate with the metadata {name}={text}" for name, text in _unmet(host, spec))


def tenants(host: HostState, spec: RequestSpec) -> bool:
    """The host is in no aggregate for other projects only with metadata filter_tenant_id (spec row FIL-04)."""
    allowed = [one for data in host.profile.aggregates for one in projects_of(data)]
    return not allowed or spec.project_id in allowed


def own_aggregate(host: HostState, spec: RequestSpec) -> bool:
    """With the setting limit_tenants_to_placement_aggregate: the host is in an aggregate for the project (metadata
    filter_tenant_id), where there is one (spec row AGG-05)."""
    return any(spec.project_id in projects_of(data) for data in host.profile.aggregates)


def flavors(host: HostState, spec: RequestSpec) -> bool:
    """The host's aggregates do not name flavors in instance_type, or name this one (spec row FIL-06)."""
    return all(spec.flavor_name in [one.strip() for one in data["instance_type"].split(",")]
               for data in host.profile.aggregates if "instance_type" in data)


def image_properties(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """The host's aggregates have no other values than the image for the image's properties; with the setting
    aggregate_image_properties_isolation_namespace, only metadata that begins with it counts (spec row FIL-01)."""
    begins = options.image_namespace and options.image_namespace + options.image_separator
    for data in host.profile.aggregates:
        for name in data:
            if name in _NO_PROPERTIES or (begins and not name.startswith(begins)):
                continue
            has = spec.image.get(name)
            if has is not None and str(has) not in [one.strip() for one in data[name].split(",")]:
                return False
    return True


def isolated_traits(host: HostState, spec: RequestSpec) -> bool:
    """With the setting enable_isolated_aggregate_filtering: flavor and image require all traits that the metadata of
    the host's aggregates require, such as trait:CUSTOM_LICENSED=required (spec row PRE-05)."""
    return all(trait in spec.traits.required for data in host.profile.aggregates for trait in required(data))


def required(metadata: Mapping[str, Any]) -> Iterable[str]:
    """Traits that an aggregate requires of the servers on its hosts."""
    return (name.removeprefix("trait:") for name, value in metadata.items()
            if name.startswith("trait:") and value == "required")
