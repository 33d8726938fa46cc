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
    """Return whether a host answers at *address* (IP address or name): it accepts or refuses a TCP connection to
    *port*. A host that refuses is alive, although its agent does not run. Return ``None`` if this machine cannot tell:
    it does not know the name, or has no network. Raises ``InvalidField``.
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
