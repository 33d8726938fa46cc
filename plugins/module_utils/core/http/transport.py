# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections for the client: HTTP over a unix socket or over TLS. Imported at the first connection only."""

from __future__ import annotations

import socket
import ssl
from http.client import HTTPConnection, HTTPSConnection
from typing import Optional, Protocol

from ..errors import InvalidField
from .endpoint import Endpoint

#: Code of an expired certificate: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED.
EXPIRED = 10


class Dial(Protocol):
    """An object that opens connections to the agent in a way that this package does not implement, such as ssh."""

    def __call__(self, timeout: float) -> HTTPConnection:
        """Return a new, open connection. *timeout*: the maximum seconds to open it. Raises ``Unreachable``, with advice
        for the user.
        """

    def close(self) -> None:
        """Close what the connections share, such as an ssh session. The next connection opens it again."""


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Override ``HTTPConnection.connect``: open the unix socket. Raises ``OSError`` with the reason."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(self.timeout)
            connected.connect(self._path)
        except OSError:
            connected.close()
            raise
        self.sock = connected


def unix_connection(path: str, timeout: float) -> HTTPConnection:
    """Return an HTTP connection to the unix socket at *path*. The caller opens it."""
    return _UnixConnection(path, timeout)


def https_connection(host: str, port: int, context: ssl.SSLContext, timeout: float) -> HTTPSConnection:
    """Return an HTTPS connection to *host* and *port* with the TLS settings *context*. The caller opens it."""
    return HTTPSConnection(host, port, timeout=timeout, context=context)


def cloud_connection(address: Endpoint, ca_cert: Optional[str], validate: bool, timeout: float) -> HTTPConnection:
    """Return a connection to a cloud's service at *address*. The caller opens it. *ca_cert*, *validate*: as in
    ``tls_context``.
    """
    if address.scheme == "http":
        return HTTPConnection(address.host, address.port, timeout=timeout)
    return https_connection(address.host, address.port, tls_context(ca_cert, None, None, validate), timeout)


def tls_context(ca_cert: Optional[str] = None, client_cert: Optional[str] = None, client_key: Optional[str] = None,
                validate: bool = True) -> ssl.SSLContext:
    """Return the TLS settings of a client, for TLS 1.2 or newer. *ca_cert*: a file with the trusted CA certificates;
    ``None``: the CAs that the system trusts. *client_cert*, *client_key*: files with the client's certificate and key.
    *validate*: whether to verify the server's certificate. Raises ``InvalidField`` for unusable files.
    """
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


def connection_advice(error: Exception, scheme: str, certified: bool) -> str:
    """Return a text for users that says why a connection failed, and what they can do. *error*: the exception.
    *scheme*: the scheme of the endpoint. *certified*: whether a client certificate was used.
    """
    local = scheme == "unix"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError) and local:
        return ("there is no such socket. Is the agent installed and running on this host? "
                "(systemctl status magnetar-agent)")
    if isinstance(error, PermissionError) and local:
        return "permission denied. Use become, or add the user to the group magnetar."
    if isinstance(error, ConnectionRefusedError):
        if scheme == "http":
            return "connection refused. Start it: systemctl start magnetar."
        return "connection refused. Start it: systemctl start magnetar-agent."
    if isinstance(error, socket.gaierror):
        return "the host name is unknown (%s). Check the endpoint." % reason
    if isinstance(error, ConnectionResetError) and scheme == "https":
        return ("it closed the connection. %s"
                % ("Has client_cert expired, or does its tls_client_ca not know the certificate?" if certified else
                   "It may ask for a certificate: give client_cert and client_key."))
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == EXPIRED:
        return "its certificate has expired. Renew it on the agent's host, as the role magnetar.compute.agent does."
    if isinstance(error, ssl.SSLCertVerificationError):
        return ("its certificate is not trusted (%s). Give the CA that signed it as ca_cert."
                % error.verify_message)
    if isinstance(error, ssl.SSLError):
        return "TLS failed (%s). Check ca_cert, client_cert and client_key, and that the port speaks TLS." % reason
    return "%s. Check the endpoint and the network." % reason
