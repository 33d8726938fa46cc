# SPDX-License-Identifier: GPL-3.0-or-later
"""POST /v1/server/KEY/consoles: URLs of a console of a server; only one of them can be used, once."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers import consoles
from magnetar_control.compute.servers.consoles import NOVNC, PROTOCOLS, ConsoleUrls
from magnetar_control.compute.target import find_server_target
from magnetar_control.web import Answer, Request
from magnetar_control.web.request import parse_json
from magnetar_core.fields import Field, Kind
from magnetar_core.values import Choices


class OpenConsoleRequest(Kind):
    """The body of a request to open a console of a server: POST /v1/server/{key}/consoles."""

    type = Field(Choices(*(console_type for types in PROTOCOLS.values() for console_type in types)), "Which console.",
                 default=NOVNC)


def handle_open_console(request: Request, caller: Caller, driver: Any, key: str) -> Answer:
    """Create access to a console of the server *key*. Return its URLs: ``url`` in the format of OpenStack's clients,
    ``page`` for browsers, and ``socket`` for WebSocket clients."""
    row = driver.existing(caller, key)
    sent = {**OpenConsoleRequest.defaults(), **OpenConsoleRequest.check(parse_json(request.content))}
    console, urls = consoles.open_console(caller, find_server_target(caller, row.id), sent["type"]), ConsoleUrls(
        caller.settings, request.root)
    return Answer({"server": row.id, "type": console.type, "protocol": console.protocol, "url": urls.of(console),
                   "page": urls.page(console), "socket": urls.socket(console), "expires_at": f"{console.expires_at}Z"})
