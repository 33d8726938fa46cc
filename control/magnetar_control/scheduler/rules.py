# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the scheduler: its filters, and the multipliers of weighers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings

from . import own
from .filters import USUAL_FILTERS, Filter, applied_filters
from .options import USUAL as USUAL_OPTIONS
from .options import Options
from .request_spec import RequestSpec
from .weighers import MULTIPLIER, USUAL, ComputedWeigher, Multipliers, image_locality


@dataclass(frozen=True)
class Rules:
    """The settings with which the scheduler filters and weighs hosts."""

    multipliers: Multipliers = USUAL
    filters: tuple[Filter, ...] = USUAL_FILTERS
    subset: int = 1  # the first host is drawn from this many of the best (Nova's host_subset_size)
    computed_weighers: tuple[ComputedWeigher, ...] = ()
    options: Options = USUAL_OPTIONS  # settings of the filters, and of metrics

    @property
    def reads_reports(self) -> bool:
        """Return whether a weigher or filter uses the metrics and images that hosts report."""
        return bool(self.options.metrics or self.computed_weighers)

    @property
    def looks_at_flavors(self) -> bool:
        """Return whether a filter uses the flavors of the servers on hosts."""
        return any(host_filter.name == "TypeAffinityFilter" for host_filter in self.filters)

    def filters_for(self, spec: RequestSpec) -> list[Filter]:
        """Return the filters that may refuse a host for *spec*."""
        return [host_filter for host_filter in self.filters if host_filter.applies(spec)]


#: Nova's defaults.
DEFAULT_RULES = Rules()


def scheduler_rules(settings: Settings) -> Rules:
    """Return the scheduler's ``Rules`` from *settings*. Raises ``InvalidSettings``."""
    multipliers = {}
    for multiplier_field in fields(Multipliers):
        name, soft = multiplier_field.name + MULTIPLIER, multiplier_field.name.startswith(("soft_", "pci"))
        value = multipliers[multiplier_field.name] = getattr(settings, name)
        if not math.isfinite(value) or (soft and value < 0):
            raise InvalidSettings(f"{name} must be a number{' from 0' if soft else ''}, and is {value}.")
    if settings.host_subset_size < 1:
        raise InvalidSettings(f"host_subset_size must be 1 or more, and is {settings.host_subset_size}.")
    options = options_of(settings)
    try:
        names = [*map(str, settings.enabled_filters), *(["MetricsFilter"] if options.metrics_required else [])]
        filters = applied_filters(names, options)
    except ValueError as error:
        raise InvalidSettings(f"enabled_filters: {error}") from None
    _check(filters, options)
    return Rules(Multipliers(**multipliers), filters, settings.host_subset_size, _computed_weighers(settings), options)


def options_of(settings: Settings) -> Options:
    """Return those of *settings* that filters use. Raises ``InvalidSettings``."""
    return Options(
        settings.max_instances_per_host, settings.max_io_ops_per_host, frozenset(map(str, settings.isolated_hosts)),
        frozenset(map(str, settings.isolated_images)), settings.restrict_isolated_hosts_to_isolated_images,
        settings.aggregate_image_properties_isolation_namespace,
        settings.aggregate_image_properties_isolation_separator, settings.enable_isolated_aggregate_filtering,
        settings.limit_tenants_to_placement_aggregate, settings.placement_aggregate_required_for_tenants,
        _numbers("metrics_weight_setting", settings.metrics_weight_setting), settings.metrics_required,
        settings.metrics_weight_of_unavailable, settings.reserve_room_to_fail)


def _check(filters: tuple[Filter, ...], options: Options) -> None:
    """Raise ``InvalidSettings`` if *options* contain settings of a filter that is not in *filters*, because they would
    have no effect."""
    names = {host_filter.name for host_filter in filters}
    if (options.isolated_hosts or options.isolated_images) and "IsolatedHostsFilter" not in names:
        raise InvalidSettings("isolated_hosts and isolated_images do nothing unless enabled_filters names "
                              "IsolatedHostsFilter.")


def _numbers(setting: str, numbers_by_name: Mapping[str, object]) -> dict[str, float]:
    numbers = {}
    for name, value in numbers_by_name.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidSettings(f"{setting}: {name} must be a number, and is {value!r}.")
        numbers[str(name)] = float(value)
    return numbers


def _computed_weighers(settings: Settings) -> tuple[ComputedWeigher, ...]:
    """Return the image locality weigher, and the custom weighers that the setting ``weighers`` names, loaded from
    installed packages. Weighers whose multiplier is 0 are left out. Raises ``InvalidSettings``."""
    weighers = [ComputedWeigher("image_locality", image_locality, settings.image_locality_weight_multiplier)]
    for name, multiplier in _numbers("weighers", settings.weighers).items():
        try:
            function = own.load_custom_function(own.GROUP_WEIGHERS, name)
        except ValueError as error:
            raise InvalidSettings(f"weighers: {error}.") from None
        if function is None:
            raise InvalidSettings(f"weighers: no installed package has an entry point {name!r} of the group "
                                  f"{own.GROUP_WEIGHERS}.")
        weighers.append(ComputedWeigher(name, own.guard_custom_function(name, function, 0.0), multiplier))
    return tuple(weigher for weigher in weighers if weigher.multiplier)
