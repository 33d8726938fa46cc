# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the scheduler: multipliers of weighers, and filters."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings

from .filters import USUAL_FILTERS, Filter, enabled
from .request_spec import RequestSpec
from .weighers import USUAL, Multipliers


@dataclass(frozen=True)
class Rules:
    """Settings of a choice."""

    multipliers: Multipliers = USUAL
    filters: tuple[Filter, ...] = USUAL_FILTERS
    subset: int = 1  # the first host is drawn among so many of the best (Nova's host_subset_size)

    def asked(self, spec: RequestSpec) -> list[Filter]:
        """The filters that may refuse a host for *spec*."""
        return [one for one in self.filters if one.asked(spec)]


#: Nova's defaults.
DEFAULT_RULES = Rules()


def rules_of(settings: Settings) -> Rules:
    """The rules of the settings. Raises ``InvalidSettings``."""
    multipliers = {}
    for one in fields(Multipliers):
        name, soft = f"{one.name}_weight_multiplier", one.name.startswith("soft_")
        value = multipliers[one.name] = getattr(settings, name)
        if not math.isfinite(value) or (soft and value < 0):
            raise InvalidSettings(f"{name} must be a number{' from 0' if soft else ''}, and is {value}.")
    if settings.host_subset_size < 1:
        raise InvalidSettings(f"host_subset_size must be 1 or more, and is {settings.host_subset_size}.")
    try:
        filters = enabled(map(str, settings.enabled_filters))
    except ValueError as error:
        raise InvalidSettings(f"enabled_filters: {error}") from None
    return Rules(Multipliers(**multipliers), filters, settings.host_subset_size)
