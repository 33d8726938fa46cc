# SPDX-License-Identifier: GPL-3.0-or-later
"""A check, from this machine's network, whether another host is alive."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from ..errors import InvalidField

#: Seconds to wait for the other host.
PATIENCE = 2.0
#: The highest port number.
PORTS = 65535
#: Errors of a network without the other host.
ABSENT = frozenset((errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT))


def is_host_reached(address: str, port: int) -> Optional[bool]:
    """Return whether a host is alive: it accepts or refuses a TCP connection to *address* (IP address or name) and
    *port*. A refusal also shows that the host is alive. Return ``None`` if this machine cannot tell, because it cannot
    resolve the name or has no network. Raises ``InvalidField``.
    """
    if not 0 < port <= PORTS:
        raise InvalidField("port", "must be a number from 1 to %d" % PORTS, port)
    if not address or len(address) > 255 or not address.isascii() or not address.isprintable():
        raise InvalidField("address", "must be an IP address or the name of a host", address)
    try:
        socket.create_connection((address, port), PATIENCE).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except (socket.timeout, TimeoutError):
        return False
    except (OSError, UnicodeError) as error:
        return False if getattr(error, "errno", None) in ABSENT else None
    return True
