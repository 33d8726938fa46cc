# SPDX-License-Identifier: GPL-3.0-or-later
"""How to reach a host, by ``~/.ssh/config``.

Read are HostName, Port, User, HostKeyAlias, UserKnownHostsFile, IdentityFile, IdentitiesOnly, ProxyJump and
ProxyCommand, under Host and Match. StrictHostKeyChecking is not: keys are always checked.
"""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple
from urllib.parse import urlsplit

from ..core.errors import Unreachable
from .known_hosts import named
from .library import paramiko

CONFIG = "~/.ssh/config"
IDENTITIES = tuple("~/.ssh/id_" + kind for kind in ("ed25519", "ecdsa", "rsa"))


class Hop(NamedTuple):
    """A host on the way: ``name`` as given, where it is, who logs in (empty: the user of this process), with what.

    ``key_name`` is how files of known hosts name it. ``only``: no other keys than ``identities``. ``known_hosts``:
    files in place of the user's own. ``jumps`` are hops before it, ``command`` gives a connection.
    """

    name: str
    host: str
    port: int
    user: str
    key_name: str
    identities: tuple = ()
    only: bool = False
    known_hosts: tuple = ()
    jumps: tuple = ()
    command: str = ""

    @property
    def label(self):
        """The host for messages: ``name``, or ``name (host:port)`` where that differs."""
        place = self.host if self.port == 22 else "%s:%d" % (self.host, self.port)
        return place if place == self.name else "%s (%s)" % (self.name, place)


def hop(name, port=0, user="", depth=0):
    """The hop to *name*; a *port* and *user* that are given win over the configuration."""
    found = _configured(name)
    host, port = found.get("hostname", name), port or _port(name, found)
    files = found.get("identityfile")
    return Hop(
        name=name, host=host, port=port, user=user or found.get("user", ""),
        key_name=found.get("hostkeyalias") or named(host, port),
        identities=tuple(os.path.expanduser(path) for path in files or IDENTITIES),
        only=found.get("identitiesonly", "no").lower() == "yes",
        known_hosts=tuple(shlex.split(found.get("userknownhostsfile", ""))),
        jumps=_jumps(name, found.get("proxyjump") or "none", depth), command=_command(found))


def _port(name, found):
    try:
        return int(found.get("port", 22))
    except ValueError:
        raise Unreachable("Port of %s in %s is no number: %s." % (name, CONFIG, found["port"])) from None


def _configured(name):
    """What the configuration says of *name*, by keyword in small letters."""
    path = os.path.expanduser(CONFIG)
    if not os.path.exists(path):
        return {}
    library = paramiko()
    try:
        return library.SSHConfig.from_path(path).lookup(name)
    except (library.SSHException, OSError, ValueError, KeyError, ImportError) as error:
        raise Unreachable("%s cannot be read: %s." % (CONFIG, error)) from None


def _command(found):
    text = found.get("proxycommand") or ""
    return "" if text.lower() == "none" or found.get("proxyjump") not in (None, "none") else text


def _jumps(name, text, depth):
    """The hops of ``[user@]host[:port],…``; their own jumps count for the first only, as with ssh."""
    if text.lower() == "none":
        return ()
    if depth > 8:
        raise Unreachable("ProxyJump of %s goes round in circles. Check %s." % (name, CONFIG))
    found = []
    for part in text.split(","):
        address = urlsplit(part if "://" in part else "ssh://" + part)
        try:
            found.append(hop(address.hostname, address.port or 0, address.username or "", depth + 1))
        except (ValueError, AttributeError):
            raise Unreachable("ProxyJump of %s in %s is not [user@]host[:port]: %s." % (name, CONFIG, part)) from None
    return tuple(found)
