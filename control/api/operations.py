# SPDX-License-Identifier: GPL-3.0-or-later
"""All operations of the Compute API that are served. What the conformance table has besides answers 404."""

from __future__ import annotations

from .handlers import server_actions, server_create, servers

OPERATIONS = (*servers.OPERATIONS, *server_create.OPERATIONS, *server_actions.OPERATIONS)
