# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports for servers that tests start, and start again."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

#: Below those that the kernel gives to connections (ip_local_port_range), which could take one while a server is away.
RANGE = range(20000, 32000)
#: Each of the processes among which pytest shares the tests has a part of them: what a server leaves for a moment,
#: nobody else takes.
PARTS = 8
_MINE = RANGE[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % PARTS::PARTS]
_given: set[int] = set()


def free_port() -> int:
    """A port of the loopback address at which nobody listens, and that was not given before."""
    while True:
        port = random.SystemRandom().choice(_MINE)
        if port not in _given or len(_given) == len(_MINE):
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _given.add(port)
                return port
