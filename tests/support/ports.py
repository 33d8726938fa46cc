# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports for servers that tests start, and start again."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle

#: Below those that the kernel gives to connections (ip_local_port_range), which could take one while a server is away.
RANGE = range(20000, 32000)
#: Each process of tests has a part of them, whichever stage and clone it is of: what a server leaves for a moment,
#: nobody else takes.
PARTS = 40


def claimed(part: int) -> socket.socket | None:
    """A part of the ports as this process's own, as long as what is returned is open. None: another's.

    A name of an abstract socket (unix(7)) is one process's in a network namespace, as ports are, and goes with it.
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
    """What holds this process's part, and its ports: each is given again after all the others only."""
    for part in range(PARTS):
        if (sock := claimed(part)) is not None:
            ports = list(RANGE[part::PARTS])
            random.SystemRandom().shuffle(ports)
            return sock, cycle(ports)
    raise RuntimeError(f"All {PARTS} parts of the ports {RANGE.start} to {RANGE.stop - 1} are other test processes'. "
                       "End some of them (ss -xl | grep magnetar-tests-ports).")


def free_port() -> int:
    """A port of the loopback address at which nobody listens, and that no other test's server will take."""
    while True:
        port = next(_own()[1])
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
