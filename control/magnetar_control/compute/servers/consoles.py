# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of servers: a token that is good once, for one kind of console of one server at one host.

A SPICE client opens a connection for each channel. The first one with a token is the main channel; for a moment, and
while that is open, the token is good for a few further channels, and for no other main channel.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import orjson
from sqlalchemy import Row

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.cloud import Cloud, HostView
from magnetar_control.compute.target import Target, of_server
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import Database, now
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import consoles, servers
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound
from magnetar_core.http.endpoint import parse

NOVNC, SERIAL, SPICE = "novnc", "serial", "spice-html5"
#: Types of consoles, by their protocols.
PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    "vnc": (NOVNC, "xvpvnc"), "serial": (SERIAL,), "spice": (SPICE, "spice-direct"), "rdp": ("rdp-html5",),
    "mks": ("webmks",)}
#: What the agents call those that there are.
KINDS = {NOVNC: "vnc", SERIAL: "serial", SPICE: "spice"}
_SCREEN = "servers have VNC, not {}: ask for the type novnc"
#: What is missing for the others.
LACKS = {"xvpvnc": "that was a Java applet of XenServer: ask for the type novnc", "rdp-html5": _SCREEN.format("RDP"),
         "webmks": _SCREEN.format("VMware's MKS"),
         "spice-direct": "its clients connect to a port of QEMU, and no port of a console is open at any host: ask for "
                         "the type spice-html5"}
#: noVNC connects at once, and again when the connection has ended: a server that has moved goes on at its new host.
_NOVNC_SETTINGS = "autoconnect=true&resize=scale&reconnect=true&reconnect_delay=1000"
_PAGES = {NOVNC: f"vnc.html?{_NOVNC_SETTINGS}&", SERIAL: "serial.html?", SPICE: "spice.html?"}
_TOKEN = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.[A-Za-z0-9_-]{43}")
#: Seconds in which a console is opened again whose server has moved; noVNC does it after one.
AGAIN = 30.0
#: Further channels that a SPICE session may have, and seconds in which they are opened: clients open all of them as
#: soon as they have the list (display, inputs, cursor; also for sound, and for ports).
CHANNELS, SOON = 8, 30.0
#: One for all reasons: who guesses learns nothing.
REFUSED = ("This console URL is not good any more: it was used, has expired, or its server was deleted, stopped or "
           "moved to another host. Ask for a new one.")

_UNKNOWN = "The token is not known: it was used, has expired, or its server is elsewhere."


class OpenedConsole(NamedTuple):
    """What the caller gets. *expires_at* as ``database.now`` writes it."""

    type: str
    protocol: str
    token: str
    expires_at: str


@of_server("remote_console")
def open_console(caller: Caller, target: Target, type: str) -> OpenedConsole:
    """Leave to open a console of the server once. Raises ``InvalidRequest`` for a type that there is not."""
    settings, row = caller.settings, target.row
    if type not in KINDS:
        raise InvalidRequest(f"Unavailable console type {type[:40]}: {LACKS.get(type, 'nobody knows it')}.")
    if type == NOVNC and not (settings.novnc_dir / "vnc.html").is_file():
        raise InvalidRequest(f"Unavailable console type {type}: noVNC is not installed with the API. An administrator "
                             "installs Debian's package novnc there, or sets novnc_dir.")
    if type == SPICE:
        _check_spice(caller.cloud, row.host)
    token = f"{row.id}.{secrets.token_urlsafe(32)}"
    with target.database.write() as connection:
        consoles.make(connection, target.database, settings.console_token_ttl, hash=_hash(token), server_id=row.id,
                      type=type, host=row.host, project_id=row.project_id, user_id=caller.context.user_id)
    return OpenedConsole(type, next(name for name, types in PROTOCOLS.items() if type in types), token,
                         now(settings.console_token_ttl))


def _check_spice(cloud: Cloud, host: str | None) -> None:
    """Raises ``InvalidRequest`` where the client is not installed, or guests of the *host* have no SPICE."""
    why = ""
    if not (cloud.settings.spice_dir / "main.js").is_file():
        why = ("spice-html5 is not installed with the API. An administrator installs Debian's package spice-html5 "
               "there, or sets spice_dir")
    else:
        with cloud.store.api.read() as connection:
            found = hosts.show(connection, host or "")
        if found is None or "spice" not in orjson.loads(found["info"]).get("consoles", ()):
            why = ("servers at its host have no SPICE. Ask for the type novnc, or have an administrator set spice to "
                   "true for the host's agent, then stop and start the server")
    if why:
        raise InvalidRequest(f"Unavailable console type {SPICE}: {why}.")


