# SPDX-License-Identifier: GPL-3.0-or-later
"""Interface attachments: the ports that a server has. A new one is returned when the server has it, as in Nova. One
that asks for bandwidth or a device of a host is refused with 400 where the server's host has not enough left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors.hardware import check_nics
from magnetar_control.compute.held_action import hold
from magnetar_control.compute.proxies import networks
from magnetar_control.compute.target import Target, changed_meanwhile, enqueue, of_server
from magnetar_control.compute.waiting import AGAIN, DONE
from magnetar_control.scheduler.place import hold_ports, in_words
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, Failed, InvalidRequest, MagnetarError, NotFound, Unavailable

RULE = "os_compute_api:os-attach-interfaces:"
Document = dict[str, Any]


@of_server(rule=f"{RULE}list")
def index(caller: Caller, target: Target) -> list[Document]:
    """All of them, as ``Networks.ports`` returns them."""
    return caller.cloud.services.network.ports(target.row.id)


@of_server(rule=f"{RULE}show")
def show(caller: Caller, target: Target, port_id: str) -> Document:
    """One of them. Raises ``NotFound``."""
    return _port(caller, target, port_id)


def _port(caller: Caller, target: Target, id: str) -> Document:
    for one in caller.cloud.services.network.ports(target.row.id):
        if one["port_id"] == id:
            return one
    raise NotFound(f"Instance {target.row.id} does not have a port with id {id[:80]}")


@of_server("attach_interface")
def attach(caller: Caller, target: Target, network_id: str | None = None, port_id: str | None = None,
           address: str | None = None, tag: str | None = None, limit: float | None = None) -> Document:
    """Make a port, on *network_id* or the project's only network, or take the port *port_id*; give the server its NIC;
    wait *limit* seconds until it has it, and return the port. A host that takes longer does not attach it at all: the
    action is cancelled, so that another request gives the server one NIC and not two. Raises ``InvalidRequest``,
    ``NotFound``, ``Conflict``, ``Failed``, ``Unavailable``."""
    wish = _wish(caller, network_id, port_id, address, tag)
    with caller.cloud.waiting.of(target.row.host, caller.project):
        return _attached(caller, target, wish, DONE if limit is None else limit)


def _attached(caller: Caller, target: Target, wish: Document, limit: float) -> Document:
    network, id = caller.cloud.services.network, target.row.id
    action = hold(caller, target, "attach_interface", {"wish": wish})
    try:
        context = replace(caller.context, project_id=target.row.project_id)  # a port is the server's, whoever asks
        nic = network.allocate(context, id, [wish], hostname=target.row.hostname or "",
                               host=target.row.host or "")[0]
        if nic.get("resources") or nic.get("devices"):
            _claim(caller, target, nic)
    except MagnetarError:
        action.withdraw()
        raise
    deleted = Conflict(f"Cannot 'attach_interface' instance {id} while it is being deleted.")
    if not action.release():
        network.release(id, nic["port_id"])
        raise deleted
    state = action.wait(limit) or action.cancel()
    if state == "failed" and action.deleted():
        raise deleted
    if state == "failed":
        raise Failed(f"Failed to attach network adapter device to {id}: {action.failure()}")
    if state is None:
        raise Unavailable(f"The host of instance {id} has not attached port {nic['port_id']} within {limit:.0f} s, and "
                          "will not: the request was cancelled, and the port is freed. Try again later.",
                          headers={"Retry-After": AGAIN})
    return _port(caller, target, nic["port_id"])


def _claim(caller: Caller, target: Target, nic: Document) -> None:
    """Claim what a NIC asks of the server's host. Raises ``InvalidRequest``, with its port free again."""
    cloud, row = caller.cloud, target.row
    made_of = orjson.loads(row.flavor), orjson.loads(row.image)
    try:
        check_nics(*made_of, [nic])
    except InvalidRequest:
        cloud.services.network.release(row.id, nic["port_id"])
        raise
    with cloud.store.api.read() as connection:
        host = hosts.show(connection, row.host)
    if host is not None and hold_ports(cloud.store.api, row.id, host["id"], made_of,
                                       lambda: cloud.services.network.ports(row.id)):
        return
    cloud.services.network.release(row.id, nic["port_id"])
    raise InvalidRequest(f"Failed to allocate additional resources to claim port {nic['port_id']} of instance "
                         f"{row.id}: its host has not {in_words(nic)} left. Move the server to another "
                         "host, or use another port.")


