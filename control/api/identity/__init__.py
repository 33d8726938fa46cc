# SPDX-License-Identifier: GPL-3.0-or-later
"""Keystone's API v3 over the embedded identity service."""

from __future__ import annotations

from .app import application
from .elsewhere import Elsewhere

__all__ = ["Elsewhere", "application"]
