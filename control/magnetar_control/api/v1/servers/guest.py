# SPDX-License-Identifier: GPL-3.0-or-later
"""POST /v1/server/KEY/guest: commands for the guest agent of a server, as at the agent of its host."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers.guest_commands import ask_guest_of_server
from magnetar_control.compute.target import find_server_target
from magnetar_control.web import Answer, Request
from magnetar_control.web.request import parse_json
from magnetar_core.http.guest_commands import check_guest_command
from magnetar_core.query import read_parameters


def handle_guest_command(request: Request, caller: Caller, driver: Any, key: str) -> Answer:
    """Send the command in the request body to the guest agent of the server *key*, and return the agent's answer: POST
    /v1/server/{key}/guest."""
    read_parameters(request.query, {}, shown=80)
    command, args = check_guest_command(parse_json(request.content))
    target = find_server_target(caller, driver.existing(caller, key).id)
    return Answer({**ask_guest_of_server(caller, target, command, args), "request_id": request.id})
