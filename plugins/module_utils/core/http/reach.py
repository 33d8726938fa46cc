# SPDX-License-Identifier: GPL-3.0-or-later
"""The question whether another host is alive, as the network of this machine shows it."""

from __future__ import annotations

import socket

from ..errors import InvalidField

#: Seconds to wait for the other host.
PATIENCE = 2.0
#: The highest port number.
PORTS = 65535


def is_host_reached(address: str, port: int) -> bool:
    """Return whether a host answers at *address* (IP address or name): it accepts or refuses a TCP connection to
    *port*. A host that refuses is alive, although its agent does not run. Raises ``InvalidField``."""
    if not 0 < port <= PORTS:
        raise InvalidField("port", f"must be a number from 1 to {PORTS}", port)
    if not address or len(address) > 255 or not address.isascii() or not address.isprintable():
        raise InvalidField("address", "must be an IP address or the name of a host", address)
    try:
        socket.create_connection((address, port), PATIENCE).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except (OSError, UnicodeError):  # no answer, no route, no such name
        return False
    return True
