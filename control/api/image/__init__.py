# SPDX-License-Identifier: GPL-3.0-or-later
"""Glance's API v2 over the embedded image service."""

from __future__ import annotations

from .app import application

__all__ = ["application"]
