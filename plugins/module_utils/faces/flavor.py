# SPDX-License-Identifier: GPL-3.0-or-later
"""flavor, flavor_info."""

from __future__ import annotations

from ..core.kinds.flavor import Flavor
from .resource import InfoFace, ResourceFace


class FlavorFace(ResourceFace):
    kind = Flavor


MODULES = {"flavor": FlavorFace(), "flavor_info": InfoFace(Flavor)}
