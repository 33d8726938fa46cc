# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded network service: Neutron's API v2.0 for servers, over the agents' kind ``network``."""

from __future__ import annotations

from .embedded import EmbeddedNetworks

__all__ = ["EmbeddedNetworks"]
