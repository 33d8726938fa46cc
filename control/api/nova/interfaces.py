# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-interface: the ports that a server has. A new one is answered when the server has it, as in Nova."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import TAG
from magnetar_control.api.values import Address, Id, record, since
from magnetar_control.compute import hold
from magnetar_control.store import servers
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, Failed, InvalidRequest, MagnetarError, NotFound
from magnetar_core.values import ListOf, Nullable

RULE = "os_compute_api:os-attach-interfaces:"
PATH = "/servers/{server_id}/os-interface"
#: Gates.
SHOWS_TAG, STRICT = 70, 102
#: Seconds that the answer to a new interface waits for the host.
LIMIT = 60.0


def view(call: Call, port: Mapping[str, Any]) -> dict[str, Any]:
    """A port of the server."""
    shown = {"port_id": port["port_id"], "net_id": port["network_id"], "mac_addr": port["mac"],
             "port_state": port["port_state"], "fixed_ips": [
                 {"ip_address": one["ip_address"], "subnet_id": one["subnet_id"]} for one in port["fixed_ips"]]}
    if call.version >= SHOWS_TAG:
        shown["tag"] = port["tag"]
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET: all of them, as the network service has them."""
    return {"interfaceAttachments": [view(call, one) for one in call.cloud.services.network.ports(call.server.id)]}


def show(call: Call) -> dict[str, Any]:
    """GET of one."""
    return {"interfaceAttachment": view(call, _port(call, call.params["id"]))}


def _port(call: Call, id: str) -> dict[str, Any]:
    for one in call.cloud.services.network.ports(call.server.id):
        if one["port_id"] == id:
            return one
    raise NotFound(f"Instance {call.server.id} does not have a port with id {id[:80]}")


def create(call: Call) -> Answer:
    """POST: a port is made, or the given one taken; then the server is given the NIC."""
    network, wish = call.cloud.services.network, _wish(call)
    number = hold.held(call, "attach_interface", {"wish": wish})
    try:
        nic = network.allocate(call.context, call.server.id, [wish])[0]
    except MagnetarError:
        hold.withdrawn(call, number)
        raise
    if not hold.given(call, number):
        network.release(call.server.id, nic["port_id"])
        raise Conflict(f"Cannot 'attach_interface' instance {call.server.id} while it is being deleted.")
    state = hold.ended(call, number, LIMIT)
    if state == "failed":
        raise Failed(f"Failed to attach network adapter device to {call.server.id}: {hold.why(call, number)}")
    if state is None:
        raise Failed(f"The host of instance {call.server.id} has not attached port {nic['port_id']} within "
                     f"{LIMIT:.0f} s; it is still being tried. Look with GET os-interface in a moment.")
    return Answer({"interfaceAttachment": view(call, _port(call, nic["port_id"]))}, 200)


def _wish(call: Call) -> dict[str, Any]:
    """What was asked for, in the network service's normal form. Raises ``InvalidRequest``, 404 or 409."""
    want = (call.body or {}).get("interfaceAttachment") or {}
    if want.get("net_id") and want.get("port_id"):
        raise InvalidRequest("Must not input both network_id and port_id")
    addresses = want.get("fixed_ips") or []
    if addresses and not want.get("net_id"):
        raise InvalidRequest("Must input network_id when request IP address")
    given = {"uuid": want.get("net_id"), "port": want.get("port_id"), "tag": want.get("tag"),
             "fixed_ip": addresses[0]["ip_address"] if addresses else None}
    try:
        asked = [given] if want.get("net_id") or want.get("port_id") else []
        found = call.cloud.services.network.check(call.context, asked)
    except MagnetarError as error:
        if error.details.get("type") in ("PortNotFound", "NetworkNotFound"):
            raise NotFound(error.message) from None
        if isinstance(error, Conflict) and not given["port"]:  # several networks: Nova says 400 here
            raise InvalidRequest(error.message) from None
        raise
    if not found:
        raise InvalidRequest("No valid network found to attach an interface to: the project has no network. Make one.")
    return {**found[0], "tag": want.get("tag")}


def delete(call: Call) -> Answer:
    """DELETE: 202; the guest lets go of it afterwards."""
    port = _port(call, call.params["id"])
    with call.database.write() as connection:
        done = servers.ask(connection, call.server, "detach_interface", call.request.id, call.context.user_id,
                           call.project, {"port_id": port["port_id"], "mac": port["mac"]})
        call.database.ring(connection, servers.ACTIONS_BELL)
    if not done:
        raise Conflict(f"Cannot 'detach_interface' instance {call.server.id}: something else is being done to it.")
    return Answer(None, 202)


BODY = record({"interfaceAttachment": record({
    "net_id": Nullable(Id()), "port_id": Nullable(Id()), "tag": since("2.49", TAG),
    "fixed_ips": ListOf(record({"ip_address": Address()}, "ip_address"), 1)})})


def _row(method: str, handler: Any, verb: str, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.os-interface.{verb}", rule=RULE + verb,
                     target="server", **more)


OPERATIONS = (
    _row("GET", index, "list", strict=STRICT), _row("GET", show, "show", PATH + "/{id}", strict=STRICT),
    _row("POST", create, "create", act="attach_interface", body=BODY),
    _row("DELETE", delete, "delete", PATH + "/{id}", act="detach_interface", status=202),
)
