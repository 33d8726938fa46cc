# SPDX-License-Identifier: GPL-3.0-or-later
"""remote-consoles, the actions that it replaced in 2.6, and os-console-auth-tokens."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import ApiOperation, Call
from magnetar_control.api.nova.values import body_object
from magnetar_control.api.values import ByVersion, Wrapped
from magnetar_control.compute.servers import consoles
from magnetar_control.compute.servers.consoles import PROTOCOLS, ConsoleUrls, OpenedConsole
from magnetar_core.errors import InvalidField, Unauthenticated
from magnetar_core.values import Choices, Value

#: The actions until 2.5, by protocol.
ACTIONS = {"vnc": "os-getVNCConsole", "spice": "os-getSPICEConsole", "serial": "os-getSerialConsole",
           "rdp": "os-getRDPConsole"}


def _console_choices(*later: str) -> tuple[Choices, Choices]:
    """Return two validators for a range of API versions: one of the protocol of a console, and one of the type of a
    console. *later*: the protocols and types that only versions after this range have; the validators refuse them."""
    types_by_protocol = {name: [console_type for console_type in types if console_type not in later] for name,
                         types in PROTOCOLS.items() if name not in later}
    return Choices(*types_by_protocol), Choices(*(console_type for types in types_by_protocol.values()
                                                  for console_type in types))


def _body(protocol: Value, type: Value) -> Value:
    return Wrapped("remote_console", body_object({"protocol": protocol, "type": type}, "protocol", "type"))


BODY = ByVersion(("2.6", "2.7", _body(*_console_choices("mks", "webmks", "spice-direct"))),
                 ("2.8", "2.98", _body(*_console_choices("spice-direct"))), ("2.99", None, _body(*_console_choices())))


def _type(call: Call) -> dict[str, Any]:
    """Return the type of console in the body, as the argument ``type`` of the function that opens the console:
    ``{"type": …}``. Raises ``InvalidField`` if the type does not belong to the protocol in the body."""
    protocol, type = call.body["protocol"], call.body["type"]
    if type not in PROTOCOLS[protocol]:
        raise InvalidField("type", f"must be one of the protocol {protocol}: {', '.join(PROTOCOLS[protocol])}", type)
    return {"type": type}


def _opened(call: Call, opened: OpenedConsole) -> dict[str, Any]:
    return {"remote_console": {"protocol": opened.protocol, "type": opened.type, "url": _url(call, opened)}}


def _got(call: Call, opened: OpenedConsole) -> dict[str, Any]:
    return {"console": {"type": opened.type, "url": _url(call, opened)}}


def _url(call: Call, opened: OpenedConsole) -> str:
    return ConsoleUrls(call.settings, call.request.root).of(opened)


def _connection(call: Call, connection: dict[str, Any]) -> dict[str, Any]:
    if not call.at(ApiChange.ALL_CONSOLE_TOKENS) and connection["type"] != "rdp-html5":
        raise Unauthenticated("The requested console type details are not accessible")
    shown = ["instance_uuid", "host", "port", "internal_access_path"]
    if call.at(ApiChange.CONSOLE_TLS_PORT):
        shown.append("tls_port")
    return {"console": {name: connection[name] for name in shown}}


OPERATIONS = (
    ApiOperation(method="POST", path="/servers/{server_id}/remote-consoles", name="servers.remote-consoles.create",
                 use=consoles.open_console, target="server", since=6, body=BODY, given=_type, shown=_opened),
    *(ApiOperation(method="POST", path="/servers/{server_id}/action", name=f"servers.action.{action}", action=action,
                   use=consoles.open_console, target="server", until=5, shown=_got,
                   body=Wrapped(action, body_object({"type": Choices(*PROTOCOLS[protocol])}, "type")),
                   given=lambda call: {"type": call.body["type"]})
      for protocol, action in ACTIONS.items()),
    ApiOperation(method="GET", path="/os-console-auth-tokens/{token}", name="os-console-auth-tokens.show", strict=99,
                 use=consoles.show_console_token, shown=_connection),
)
