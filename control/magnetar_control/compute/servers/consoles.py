# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of servers: a token opens one kind of console of one server at one host, once.

A SPICE client opens a connection for each channel. The first connection with a token is the main channel. For a short
time while it is open, the token admits a few further channels, and no other main channel.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.cloud import Cloud, HostView
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import consoles, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound
from magnetar_core.http.endpoint import parse_endpoint

NOVNC, SERIAL, SPICE = "novnc", "serial", "spice-html5"
#: Types of consoles, by their protocols.
PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    "vnc": (NOVNC, "xvpvnc"), "serial": (SERIAL,), "spice": (SPICE, "spice-direct"), "rdp": ("rdp-html5",),
    "mks": ("webmks",)}
#: The agents' names for the consoles that exist.
KINDS = {NOVNC: "vnc", SERIAL: "serial", SPICE: "spice"}
_SCREEN = "servers have VNC, not {}: ask for the type novnc"
#: The reason that each other type does not exist.
LACKS = {"xvpvnc": "that was a Java applet of XenServer: ask for the type novnc", "rdp-html5": _SCREEN.format("RDP"),
         "webmks": _SCREEN.format("VMware's MKS"),
         "spice-direct": "its clients connect to a port of QEMU, and no port of a console is open at any host: ask for "
                         "the type spice-html5"}
#: noVNC connects immediately, and reconnects when the connection has ended: the console of a migrated server continues
#: at its new host.
_NOVNC_SETTINGS = "autoconnect=true&resize=scale&reconnect=true&reconnect_delay=1000"
_PAGES = {NOVNC: f"vnc.html?{_NOVNC_SETTINGS}&", SERIAL: "serial.html?", SPICE: "spice.html?"}
_TOKEN = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.[A-Za-z0-9_-]{43}")
#: Seconds in which the console of a moved server can be opened again. noVNC reconnects after one second.
AGAIN = 30.0
#: Further channels that a SPICE session may have, and seconds in which they can be opened. Clients open all of them as
#: soon as they have the list (display, inputs, cursor; also for sound, and for ports).
CHANNELS, SOON = 8, 30.0
#: One message for all reasons, so that an attacker who guesses tokens learns nothing.
REFUSED = ("This console URL is not good any more: it was used, has expired, or its server was deleted, stopped or "
           "moved to another host. Ask for a new one.")

_UNKNOWN = "The token is not known: it was used, has expired, or its server is elsewhere."


class OpenedConsole(NamedTuple):
    """A new console token for the caller. *type*, *protocol*: as in Nova's API remote-consoles. *expires_at*: a time in
    the format of ``database.utc_now``."""

    type: str
    protocol: str
    token: str
    expires_at: str


@server_use_case("remote_console")
def open_console(caller: Caller, target: ServerTarget, type: str) -> OpenedConsole:
    """Create and return a token that opens one console connection to the server. Raises ``InvalidRequest`` for an
    unknown *type*."""
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
        consoles.insert_console_token(connection, target.database, settings.console_token_ttl, hash=_hash(token),
                                      server_id=row.id,
                                      type=type, host=row.host, project_id=row.project_id,
                                      user_id=caller.context.user_id)
    return OpenedConsole(type, next(name for name, types in PROTOCOLS.items() if type in types), token,
                         utc_now(settings.console_token_ttl))


def _check_spice(cloud: Cloud, host: str | None) -> None:
    """Raise ``InvalidRequest`` when SPICE consoles are unavailable: spice-html5 is not installed with the API, or
    guests on *host* have no SPICE."""
    why = ""
    if not (cloud.settings.spice_dir / "main.js").is_file():
        why = ("spice-html5 is not installed with the API. An administrator installs Debian's package spice-html5 "
               "there, or sets spice_dir")
    else:
        with cloud.store.api.read() as connection:
            host_row = hosts.fetch_host_row(connection, host or "")
        if host_row is None or "spice" not in host_row.info.get("consoles", ()):
            why = ("servers at its host have no SPICE. Ask for the type novnc, or have an administrator set spice to "
                   "true for the host's agent, then stop and start the server")
    if why:
        raise InvalidRequest(f"Unavailable console type {SPICE}: {why}.")


class ConsoleUrls:
    """The URLs of consoles for browsers. *root*: the URL of the API as the client has requested it."""

    def __init__(self, settings: Settings, root: str) -> None:
        self.base = (settings.console_url or f"{root}/console").rstrip("/")

    def of(self, opened: OpenedConsole) -> str:
        """Return the console URL for an API answer: for a serial console the URL of its WebSocket, otherwise the URL of
        the page that shows the console."""
        return self.socket(opened) if opened.type == SERIAL else self.page(opened)

    def socket(self, opened: OpenedConsole) -> str:
        """Return the URL of the WebSocket of the console *opened*."""
        return f"{self.base.replace('http', 'ws', 1)}/socket?token={opened.token}"

    def page(self, opened: OpenedConsole) -> str:
        """Return the URL of the web page that shows the console *opened*. The path of the WebSocket is a parameter of
        this URL, as noVNC requires."""
        path = f"{urlsplit(self.base).path}/socket?token={opened.token}".lstrip("/")
        return f"{self.base}/{_PAGES[opened.type]}path={quote(path, safe='/')}"


