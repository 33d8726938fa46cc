# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that filters read, with Nova's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """The settings of filters, collected from ``Settings``. ``control/magnetar_control/settings.py`` describes each
    setting."""

    max_instances_per_host: int = 50
    max_io_ops_per_host: int = 8
    isolated_hosts: frozenset[str] = frozenset()
    isolated_images: frozenset[str] = frozenset()
    restrict_isolated_hosts_to_isolated_images: bool = True
    image_namespace: str | None = None
    image_separator: str = "."
    isolated_aggregates: bool = False
    tenant_aggregates: bool = False
    tenants_need_aggregates: bool = False
    #: Ratios of hosts' metrics, by name.
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_required: bool = True
    weight_of_unavailable: float = -10_000.0
    reserve_room_to_fail: bool = False


#: Nova's defaults.
USUAL = Options()
