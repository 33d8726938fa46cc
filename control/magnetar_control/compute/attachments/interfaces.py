# SPDX-License-Identifier: GPL-3.0-or-later
"""Interface attachments: the ports of a server. As in Nova, the answer to an attachment waits until the server has the
port. A port that needs bandwidth or a device of a host is refused with 400 when the server's host has not enough
left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors.hardware import check_nics
from magnetar_control.compute.held_action import hold_action
from magnetar_control.compute.proxies import networks
from magnetar_control.compute.target import ServerTarget, changed_meanwhile, enqueue_action, server_use_case
from magnetar_control.compute.waiting import AGAIN, DONE
from magnetar_control.documents import PortOfServer, PortRequest, ServerNic
from magnetar_control.scheduler.place import describe_nic_needs, hold_ports
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import servers
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Failed, InvalidRequest, MagnetarError, NotFound, Unavailable

RULE = "os_compute_api:os-attach-interfaces:"


@server_use_case(rule=f"{RULE}list")
def list_server_nics(caller: Caller, target: ServerTarget) -> list[PortOfServer]:
    """Return all ports of the server, each with the status and the host of the port."""
    return caller.cloud.services.network.ports(target.row.id)


@server_use_case(rule=f"{RULE}show")
def show_server_nic(caller: Caller, target: ServerTarget, port_id: str) -> PortOfServer:
    """Return the server's port *port_id*. Raises ``NotFound`` when the server does not have it."""
    return _find_nic(caller, target, port_id)


def _find_nic(caller: Caller, target: ServerTarget, id: str) -> PortOfServer:
    for nic in caller.cloud.services.network.ports(target.row.id):
        if nic["port_id"] == id:
            return nic
    raise NotFound(f"Instance {target.row.id} does not have a port with id {id[:80]}")


@server_use_case("attach_interface")
def attach_nic(caller: Caller, target: ServerTarget, network_id: str | None = None, port_id: str | None = None,
               address: str | None = None, tag: str | None = None, limit: float | None = None) -> PortOfServer:
    """Attach a NIC to the server, either for the existing port *port_id*, or for a new port on *network_id* (default:
    the project's only network). *address*: the fixed IP of a new port. *tag*: the device tag. Wait at most *limit*
    seconds (default: ``DONE``) until the server has the NIC, and return the NIC's port.

    If the host takes longer, the action is cancelled and nothing is attached, so that a client that repeats the request
    does not get two NICs. Raises ``InvalidRequest``, ``NotFound``, ``Conflict``, ``Failed``, ``Unavailable``.
    """
    requested_nic = _requested_network(caller, network_id, port_id, address, tag)
    with caller.cloud.waiting.of(target.row.host, caller.project):
        return _attach_and_wait(caller, target, requested_nic, DONE if limit is None else limit)


def _attach_and_wait(caller: Caller, target: ServerTarget, requested_nic: PortRequest, limit: float) -> PortOfServer:
    network, id = caller.cloud.services.network, target.row.id
    action = hold_action(caller, target, "attach_interface", {"wish": requested_nic})
    try:
        context = replace(caller.context, project_id=target.row.project_id)  # the port belongs to the server's project
        nic = network.allocate(context, id, [requested_nic], hostname=target.row.hostname or "",
                               host=target.row.host or "")[0]
        if nic.get("resources") or nic.get("devices"):
            _claim_host_resources(caller, target, nic)
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
    return _find_nic(caller, target, nic["port_id"])


def _claim_host_resources(caller: Caller, target: ServerTarget, nic: ServerNic) -> None:
    """Claim the PCI devices and bandwidth that *nic* needs on the server's host. If the host does not have enough,
    release the NIC's port and raise ``InvalidRequest``."""
    cloud, row = caller.cloud, target.row
    made_of = row.flavor, row.image
    try:
        check_nics(*made_of, [nic])
    except InvalidRequest:
        cloud.services.network.release(row.id, nic["port_id"])
        raise
    with cloud.store.api.read() as connection:
        host = hosts.fetch_host_row(connection, row.host)
    if host is not None and hold_ports(cloud.store.api, row.id, host.id, made_of,
                                       lambda: cloud.services.network.ports(row.id)):
        return
    cloud.services.network.release(row.id, nic["port_id"])
    raise InvalidRequest(f"Failed to allocate additional resources to claim port {nic['port_id']} of instance "
                         f"{row.id}: its host has not {describe_nic_needs(nic)} left. Move the server to another "
                         "host, or use another port.")


