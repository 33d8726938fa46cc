# SPDX-License-Identifier: GPL-3.0-or-later
"""``/console``: the pages of consoles for browsers, with noVNC, spice-html5 and xterm.js from the operating system's
packages, and the WebSocket that connects a page to the agent of the server's host."""

from __future__ import annotations

from .app import ConsoleApplication

__all__ = ["ConsoleApplication"]
