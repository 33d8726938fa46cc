# SPDX-License-Identifier: GPL-3.0-or-later
"""A server in the place of another one, which goes before."""

from __future__ import annotations

from .asks import Document


def kept(have: Document, want: Document) -> list[str]:
    """Volumes that go with the server, but that the one in its place is to have too."""
    named = {one.get("uuid") for one in want.get("block_device_mapping") or () if one["source_type"] == "volume"}
    return [one["id"] for one in have["volumes_attached"]
            if one["delete_on_termination"] and not named.isdisjoint((one["id"], one["name"]))]
