# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of placement."""

from __future__ import annotations

from typing import Any

from magnetar_agent.servers.hardware import placement
from magnetar_core.hardware.numa import HostCell
from tests.support.agent.pair import Kvm
from tests.unit.agent.conftest import Host

CELLS = (HostCell(0, frozenset(), frozenset(range(4)), 3072, {2048: 512}),
         HostCell(1, frozenset(), frozenset(range(4, 8)), 3072, {2048: 512}))


def placed(host: Host | Kvm, name: str = "web1") -> dict[str, Any]:
    """Return the placement (CPUs, memory, devices) in a server's document."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    found: dict[str, Any] = document.want[placement.FIELD]
    return found
