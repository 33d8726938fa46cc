# SPDX-License-Identifier: GPL-3.0-or-later
"""host_info."""

from __future__ import annotations

from ..core.kinds.host import Host
from .resource import InfoFace

MODULES = {"host_info": InfoFace(Host, filtered=False)}
