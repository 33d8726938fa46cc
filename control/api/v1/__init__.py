# SPDX-License-Identifier: GPL-3.0-or-later
"""The agents' protocol (``/v1``) for a whole cloud: the same documents, answers and errors. What does it are the
cloud's own APIs, asked as the caller, so that policy, quota and isolation are theirs."""

from __future__ import annotations

from .app import Native

__all__ = ["Native"]
