# SPDX-License-Identifier: GPL-3.0-or-later
"""The agents' protocol (``/v1``) for a whole cloud: the same documents, answers and errors as on a host. Its resource
drivers, one for each resource type, call the use cases of the Compute API as the caller, so policy, quota and isolation
are the same."""

from __future__ import annotations

from .app import V1Application

__all__ = ["V1Application"]
