# SPDX-License-Identifier: GPL-3.0-or-later
"""The address of an agent, as users write it."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import InvalidField

SOCKET = "/run/magnetar/agent.sock"
ENDPOINT = "unix://" + SOCKET
HTTPS_PORT = 6553
#: The header with the reason why a cloud opens no console.
CONSOLE_ERROR = "X-Console-Error"
#: User-Agent of a cloud's services in requests to agents.
CLOUD = "magnetar-cloud"
FORMS = "unix:///path, https://host[:port] or ssh://[user@]host[:port][/path]"


class Endpoint(NamedTuple):
    """The parts of an endpoint URL. ``scheme``: unix, https, ssh, or http for a cloud on this machine. Parts that the
    scheme does not use are empty. ``port``: 0 if the configuration of ssh determines the port.
    """

    scheme: str
    path: str = ""
    host: str = ""
    port: int = 0
    user: str = ""


def parse_endpoint(endpoint: str) -> Endpoint:
    """Parse *endpoint*, a URL with the scheme unix, https or ssh, and return its parts. Raises ``InvalidField`` with
    the reason if it is not valid.
    """
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        raise InvalidField("endpoint", "must be %s (%s)" % (FORMS, error), endpoint) from None
    if parts.scheme == "http":
        raise InvalidField("endpoint", "must not be http: nothing would protect token and answers on the way; use "
                           "https://, ssh://, or %s on the host itself" % ENDPOINT, endpoint)
    if parts.scheme not in ("unix", "https", "ssh") or port == 0 or parts.query or parts.fragment:
        raise InvalidField("endpoint", "must be %s" % FORMS, endpoint)
    return {"unix": _unix, "https": _https, "ssh": _ssh}[parts.scheme](parts, endpoint)


def cloud_endpoint(url: str, field: str = "endpoint") -> Endpoint:
    """Parse *url*, the URL of a cloud's service, and return its parts. The scheme http is accepted for this machine
    only. Raises ``InvalidField`` for *field*.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidField(field, "must be the https URL of a service (%s)" % error, url) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidField(field, "must be the https URL of a service", url)
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise InvalidField(field, "must be an https URL: over http, nothing would protect password and token", url)
    return Endpoint(parts.scheme, host=parts.hostname, port=port or {"http": 80, "https": 443}[parts.scheme])


def _is_loopback(host: str) -> bool:
    """Return whether *host* is ``localhost`` or a loopback address. A DNS name such as 127.example.com is neither."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _unix(parts: SplitResult, endpoint: str) -> Endpoint:
    if parts.netloc or not parts.path.startswith("/"):
        raise InvalidField("endpoint", "must be unix:///absolute/path", endpoint)
    return Endpoint("unix", path=parts.path)


def _https(parts: SplitResult, endpoint: str) -> Endpoint:
    if not parts.hostname or parts.path.strip("/"):
        raise InvalidField("endpoint", "must be %s" % FORMS, endpoint)
    return Endpoint("https", host=parts.hostname, port=parts.port or HTTPS_PORT)


def _ssh(parts: SplitResult, endpoint: str) -> Endpoint:
    if parts.password is not None:
        shown = endpoint.replace(":%s@" % parts.password, ":***@")
        raise InvalidField("endpoint", "must not have a password: ssh:// logs in with keys (ssh_private_key, an SSH "
                           "agent, or the files in ~/.ssh)", shown)
    if not parts.hostname:
        raise InvalidField("endpoint", "must be ssh://[user@]host[:port][/path of the agent's socket]", endpoint)
    # urlsplit's hostname is in lower case, but names in ~/.ssh/config are case-sensitive.
    name = parts.netloc.rpartition("@")[2]
    host = name[1:name.index("]")] if name.startswith("[") else name.partition(":")[0]
    path = unquote(parts.path) if parts.path.strip("/") else SOCKET
    return Endpoint("ssh", path=path, host=host, port=parts.port or 0, user=unquote(parts.username or ""))
