# SPDX-License-Identifier: GPL-3.0-or-later
"""POST /v1/server/KEY/consoles: URLs of a console of a server, of which one may be used once."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers import consoles
from magnetar_control.compute.servers.consoles import NOVNC, PROTOCOLS, ConsoleUrls
from magnetar_control.compute.target import find
from magnetar_control.web import Answer, Request
from magnetar_control.web.request import parsed
from magnetar_core.fields import Field, Kind
from magnetar_core.values import Choices


class OpenConsoleRequest(Kind):
    """The body."""

    type = Field(Choices(*(one for types in PROTOCOLS.values() for one in types)), "Which console.", default=NOVNC)


def opened(request: Request, caller: Caller, driver: Any, key: str) -> Answer:
    """*url* as OpenStack's clients show it; *page* for browsers, *socket* for clients of WebSockets."""
    row = driver.existing(caller, key)
    sent = {**OpenConsoleRequest.defaults(), **OpenConsoleRequest.check(parsed(request.content))}
    found, urls = consoles.open_console(caller, find(caller, row.id), sent["type"]), ConsoleUrls(
        caller.settings, request.root)
    return Answer({"server": row.id, "type": found.type, "protocol": found.protocol, "url": urls.of(found),
                   "page": urls.page(found), "socket": urls.socket(found), "expires_at": f"{found.expires_at}Z"})
