# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports for servers that tests start and restart."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle

#: Ports below the kernel's range for connections (ip_local_port_range), which could take one while a server restarts.
RANGE = range(20000, 32000)
#: Each process of tests has a part of them, whichever stage and clone it is of: what a server leaves for a moment,
#: nobody else takes.
PARTS = 40


def claimed(part: int) -> socket.socket | None:
    """Claim a part of the ports for this process, until the returned socket is closed. ``None``: another process has
    it.

    A name of an abstract socket (unix(7)) belongs to one process in a network namespace, as ports do, and vanishes with
    it.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0magnetar-tests-ports-{part}")
    except OSError:
        sock.close()
        return None
    return sock


@cache
def _own() -> tuple[socket.socket, Iterator[int]]:
    """Return the socket that holds this process's part, and an endless iterator over the part's ports."""
    for part in range(PARTS):
        if (sock := claimed(part)) is not None:
            ports = list(RANGE[part::PARTS])
            random.SystemRandom().shuffle(ports)
            return sock, cycle(ports)
    raise RuntimeError(f"All {PARTS} parts of the ports {RANGE.start} to {RANGE.stop - 1} are other test processes'. "
                       "End some of them (ss -xl | grep magnetar-tests-ports).")


def free_port() -> int:
    """Return a port of the loopback address where nothing listens, and that no other test process uses."""
    while True:
        port = next(_own()[1])
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
