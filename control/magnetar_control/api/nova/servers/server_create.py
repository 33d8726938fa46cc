# SPDX-License-Identifier: GPL-3.0-or-later
"""POST /servers: the body, and the answer with id, links and password of the first new server."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.hints import Hints
from magnetar_control.api.nova.fields import View
from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import ApiOperation, Call
from magnetar_control.api.values import Wrapped
from magnetar_control.compute.servers import server_create
from magnetar_control.compute.servers.server_create import NewServers
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField

from .block_devices import requested_block_devices
from .server_fields import FIELDS
from .server_view import security_groups

#: The characters of passwords.
CHARACTERS = "".join(sorted({*string.ascii_letters, *string.digits} - {*"0O1lI"}))


BODY = Wrapped("server", FIELDS.body("create"), {"os:scheduler_hints": Hints(), "OS-SCH-HNT:scheduler_hints": Hints()})


def _requested_servers(call: Call) -> NewServers:
    """Return the request for new servers that the body describes. Raises ``InvalidField`` or ``InvalidRequest``."""
    server = call.body["server"]
    if call.at(ApiChange.NETWORKS_REQUIRED) and "networks" not in server:
        raise InvalidField("server.networks", "is required: a list, auto or none")
    arguments = FIELDS.arguments(server, "create")
    password_shown = call.settings.enable_instance_password and not server.get("return_reservation_id")
    return NewServers(admin_pass=ensure_admin_password(server, password_shown), **{
        **arguments, "flavor_id": flavor_id(server["flavorRef"]), "mapping": requested_block_devices(server),
        "mapping_field": "server.block_device_mapping_v2",
        "hints": call.body.get("os:scheduler_hints") or call.body.get("OS-SCH-HNT:scheduler_hints") or {},
        "security_groups": [group["name"] for group in server.get("security_groups") or () if "name" in group],
        "config_drive": bool(server.get("config_drive")), "multiattach": call.at(ApiChange.MULTIATTACH),
        "resource_requests": call.at(ApiChange.PORTS_WITH_RESOURCES),
        "described_by_name": not call.at(ApiChange.DESCRIPTIONS)})


def flavor_id(reference: str | int) -> str:
    """Return the flavor's id in *reference*, the value of flavorRef: an id, or a URL that ends with the id."""
    return str(reference).rstrip("/").rpartition("/")[2]


def _answer(call: Call, rows: Sequence[Mapping[str, Any]]) -> Answer:
    want, first = call.body["server"], rows[0]
    if want.get("return_reservation_id"):
        return Answer({"reservation_id": first["reservation_id"]}, 202)
    links = View(call, FIELDS, "stub").links("servers", first["id"])
    stub = {"id": first["id"], "links": links, "OS-DCF:diskConfig": first["disk_config"],
            "security_groups": security_groups(first["security_groups"])}
    if call.settings.enable_instance_password:
        stub["adminPass"] = want["adminPass"]
    return Answer({"server": stub}, 202, {"Location": links[0]["href"]})


def ensure_admin_password(server_body: dict[str, Any], shown: bool) -> str | None:
    """Return the admin password in *server_body*. If it has none and the answer will show the password to the caller
    (*shown*), generate a password and add it to *server_body*. If it has none and *shown* is false, return ``None``:
    the guest agent would set a generated password that nobody knows, and lock out the guest's users."""
    if not server_body.get("adminPass") and shown:
        server_body["adminPass"] = new_password()
    return server_body.get("adminPass") or None


def new_password() -> str:
    """Return a random password of twelve characters. It contains no characters that look alike, such as O and 0."""
    drawn, base = secrets.randbelow(len(CHARACTERS) ** 12), len(CHARACTERS)  # one number: each draw is a system call
    return "".join([CHARACTERS[drawn // base ** at % base] for at in range(12)])


OPERATIONS = (
    ApiOperation(method="POST", path="/servers", name="servers.create", use=server_create.create_servers, body=BODY,
                 status=202, given=lambda call: {"new_servers": _requested_servers(call)}, shown=_answer),
)