class ConsoleGrant(NamedTuple):
    """A valid console token, the server whose console it opens, and the server's host."""

    database: Database
    token: consoles.ConsoleToken
    server: ServerRow
    host: HostView

    @property
    def kind(self) -> str:
        """The type of the console, named as agents name it."""
        return KINDS[self.token.type]

    @property
    def further(self) -> bool:
        """Whether the main channel of a SPICE session with this token is open already, so that the token allows
        additional channels."""
        return self.token.channels is not None


def resolve_console_token(cloud: Cloud, token: str) -> ConsoleGrant:
    """Return the server and host of the console token *token*. Raises ``Forbidden`` with the same message for every
    invalid token."""
    match = _TOKEN.fullmatch(token)
    located_server = servers.find_server_row(cloud.store, match[1]) if match else None
    if located_server is None:
        raise Forbidden(REFUSED)
    database, server = located_server
    with database.read() as connection:
        row = consoles.fetch_console_token(connection, database, _hash(token))
    host = cloud.hosts.get(server.host)
    if row is None or row.server_id != server.id or row.host != server.host or host is None or not (
            servers.action_is_allowed(server, "remote_console")):
        raise Forbidden(REFUSED)
    return ConsoleGrant(database, row, server, host)


def use_console_token(grant: ConsoleGrant) -> None:
    """Mark the token of *grant* as used or, for a further connection of the same SPICE session, count this connection,
    because a SPICE token allows several connections. Raises ``Forbidden`` when another client has used the token."""
    database, hash = grant.database, grant.token.hash
    with database.write() as connection:
        if grant.token.type != SPICE:
            good = consoles.consume_console_token(connection, database, hash)
        elif grant.further:
            good = consoles.consume_console_channel(connection, database, hash)
        else:
            good = consoles.open_console_channels(connection, database, hash, CHANNELS, SOON)
    if not good:
        raise Forbidden(REFUSED)


def revoke_console_token(grant: ConsoleGrant) -> None:
    """Invalidate the SPICE token of *grant* after the main channel of its session was closed."""
    with grant.database.write() as connection:
        consoles.remove_console_token(connection, grant.token.hash)


class Whereabouts(NamedTuple):
    """The current location of a server whose console connection has ended. *host*: the server's new host; ``None`` if
    the server has not moved. *moving*: a live migration is in progress."""

    host: HostView | None = None
    moving: bool = False


def console_whereabouts(cloud: Cloud, grant: ConsoleGrant) -> Whereabouts:
    """Return the current location of the server of *grant*. ``host`` is set if the server has moved to another host,
    ``moving`` if a live migration is in progress. Both fields are unset if the server's state allows no live migration.
    """
    located_server = servers.find_server_row(cloud.store, grant.server.id)
    if located_server is None or located_server[1].vm_state not in ACTIONS["os-migrateLive"].states:
        return Whereabouts()
    server = located_server[1]
    if server.host != grant.host.name:
        return Whereabouts(cloud.hosts.get(server.host))
    return Whereabouts(moving=server.task_state == ACTIONS["os-migrateLive"].task)


def renew_console_token(cloud: Cloud, grant: ConsoleGrant, host: HostView) -> None:
    """Make the used token of *grant* valid again for a short time, on the *host* to which the server has moved. The
    client can then reconnect to the console with the same URL."""
    old, seconds = grant.token, min(AGAIN, cloud.settings.console_token_ttl)
    with grant.database.write() as connection:
        consoles.insert_console_token(connection, grant.database, seconds, hash=old.hash, type=old.type,
                                      server_id=old.server_id, host=host.name, project_id=old.project_id,
                                      user_id=old.user_id)


@use_case("os_compute_api:os-console-auth-tokens")
def show_console_token(caller: Caller, token: str) -> dict[str, Any]:
    """Return the connection data of the console that *token* opens, with the keys of Nova's API: console type, host and
    port of the host's agent, and uuid of the server."""
    try:
        grant = resolve_console_token(caller.cloud, token)
    except Forbidden:
        raise NotFound(_UNKNOWN) from None
    if grant.further:
        raise NotFound(_UNKNOWN)
    endpoint = parse_endpoint(grant.host.endpoint)
    return {"type": grant.token.type, "instance_uuid": grant.server.id, "host": endpoint.host or grant.host.name,
            "port": endpoint.port or None, "tls_port": endpoint.port or None,
            "internal_access_path": grant.server.id}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
