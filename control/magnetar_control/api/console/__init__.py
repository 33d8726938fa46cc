# SPDX-License-Identifier: GPL-3.0-or-later
"""``/console``: pages for browsers, with noVNC, spice-html5 and xterm.js from the operating system's packages, and the
WebSocket that the pages open, which leads to the agent of the server's host."""

from __future__ import annotations

from .app import ConsoleApplication

__all__ = ["ConsoleApplication"]
