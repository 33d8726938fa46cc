# SPDX-License-Identifier: GPL-3.0-or-later
"""Cinder's API v3 over the embedded volume service."""

from __future__ import annotations

from .app import Application

__all__ = ["Application"]
