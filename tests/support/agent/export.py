# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of export."""

from __future__ import annotations

import socket

from magnetar_agent.volumes import exports
from tests.support.agent.pair import Kvm


def behind(host: Kvm, id: str) -> str:
    """Return the greeting of the server behind the socket that QEMU of *host* connects to for the export *id*."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(exports.export_socket(host.agent.host, id)))
        return sock.makefile().readline().strip()
