# SPDX-License-Identifier: GPL-3.0-or-later
"""DHCPRELEASE on behalf of a removed guest (RFC 2131, 4.4.6): without it, libvirt's dnsmasq would keep the address for
the guest's MAC until the lease ends, and refuse it to the next guest."""

from __future__ import annotations

import logging
import os
import socket
import struct
from ipaddress import IPv4Address

log = logging.getLogger(__name__)

PORT, MAGIC = 67, b"\x63\x82\x53\x63"
REQUEST, ETHERNET = 1, 1
#: Options: message type with its value, server identifier, end.
MESSAGE_TYPE, RELEASE, SERVER_ID, END = 53, 7, 54, 255


def release_packet(mac: str, address: str, server: str, xid: bytes) -> bytes:
    """Return a DHCPRELEASE message that releases the lease of *address* for *mac* at the DHCP server *server*. *xid*:
    transaction id, 4 bytes."""
    head = struct.pack(">BBBB4sHH4s4s4s4s16s64s128s", REQUEST, ETHERNET, 6, 0, xid, 0, 0, IPv4Address(address).packed,
                       bytes(4), bytes(4), bytes(4), bytes.fromhex(mac.replace(":", "")), b"", b"")
    options = bytes((MESSAGE_TYPE, 1, RELEASE, SERVER_ID, 4)) + IPv4Address(server).packed + bytes((END,))
    return (head + MAGIC + options).ljust(300, b"\0")  # the minimum length of BOOTP


def release_lease(bridge: str, server: str, mac: str, address: str) -> None:
    """Release the DHCP lease of *address* for *mac*, by a DHCPRELEASE message to the dnsmasq with the address *server*
    on *bridge*. If the message is lost, the lease ends when it expires."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bridge.encode())
            sender.sendto(release_packet(mac, address, server, os.urandom(4)), (server, PORT))
    except OSError as error:
        log.warning("the lease of %s for %s on %s ends by itself only: %s", address, mac, bridge, error)