def _requested_network(caller: Caller, network_id: str | None, port_id: str | None, address: str | None,
                       tag: str | None) -> PortRequest:
    """Check the request for a new NIC with the network service, and return it as a complete ``PortRequest``. The
    request names either the existing port *port_id*, or *network_id* and optionally a fixed IP *address*. Raises
    ``InvalidRequest``, ``NotFound``, ``Conflict``."""
    if network_id and port_id:
        raise InvalidRequest("Must not input both network_id and port_id")
    if address and not network_id:
        raise InvalidRequest("Must input network_id when request IP address")
    requested = {"uuid": network_id, "port": port_id, "tag": tag, "fixed_ip": address}
    try:
        checked_networks = networks.resolve_requested_networks(caller, [requested] if network_id or port_id else [])
    except MagnetarError as error:
        if error.details.get("type") in ("PortNotFound", "NetworkNotFound"):
            raise NotFound(error.message) from None
        if isinstance(error, Conflict) and not port_id:  # several networks: Nova answers 400 here
            raise InvalidRequest(error.message) from None
        raise
    if not checked_networks:
        raise InvalidRequest("No valid network found to attach an interface to: the project has no network. Make one.")
    return {**checked_networks[0], "tag": tag}


@server_use_case("detach_interface")
def detach_nic(caller: Caller, target: ServerTarget, port_id: str) -> None:
    """Queue the detachment of the port *port_id* from the server. Raises ``NotFound``."""
    port = _find_nic(caller, target, port_id)
    enqueue_action(caller, target, "detach_interface", {"port_id": port["port_id"], "mac": port["mac"]})


def delete_port(caller: Caller, id: str) -> None:
    """Delete the port *id*. As in Neutron, a port of a server is detached first, even when the server is locked.

    Return when the port is deleted, or after ``DONE`` seconds; if the host is slower, the port is detached and deleted
    later. Raises ``Conflict``, and does not delete the port, when the server's state does not allow detaching, or the
    guest does not release the NIC.
    """
    store = caller.cloud.services.network.resources["ports"]
    try:
        store.delete(caller.context, id)
    except Conflict as error:
        located_server = servers.find_server_row(caller.cloud.store,
                                                 error.details["server"]) if "server" in error.details else None
        if located_server is None:
            raise
        target = ServerTarget(*located_server)
        try:
            ended = _detach_to_delete(caller, target, store.show(caller.context, id))
        except servers.Moved:
            raise changed_meanwhile(target, "detach_interface") from None
        if ended:
            with suppress(NotFound):
                store.delete(caller.context, id)


def _detach_to_delete(caller: Caller, target: ServerTarget, port: Document) -> bool:
    """Detach the *port* from its server, then delete it. Return ``True`` when this is done, ``False`` when the host
    needs longer than ``DONE`` seconds. Raises ``Conflict``."""
    row, id = target.row, port["id"]
    if not row.host:  # no guest has it
        _forget_nic(target, port)
        caller.cloud.services.network.release(row.id, id, delete=True)
        return True
    if not servers.action_is_allowed(row, "detach_interface"):
        state = f"task_state {row.task_state}" if row.task_state else f"vm_state {row.vm_state}"
        raise Conflict(f"Port {id} is in use by server {row.id}, which cannot detach it while it is in {state}. Try "
                       "again when the server is active or stopped.", type="PortInUse")
    with caller.cloud.waiting.of(row.host, caller.project):
        action = hold_action(caller, target, "detach_interface",
                             {"port_id": id, "mac": port["mac_address"], "delete": True})
        action.release()
        outcome = action.wait(DONE)
    if outcome == "failed" and not action.deleted():
        raise Conflict(f"Port {id} is in use by server {row.id}, which did not release it: {action.failure()}",
                       type="PortInUse")
    return outcome is not None


def _forget_nic(target: ServerTarget, port: Document) -> None:
    """Remove the NIC of *port*, and the NIC's addresses, from the row of a server without a guest."""
    with target.database.write() as connection:
        servers.update_list_column(connection, target.row.id, "interfaces", lambda nics: [
            nic for nic in nics if nic["port_id"] != port["id"]])
        shown = {name: [address for address in addresses if address["OS-EXT-IPS-MAC:mac_addr"] != port["mac_address"]]
                 for name, addresses in target.row.addresses.items()}
        servers.update_server_row(connection, target.row.id, addresses=servers.json_text({
            name: addresses for name, addresses in shown.items() if addresses}))
