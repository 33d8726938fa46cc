# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of build."""

from __future__ import annotations

from typing import Any

from tests.unit.control.attachments.asking import Owner


def block(source: str, uuid_: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an item of block_device_mapping_v2 for a volume."""
    named = {"uuid": uuid_} if uuid_ else {}
    return {"source_type": source, "destination_type": "volume", "boot_index": None, **named, **more}


def root(owner: Owner) -> dict[str, Any]:
    """Return the item of block_device_mapping_v2 for the server's own image, which clients send next to other items."""
    return {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": owner.call.image(),
            "delete_on_termination": True}
