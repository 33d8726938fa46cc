# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection settings of a host from ``~/.ssh/config``.

The keywords HostName, Port, User, HostKeyAlias, UserKnownHostsFile, IdentityFile, IdentitiesOnly, ProxyJump and
ProxyCommand are supported, under Host and Match. StrictHostKeyChecking is not: keys are always checked.
"""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple
from urllib.parse import urlsplit

from ..core.errors import Unreachable
from .known_hosts import known_host_name
from .library import load_paramiko

CONFIG = "~/.ssh/config"
IDENTITIES = tuple("~/.ssh/id_" + kind for kind in ("ed25519", "ecdsa", "rsa"))


class Hop(NamedTuple):
    """A host in a chain of SSH connections: the target, or a jump host. *name*: its name as the user gave it. *host*,
    *port*: its address. *user*: the login name, "" for the user of this process. *key_name*: its name in known_hosts
    files. *identities*: files with private keys. *only*: use no other keys than *identities*. *known_hosts*:
    known_hosts files instead of the user's default ones. *jumps*: the jump hosts in front of it (ProxyJump). *command*:
    the ProxyCommand.
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
        """Return a text that names the host in messages: ``name``, with ``(host:port)`` appended if the address
        differs.
        """
        place = self.host if self.port == 22 else "%s:%d" % (self.host, self.port)
        return place if place == self.name else "%s (%s)" % (self.name, place)


def resolve_hop(name, port=0, user="", depth=0):
    """Return the ``Hop`` for the host *name*, with the settings of ``~/.ssh/config``, which *port* and *user* override.
    *depth*: the number of nested jump hosts so far, which is limited because jump hosts may refer to each other.
    """
    config = _configured(name)
    host, port = config.get("hostname", name), port or _port(name, config)
    files = config.get("identityfile")
    return Hop(
        name=name, host=host, port=port, user=user or config.get("user", ""),
        key_name=config.get("hostkeyalias") or known_host_name(host, port),
        identities=tuple(os.path.expanduser(path) for path in files or IDENTITIES),
        only=config.get("identitiesonly", "no").lower() == "yes",
        known_hosts=tuple(shlex.split(config.get("userknownhostsfile", ""))),
        jumps=_jumps(name, config.get("proxyjump") or "none", depth), command=_command(config))


def _port(name, config):
    try:
        return int(config.get("port", 22))
    except ValueError:
        raise Unreachable("Port of %s in %s is no number: %s." % (name, CONFIG, config["port"])) from None


def _configured(name):
    """Return the settings for the host *name* in ``~/.ssh/config``, by keyword in lower case; empty if there is no such
    file.
    """
    path = os.path.expanduser(CONFIG)
    if not os.path.exists(path):
        return {}
    library = load_paramiko()
    try:
        return library.SSHConfig.from_path(path).lookup(name)
    except (library.SSHException, OSError, ValueError, KeyError, ImportError) as error:
        raise Unreachable("%s cannot be read: %s." % (CONFIG, error)) from None


def _command(config):
    text = config.get("proxycommand") or ""
    return "" if text.lower() == "none" or config.get("proxyjump") not in (None, "none") else text


def _jumps(name, text, depth):
    """Return a ``Hop`` for each jump host in *text*, the ProxyJump of the host *name*: ``[user@]host[:port],…``.
    *depth*: the number of nested jump hosts so far. Raises ``Unreachable`` for too many, because jump hosts may refer
    to each other.
    """
    if text.lower() == "none":
        return ()
    if depth > 8:
        raise Unreachable("ProxyJump of %s goes round in circles. Check %s." % (name, CONFIG))
    hops = []
    for part in text.split(","):
        address = urlsplit(part if "://" in part else "ssh://" + part)
        try:
            hops.append(resolve_hop(address.hostname, address.port or 0, address.username or "", depth + 1))
        except (ValueError, AttributeError):
            raise Unreachable("ProxyJump of %s in %s is not [user@]host[:port]: %s." % (name, CONFIG, part)) from None
    return tuple(hops)
