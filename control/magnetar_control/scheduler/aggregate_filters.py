# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that compare the metadata of a host's aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from magnetar_control.store.claims.allocations import Ratios
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.matching import matches_extra_spec, parse_finite

from .figures import FIGURES
from .host_state import HostState
from .options import Options
from .request_spec import RequestSpec

#: Metadata of aggregates that is no image property, though its name may look like one.
_NO_PROPERTIES = ("availability_zone", "filter_tenant_id", "instance_type", "max_instances_per_host",
                  "max_io_ops_per_host")

#: Metadata whose least number above 0 counts.
NUMBERS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio", "max_instances_per_host",
           "max_io_ops_per_host")


def metadata_values(aggregates: Iterable[Mapping[str, str]], name: str) -> list[str]:
    """Return the values of the key *name* in the metadata of aggregates; commas separate several values of one key."""
    return [text.strip() for metadata in aggregates if name in metadata for text in metadata[name].split(",")]


def least_metadata_number(aggregates: Iterable[Mapping[str, str]], name: str, usual: float) -> float:
    """Return the least number above 0 among the values of the key *name* in the metadata of aggregates; *usual* if
    there is no such number."""
    return min((n for text in metadata_values(aggregates, name) if (n := parse_finite(text) or 0.0) > 0), default=usual)


def ratios_of_aggregates(aggregates: Sequence[Mapping[str, str]], usual: Ratios) -> Ratios:
    """Return the allocation ratios of a host: the least cpu_allocation_ratio, ram_allocation_ratio and
    disk_allocation_ratio in the metadata of its aggregates, or else the *usual* ratios."""
    return Ratios(*(least_metadata_number(aggregates, f"{name}_allocation_ratio", n)
                    for name, n in zip(("cpu", "ram", "disk"), usual, strict=True)))


def projects_of(metadata: Mapping[str, str]) -> list[str]:
    """Return the projects that an aggregate with this *metadata* is reserved for (``filter_tenant_id``, with any
    suffix); an empty list if the aggregate is not reserved for any project."""
    return [project.strip() for name in metadata if name.startswith("filter_tenant_id")
            for project in metadata[name].split(",") if project.strip()]


def required_metadata(host: HostState, extra_specs: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield (key, text) for the aggregate metadata that a flavor's *extra_specs* require: some aggregate of the host
    must have a value of this key that matches the text. Extra specs with the scope ``aggregate_instance_extra_specs``
    and, as in Nova, extra specs without a scope require such metadata. An extra spec without a scope is left out if it
    has another meaning: a capability of the host (``cpu_model``), or a key that another part of Magnetar uses
    (``hide_hypervisor_id``)."""
    for key, text in extra_specs.items():
        scope, colon, name = key.partition(":")
        if colon:
            if scope == "aggregate_instance_extra_specs":
                yield name, text
        elif not (key in FIGURES or key in host.profile.capabilities or FLAVOR_SPECS.find(key)):
            yield key, text


def _unmet(host: HostState, spec: RequestSpec) -> Iterator[tuple[str, str]]:
    """Yield (key, requested value) for the aggregate metadata that *spec* requests and no aggregate of the host has."""
    return ((name, text) for name, text in required_metadata(host, spec.extra_specs)
            if not any(matches_extra_spec(value, text) for value in metadata_values(host.profile.aggregates, name)))


def aggregate_specs(host: HostState, spec: RequestSpec) -> bool:
    """The host's aggregates have the metadata that extra specs with the scope aggregate_instance_extra_specs, or
    without a scope, require. Commas separate several values of a metadata key."""
    return next(_unmet(host, spec), None) is None


def lacking_specs(host: HostState, spec: RequestSpec) -> str:
    """Return a text about the metadata that *spec* requests and no aggregate of the host has; empty if no metadata is
    missing."""
    return " and ".join(f"is in no aggregate with the metadata {name}={text}" for name, text in _unmet(host, spec))


def aggregates_allow_project(host: HostState, spec: RequestSpec) -> bool:
    """If aggregates of the host are reserved for projects (metadata filter_tenant_id), the server's project is one of
    these projects."""
    allowed = [project for metadata in host.profile.aggregates for project in projects_of(metadata)]
    return not allowed or spec.project_id in allowed


def own_aggregate(host: HostState, spec: RequestSpec) -> bool:
    """If the setting limit_tenants_to_placement_aggregate is true and an aggregate is reserved for the project
    (metadata filter_tenant_id), the host is in such an aggregate."""
    return any(spec.project_id in projects_of(metadata) for metadata in host.profile.aggregates)


def aggregates_allow_flavor(host: HostState, spec: RequestSpec) -> bool:
    """Each aggregate of the host that has the metadata instance_type lists the server's flavor there."""
    return all(spec.flavor_name in [flavor.strip() for flavor in metadata["instance_type"].split(",")]
               for metadata in host.profile.aggregates if "instance_type" in metadata)


def image_properties(host: HostState, spec: RequestSpec, *, options: Options) -> bool:
    """For each metadata key of the host's aggregates that is also an image property, the image has one of the key's
    values. The setting aggregate_image_properties_isolation_namespace gives the keys a prefix."""
    begins = options.image_namespace and options.image_namespace + options.image_separator
    for metadata in host.profile.aggregates:
        for name in metadata:
            if name in _NO_PROPERTIES or (begins and not name.startswith(begins)):
                continue
            has = spec.image.get(name)
            if has is not None and str(has) not in [text.strip() for text in metadata[name].split(",")]:
                return False
    return True


def isolated_traits(host: HostState, spec: RequestSpec) -> bool:
    """If the setting enable_isolated_aggregate_filtering is true, flavor and image together require all traits in the
    metadata of the host's aggregates, such as trait:CUSTOM_LICENSED=required."""
    return all(trait in spec.traits.required for metadata in host.profile.aggregates
               for trait in traits_required_by(metadata))


def traits_required_by(metadata: Mapping[str, Any]) -> Iterable[str]:
    """Yield the traits that servers on the hosts of an aggregate with this *metadata* must require
    (``trait:NAME=required``)."""
    return (name.removeprefix("trait:") for name, value in metadata.items()
            if name.startswith("trait:") and value == "required")
