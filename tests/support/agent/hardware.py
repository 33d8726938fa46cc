# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of hardware."""

from __future__ import annotations

from typing import Any

from tests.unit.agent.conftest import SMALL, Host


def flavor(host: Host, name: str, **specs: str) -> dict[str, Any]:
    """Create a flavor with these extra *specs*, and return the fields of a server that requests it."""
    host.ensure("flavor", name, {**SMALL, "extra_specs": {key.replace("__", ":"): specs[key] for key in specs}})
    return {"flavor": name}


def image(host: Host, **properties: str) -> dict[str, Any]:
    """Create an image with these *properties*, and return the fields of a server that requests it."""
    (host.root / "content").write_bytes(b"\0" * 65536)
    host.ensure("image", "odd", {"source": {"path": str(host.root / "content")}, "properties": properties})
    return {"flavor": SMALL, "image": "odd"}
