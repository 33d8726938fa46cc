# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections for the client: HTTP over a unix socket or over TLS. Imported at the first connection only."""

from __future__ import annotations

import socket
import ssl
from http.client import HTTPConnection, HTTPSConnection
from typing import Optional

from .errors import InvalidField


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Open the socket; ``OSError`` says why not."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(self.timeout)
            connected.connect(self._path)
        except OSError:
            connected.close()
            raise
        self.sock = connected


def unix(path: str, timeout: float) -> HTTPConnection:
    """A connection to the socket at *path*, not opened yet."""
    return _UnixConnection(path, timeout)


def https(host: str, port: int, context: ssl.SSLContext, timeout: float) -> HTTPSConnection:
    """A TLS connection, not opened yet."""
    return HTTPSConnection(host, port, timeout=timeout, context=context)


def tls(ca_cert: Optional[str] = None, client_cert: Optional[str] = None, client_key: Optional[str] = None,
        validate: bool = True) -> ssl.SSLContext:
    """The TLS settings: at least TLS 1.2, the server's certificate checked unless *validate* is false."""
    context = _trusting(ca_cert)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not validate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_cert:
        try:
            context.load_cert_chain(client_cert, client_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidField("client_cert", "cannot be used: %s" % _reason(error), client_cert) from None
    return context


def _trusting(ca_cert: Optional[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_cert)
    except (OSError, ssl.SSLError) as error:
        raise InvalidField("ca_cert", "cannot be used: %s" % _reason(error), ca_cert) from None


def _reason(error: OSError) -> str:
    return getattr(error, "strerror", None) or str(error)
