# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded volume service: Cinder's API v3. The agents store the content as their kinds ``volume`` and
``volume_snapshot``."""

from __future__ import annotations

from .embedded import EmbeddedVolumes

__all__ = ["EmbeddedVolumes"]
