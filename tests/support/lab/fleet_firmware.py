# SPDX-License-Identifier: GPL-3.0-or-later
"""Sizes of servers with UEFI or a TPM in a fleet, and their migration."""

from __future__ import annotations

from magnetar_core.flows.migrate import Migrate, Side
from tests.support.lab.fleet import Fleet

SIZES = {"flavor": {"vcpus": 1, "ram": 128, "disk": 1}, "image": None}


def go(fleet: Fleet, source: str, target: str, server: str, kind: str) -> None:
    """Migrate a server."""
    for _step in Migrate(Side(fleet.client(source)), Side(fleet.client(target)), server, {"type": kind}).steps():
        pass