class ConsoleUrls:
    """Where browsers find consoles. *root*: the URL of the API as the client of a request knows it."""

    def __init__(self, settings: Settings, root: str) -> None:
        self.base = (settings.console_url or f"{root}/console").rstrip("/")

    def of(self, opened: OpenedConsole) -> str:
        """As Nova has it: of a screen its page, of a serial console the WebSocket."""
        return self.socket(opened) if opened.type == SERIAL else self.page(opened)

    def socket(self, opened: OpenedConsole) -> str:
        """The URL of the WebSocket."""
        return f"{self.base.replace('http', 'ws', 1)}/socket?token={opened.token}"

    def page(self, opened: OpenedConsole) -> str:
        """The URL of a page for browsers. noVNC takes the path of the WebSocket, and our own pages do the same."""
        path = f"{urlsplit(self.base).path}/socket?token={opened.token}".lstrip("/")
        return f"{self.base}/{_PAGES[opened.type]}path={quote(path, safe='/')}"


class ConsoleGrant(NamedTuple):
    """A token that is good, with its server and where that is."""

    database: Database
    token: Row[Any]
    server: servers.Found
    host: HostView

    @property
    def kind(self) -> str:
        """What the agent calls the console."""
        return KINDS[self.token.type]

    @property
    def further(self) -> bool:
        """Whether it is of a SPICE session whose main channel is open: it is good for a further channel."""
        return self.token.channels is not None


def granted(cloud: Cloud, token: str) -> ConsoleGrant:
    """What the token is good for. Raises ``Forbidden`` with the same words for all that is not good."""
    match = _TOKEN.fullmatch(token)
    found = servers.find(cloud.store, match[1]) if match else None
    if found is None:
        raise Forbidden(REFUSED)
    database, server = found
    with database.read() as connection:
        row = consoles.find(connection, database, _hash(token))
    host = cloud.hosts.get(server.host)
    if row is None or row.server_id != server.id or row.host != server.host or host is None or not (
            servers.allowed(server, "remote_console")):
        raise Forbidden(REFUSED)
    return ConsoleGrant(database, row, server, host)


def use(grant: ConsoleGrant) -> None:
    """Use the token up, or that of SPICE for one connection. Raises ``Forbidden`` when another has done so."""
    database, hash = grant.database, grant.token.hash
    with database.write() as connection:
        if grant.token.type != SPICE:
            good = consoles.take(connection, database, hash)
        elif grant.further:
            good = consoles.take_channel(connection, database, hash)
        else:
            good = consoles.begin_channels(connection, database, hash, CHANNELS, SOON)
    if not good:
        raise Forbidden(REFUSED)


def finish(grant: ConsoleGrant) -> None:
    """The main channel of a SPICE session is closed: the token is good for nothing any more."""
    with grant.database.write() as connection:
        consoles.drop(connection, grant.token.hash)


class Whereabouts(NamedTuple):
    """Where a server is whose console has ended: at another *host*, or it is *moving*, or neither."""

    host: HostView | None = None
    moving: bool = False


def whereabouts(cloud: Cloud, grant: ConsoleGrant) -> Whereabouts:
    """Where the guest went on, if it did: after a live migration."""
    found = servers.find(cloud.store, grant.server.id)
    if found is None or found[1].vm_state not in ACTIONS["os-migrateLive"].states:
        return Whereabouts()
    server = found[1]
    if server.host != grant.host.name:
        return Whereabouts(cloud.hosts.get(server.host))
    return Whereabouts(moving=server.task_state == ACTIONS["os-migrateLive"].task)


def renew(cloud: Cloud, grant: ConsoleGrant, host: HostView) -> None:
    """Make the used token good once more and for a moment, at the *host* that the server has moved to: who had the
    console open opens it again by the same URL."""
    old, seconds = grant.token, min(AGAIN, cloud.settings.console_token_ttl)
    with grant.database.write() as connection:
        consoles.make(connection, grant.database, seconds, hash=old.hash, type=old.type,
                      server_id=old.server_id, host=host.name, project_id=old.project_id, user_id=old.user_id)


@use_case("os_compute_api:os-console-auth-tokens")
def show_token(caller: Caller, token: str) -> dict[str, Any]:
    """Where the console is that a token is good for: type, where the host's agent listens, and the server's name there,
    which is its uuid."""
    try:
        grant = granted(caller.cloud, token)
    except Forbidden:
        raise NotFound(_UNKNOWN) from None
    if grant.further:
        raise NotFound(_UNKNOWN)
    endpoint = parse(grant.host.endpoint)
    return {"type": grant.token.type, "instance_uuid": grant.server.id, "host": endpoint.host or grant.host.name,
            "port": endpoint.port or None, "tls_port": endpoint.port or None,
            "internal_access_path": grant.server.id}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
