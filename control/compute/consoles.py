# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of servers: a token that is good once, for one kind of console of one server at one host."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from sqlalchemy import Row

from magnetar_control.settings import Settings
from magnetar_control.store import consoles, servers
from magnetar_control.store.database import Database, now
from magnetar_core.actions import ACTIONS
from magnetar_core.endpoint import parse
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from .caller import Caller, use_case
from .cloud import Cloud, HostView
from .target import Target, of_server

NOVNC, SERIAL = "novnc", "serial"
#: Types of consoles, by their protocols.
PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    "vnc": (NOVNC, "xvpvnc"), "serial": (SERIAL,), "spice": ("spice-html5", "spice-direct"), "rdp": ("rdp-html5",),
    "mks": ("webmks",)}
#: What the agents call those that there are.
KINDS = {NOVNC: "vnc", SERIAL: "serial"}
_SCREEN = "servers have VNC, not {}: ask for the type novnc"
#: What is missing for the others.
LACKS = {"xvpvnc": "that was a Java applet of XenServer: ask for the type novnc", "rdp-html5": _SCREEN.format("RDP"),
         "webmks": _SCREEN.format("VMware's MKS"), "spice-html5": _SCREEN.format("SPICE"),
         "spice-direct": _SCREEN.format("SPICE")}
#: noVNC connects at once, and again when the connection has ended: a server that has moved goes on at its new host.
_NOVNC_SETTINGS = "autoconnect=true&resize=scale&reconnect=true&reconnect_delay=1000"
_TOKEN = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.[A-Za-z0-9_-]{43}")
#: Seconds in which a console is opened again whose server has moved; noVNC does it after one.
AGAIN = 30.0
#: One for all reasons: who guesses learns nothing.
REFUSED = ("This console URL is not good any more: it was used, has expired, or its server was deleted, stopped or "
           "moved to another host. Ask for a new one.")


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
    token = f"{row.id}.{secrets.token_urlsafe(32)}"
    with target.database.write() as connection:
        consoles.make(connection, target.database, settings.console_token_ttl, hash=_hash(token), server_id=row.id,
                      type=type, host=row.host, project_id=row.project_id, user_id=caller.context.user_id)
    return OpenedConsole(type, next(name for name, types in PROTOCOLS.items() if type in types), token,
                         now(settings.console_token_ttl))


class ConsoleUrls:
    """Where browsers find consoles. *root*: the URL of the API as the client of a request knows it."""

    def __init__(self, settings: Settings, root: str) -> None:
        self.base = (settings.console_url or f"{root}/console").rstrip("/")

    def of(self, opened: OpenedConsole) -> str:
        """As Nova has it: of noVNC its page, of a serial console the WebSocket."""
        return self.page(opened) if opened.type == NOVNC else self.socket(opened)

    def socket(self, opened: OpenedConsole) -> str:
        """The URL of the WebSocket."""
        return f"{self.base.replace('http', 'ws', 1)}/socket?token={opened.token}"

    def page(self, opened: OpenedConsole) -> str:
        """The URL of a page for browsers. noVNC takes the path of the WebSocket, and serial.html does the same."""
        path = f"{urlsplit(self.base).path}/socket?token={opened.token}".lstrip("/")
        settings = f"vnc.html?{_NOVNC_SETTINGS}&" if opened.type == NOVNC else "serial.html?"
        return f"{self.base}/{settings}path={quote(path, safe='/')}"


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
    """Use the token up. Raises ``Forbidden`` when another has done so."""
    with grant.database.write() as connection:
        if not consoles.take(connection, grant.database, grant.token.hash):
            raise Forbidden(REFUSED)


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
        raise NotFound("The token is not known: it was used, has expired, or its server is elsewhere.") from None
    endpoint = parse(grant.host.endpoint)
    return {"type": grant.token.type, "instance_uuid": grant.server.id, "host": endpoint.host or grant.host.name,
            "port": endpoint.port or None, "tls_port": endpoint.port or None,
            "internal_access_path": grant.server.id}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