def _wish(caller: Caller, network_id: str | None, port_id: str | None, address: str | None,
          tag: str | None) -> Document:
    """What is asked for, in the network service's normal form. Raises ``InvalidRequest``, ``NotFound``, ``Conflict``.
    """
    if network_id and port_id:
        raise InvalidRequest("Must not input both network_id and port_id")
    if address and not network_id:
        raise InvalidRequest("Must input network_id when request IP address")
    given = {"uuid": network_id, "port": port_id, "tag": tag, "fixed_ip": address}
    try:
        found = networks.check_requested(caller, [given] if network_id or port_id else [])
    except MagnetarError as error:
        if error.details.get("type") in ("PortNotFound", "NetworkNotFound"):
            raise NotFound(error.message) from None
        if isinstance(error, Conflict) and not port_id:  # several networks: Nova says 400 here
            raise InvalidRequest(error.message) from None
        raise
    if not found:
        raise InvalidRequest("No valid network found to attach an interface to: the project has no network. Make one.")
    return {**found[0], "tag": tag}


@of_server("detach_interface")
def detach(caller: Caller, target: Target, port_id: str) -> None:
    """Have the guest let go of the port, afterwards. Raises ``NotFound``."""
    port = _port(caller, target, port_id)
    enqueue(caller, target, "detach_interface", {"port_id": port["port_id"], "mac": port["mac"]})


def delete_port(caller: Caller, id: str) -> None:
    """Delete a port. The server that has it loses its NIC first, as at Neutron, and its lock does not keep the NIC.

    Return when the port is gone. A host that needs longer than ``DONE`` deletes it later. Raise ``Conflict`` when the
    server is in no state to detach it, and when the guest does not release it; the port stays then.
    """
    store = caller.cloud.services.network.resources["ports"]
    try:
        store.delete(caller.context, id)
    except Conflict as error:
        found = servers.find(caller.cloud.store, error.details["server"]) if "server" in error.details else None
        if found is None:
            raise
        target = Target(*found)
        try:
            ended = _detach_to_delete(caller, target, store.show(caller.context, id))
        except servers.Moved:
            raise changed_meanwhile(target, "detach_interface") from None
        if ended:
            with suppress(NotFound):
                store.delete(caller.context, id)


def _detach_to_delete(caller: Caller, target: Target, port: Document) -> bool:
    """Detach the *port* of a server and delete it. Return whether this has ended."""
    row, id = target.row, port["id"]
    if not row.host:  # no guest has it
        _forget_nic(target, port)
        caller.cloud.services.network.release(row.id, id, delete=True)
        return True
    if not servers.allowed(row, "detach_interface"):
        state = f"task_state {row.task_state}" if row.task_state else f"vm_state {row.vm_state}"
        raise Conflict(f"Port {id} is in use by server {row.id}, which cannot detach it while it is in {state}. Try "
                       "again when the server is active or stopped.", type="PortInUse")
    with caller.cloud.waiting.of(row.host, caller.project):
        action = hold(caller, target, "detach_interface", {"port_id": id, "mac": port["mac_address"], "delete": True})
        action.release()
        outcome = action.wait(DONE)
    if outcome == "failed" and not action.deleted():
        raise Conflict(f"Port {id} is in use by server {row.id}, which did not release it: {action.failure()}",
                       type="PortInUse")
    return outcome is not None


def _forget_nic(target: Target, port: Document) -> None:
    """Take the NIC of a *port* out of a server without a guest."""
    with target.database.write() as connection:
        servers.revise(connection, target.row.id, "interfaces", lambda kept: [
            nic for nic in kept if nic["port_id"] != port["id"]])
        shown = {name: [one for one in given if one["OS-EXT-IPS-MAC:mac_addr"] != port["mac_address"]]
                 for name, given in orjson.loads(target.row.addresses).items()}
        servers.change(connection, target.row.id, addresses=servers.text({
            name: given for name, given in shown.items() if given}))
