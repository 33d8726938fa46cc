# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of volume."""

from __future__ import annotations

from typing import Any

from tests.unit.agent.conftest import Host


def image(host: Host, name: str = "img", size: int = 3 << 20) -> dict[str, Any]:
    path = host.root / f"{name}.raw"
    with path.open("wb") as stream:
        stream.truncate(size)
    return host.ensure("image", name, {"source": {"path": str(path)}, "disk_format": "raw"}).resource
