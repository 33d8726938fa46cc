# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the scheduler: multipliers of weighers, and filters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings

from . import own
from .filters import USUAL_FILTERS, Filter, enabled
from .options import USUAL as USUAL_OPTIONS
from .options import Options
from .request_spec import RequestSpec
from .weighers import MULTIPLIER, USUAL, Multipliers, OwnWeigher, image_locality


@dataclass(frozen=True)
class Rules:
    """Settings of a choice."""

    multipliers: Multipliers = USUAL
    filters: tuple[Filter, ...] = USUAL_FILTERS
    subset: int = 1  # the first host is drawn among so many of the best (Nova's host_subset_size)
    own: tuple[OwnWeigher, ...] = ()
    options: Options = USUAL_OPTIONS  # what the filters were made with, and metrics

    @property
    def looks_at_told(self) -> bool:
        """Whether a weigher or filter looks at metrics and images of hosts."""
        return bool(self.options.metrics or self.own)

    @property
    def looks_at_flavors(self) -> bool:
        """Whether a filter looks at the flavors of servers that are there."""
        return any(one.name == "TypeAffinityFilter" for one in self.filters)

    def asked(self, spec: RequestSpec) -> list[Filter]:
        """The filters that may refuse a host for *spec*."""
        return [one for one in self.filters if one.asked(spec)]


#: Nova's defaults.
DEFAULT_RULES = Rules()


def rules_of(settings: Settings) -> Rules:
    """The rules of the settings. Raises ``InvalidSettings``."""
    multipliers = {}
    for one in fields(Multipliers):
        name, soft = one.name + MULTIPLIER, one.name.startswith(("soft_", "pci"))
        value = multipliers[one.name] = getattr(settings, name)
        if not math.isfinite(value) or (soft and value < 0):
            raise InvalidSettings(f"{name} must be a number{' from 0' if soft else ''}, and is {value}.")
    if settings.host_subset_size < 1:
        raise InvalidSettings(f"host_subset_size must be 1 or more, and is {settings.host_subset_size}.")
    options = options_of(settings)
    try:
        names = [*map(str, settings.enabled_filters), *(["MetricsFilter"] if options.metrics_required else [])]
        filters = enabled(names, options)
    except ValueError as error:
        raise InvalidSettings(f"enabled_filters: {error}") from None
    _check(filters, options)
    return Rules(Multipliers(**multipliers), filters, settings.host_subset_size, _own_weighers(settings), options)


def options_of(settings: Settings) -> Options:
    """What the settings say of filters. Raises ``InvalidSettings``."""
    return Options(
        settings.max_instances_per_host, settings.max_io_ops_per_host, frozenset(map(str, settings.isolated_hosts)),
        frozenset(map(str, settings.isolated_images)), settings.restrict_isolated_hosts_to_isolated_images,
        settings.aggregate_image_properties_isolation_namespace,
        settings.aggregate_image_properties_isolation_separator, settings.enable_isolated_aggregate_filtering,
        settings.limit_tenants_to_placement_aggregate, settings.placement_aggregate_required_for_tenants,
        _numbers("metrics_weight_setting", settings.metrics_weight_setting), settings.metrics_required,
        settings.metrics_weight_of_unavailable)


def _check(filters: tuple[Filter, ...], options: Options) -> None:
    """A setting of a filter that is not applied would do nothing, and so would a filter without what it looks at."""
    names = {one.name for one in filters}
    if (options.isolated_hosts or options.isolated_images) and "IsolatedHostsFilter" not in names:
        raise InvalidSettings("isolated_hosts and isolated_images do nothing unless enabled_filters names "
                              "IsolatedHostsFilter.")


def _numbers(setting: str, given: Mapping[str, object]) -> dict[str, float]:
    found = {}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidSettings(f"{setting}: {name} must be a number, and is {value!r}.")
        found[str(name)] = float(value)
    return found


def _own_weighers(settings: Settings) -> tuple[OwnWeigher, ...]:
    """Those whose multiplier is not 0: that of images, and those of one's own."""
    found = [OwnWeigher("image_locality", image_locality, settings.image_locality_weight_multiplier)]
    for name, multiplier in _numbers("weighers", settings.weighers).items():
        try:
            function = own.found(own.GROUP_WEIGHERS, name)
        except ValueError as error:
            raise InvalidSettings(f"weighers: {error}.") from None
        if function is None:
            raise InvalidSettings(f"weighers: no installed package has an entry point {name!r} of the group "
                                  f"{own.GROUP_WEIGHERS}.")
        found.append(OwnWeigher(name, own.guarded(name, function, 0.0), multiplier))
    return tuple(one for one in found if one.multiplier)
