# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-interface: the ports of a server."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields
from magnetar_control.api.nova.operation import Call, operation_factory
from magnetar_control.api.nova.values import TAG, body_object, field_since
from magnetar_control.api.values import Address, Id
from magnetar_control.compute.attachments import interfaces
from magnetar_core.values import ListOf, Nullable

FIELDS = Fields(
    ApiField("port_id", shows="show"),
    ApiField("net_id", name="network_id", shows="show"),
    ApiField("mac_addr", name="mac", shows="show"),
    ApiField("port_state", shows="show"),
    ApiField("fixed_ips", shows="show", show=lambda _view, port: [
        {"ip_address": fixed_ip["ip_address"], "subnet_id": fixed_ip["subnet_id"]} for fixed_ip in port["fixed_ips"]]),
    ApiField("tag", shows="show", since=70),
    mapping=True)
ONE = FIELDS.one("interfaceAttachment")


def _nic_arguments(call: Call) -> dict[str, Any]:
    """Return the keyword arguments of the function that attaches the NIC, from the body: network_id and address of a
    new port, or port_id of an existing port, and the tag of the NIC."""
    want = (call.body or {}).get("interfaceAttachment") or {}
    addresses = want.get("fixed_ips") or [{"ip_address": None}]
    return {"network_id": want.get("net_id"), "port_id": want.get("port_id"), "address": addresses[0]["ip_address"],
            "tag": want.get("tag")}


BODY = body_object({"interfaceAttachment": body_object({
    "net_id": Nullable(Id()), "port_id": Nullable(Id()), "tag": field_since("2.49", TAG),
    "fixed_ips": ListOf(body_object({"ip_address": Address()}, "ip_address"), 1)})})
_row = operation_factory("servers.os-interface", "/servers/{server_id}/os-interface", target="server")
OPERATIONS = (
    _row("GET", "", "list", interfaces.list_server_nics, shown=FIELDS.many("interfaceAttachments"), strict=102),
    _row("GET", "/{id}", "show", interfaces.show_server_nic, shown=ONE, strict=102),
    _row("POST", "", "create", interfaces.attach_nic, body=BODY, given=_nic_arguments, shown=ONE, waits=True),
    _row("DELETE", "/{id}", "delete", interfaces.detach_nic, status=202),
)
