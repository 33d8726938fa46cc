# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-interface: the ports that a server has."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields
from magnetar_control.api.nova.operation import Call, noun
from magnetar_control.api.nova.values import TAG, record, since
from magnetar_control.api.values import Address, Id
from magnetar_control.compute.attachments import interfaces
from magnetar_core.values import ListOf, Nullable

FIELDS = Fields(
    ApiField("port_id", shows="show"),
    ApiField("net_id", name="network_id", shows="show"),
    ApiField("mac_addr", name="mac", shows="show"),
    ApiField("port_state", shows="show"),
    ApiField("fixed_ips", shows="show", show=lambda _view, port: [
        {"ip_address": one["ip_address"], "subnet_id": one["subnet_id"]} for one in port["fixed_ips"]]),
    ApiField("tag", shows="show", since=70),
    mapping=True)
ONE = FIELDS.one("interfaceAttachment")


def _wanted(call: Call) -> dict[str, Any]:
    """Of the port that is made, or the given one that is taken."""
    want = (call.body or {}).get("interfaceAttachment") or {}
    addresses = want.get("fixed_ips") or [{"ip_address": None}]
    return {"network_id": want.get("net_id"), "port_id": want.get("port_id"), "address": addresses[0]["ip_address"],
            "tag": want.get("tag")}


BODY = record({"interfaceAttachment": record({
    "net_id": Nullable(Id()), "port_id": Nullable(Id()), "tag": since("2.49", TAG),
    "fixed_ips": ListOf(record({"ip_address": Address()}, "ip_address"), 1)})})
_row = noun("servers.os-interface", "/servers/{server_id}/os-interface", target="server")
OPERATIONS = (
    _row("GET", "", "list", interfaces.index, shown=FIELDS.many("interfaceAttachments"), strict=102),
    _row("GET", "/{id}", "show", interfaces.show, shown=ONE, strict=102),
    _row("POST", "", "create", interfaces.attach, body=BODY, given=_wanted, shown=ONE, waits=True),
    _row("DELETE", "/{id}", "delete", interfaces.detach, status=202),
)
