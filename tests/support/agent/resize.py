# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of resize."""

from __future__ import annotations

from pathlib import Path

from magnetar_agent.servers import MIB
from tests.unit.agent.conftest import Host


def image(host: Host, name: str, mib: int = 8, **properties: str) -> str:
    (host.root / name).write_bytes(name.encode().ljust(MIB * mib, b"."))
    return str(host.ensure("image", name, {"source": {"path": str(host.root / name)}, "disk_format": "raw",
                                        "properties": properties}).resource["id"])  # type: ignore[index]


def folder(host: Host) -> Path:
    return host.root / "state" / "servers" / host.show()["id"]
