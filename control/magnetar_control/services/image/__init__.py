# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded image service."""

from __future__ import annotations

from .embedded import EmbeddedImages

__all__ = ["EmbeddedImages"]
