# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports for servers that tests start, and start again."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

#: Below those that the kernel gives to connections (ip_local_port_range), which could take one while a server is away.
RANGE = range(20000, 32000)


def free_port() -> int:
    """A port of the loopback address at which nobody listens."""
    while True:
        port = random.SystemRandom().choice(RANGE)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
