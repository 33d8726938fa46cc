# SPDX-License-Identifier: GPL-3.0-or-later
"""The identity service: the embedded one, and the client of a Keystone."""

from __future__ import annotations

from .bootstrap import clouds_yaml
from .embedded import EmbeddedIdentity

__all__ = ["EmbeddedIdentity", "clouds_yaml"]
