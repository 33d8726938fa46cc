# SPDX-License-Identifier: GPL-3.0-or-later
"""network, network_info."""

from __future__ import annotations

from ..core.kinds.network import Network
from .resource import InfoFace, ResourceFace


class NetworkFace(ResourceFace):
    kind = Network


MODULES = {"network": NetworkFace(), "network_info": InfoFace(Network)}
