# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-interface: the ports that a server has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import (
    TAG,
    record,
    since,
)
from magnetar_control.api.values import Address, Id
from magnetar_control.compute import interfaces
from magnetar_control.web import Answer
from magnetar_core.values import ListOf, Nullable

PATH = "/servers/{server_id}/os-interface"


def view(call: Call, port: Mapping[str, Any]) -> dict[str, Any]:
    """A port of the server."""
    shown = {"port_id": port["port_id"], "net_id": port["network_id"], "mac_addr": port["mac"],
             "port_state": port["port_state"], "fixed_ips": [
                 {"ip_address": one["ip_address"], "subnet_id": one["subnet_id"]} for one in port["fixed_ips"]]}
    if call.at(Gate.DEVICE_TAGS_SHOWN):
        shown["tag"] = port["tag"]
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET: all of them, as the network service has them."""
    return {"interfaceAttachments": [view(call, one) for one in interfaces.index(call, call.target)]}


def show(call: Call) -> dict[str, Any]:
    """GET of one."""
    return {"interfaceAttachment": view(call, interfaces.show(call, call.target, call.params["id"]))}


def create(call: Call) -> Answer:
    """POST: a port is made, or the given one taken; the answer comes when the server has the NIC."""
    want = (call.body or {}).get("interfaceAttachment") or {}
    addresses = want.get("fixed_ips") or [{"ip_address": None}]
    port = interfaces.attach(call, call.target, want.get("net_id"), want.get("port_id"), addresses[0]["ip_address"],
                             want.get("tag"))
    return Answer({"interfaceAttachment": view(call, port)}, 200)


def delete(call: Call) -> Answer:
    """DELETE: 202; the guest lets go of it afterwards."""
    interfaces.detach(call, call.target, call.params["id"])
    return Answer(None, 202)


BODY = record({"interfaceAttachment": record({
    "net_id": Nullable(Id()), "port_id": Nullable(Id()), "tag": since("2.49", TAG),
    "fixed_ips": ListOf(record({"ip_address": Address()}, "ip_address"), 1)})})


def _row(method: str, handler: Any, verb: str, use: Any, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.os-interface.{verb}", use=use,
                     target="server", **more)


OPERATIONS = (
    _row("GET", index, "list", interfaces.index, strict=102),
    _row("GET", show, "show", interfaces.show, PATH + "/{id}", strict=102),
    _row("POST", create, "create", interfaces.attach, body=BODY),
    _row("DELETE", delete, "delete", interfaces.detach, PATH + "/{id}", status=202),
)
