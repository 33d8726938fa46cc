# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_interface`` and ``detach_interface``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection

from magnetar_control.conductor.steps import nics
from magnetar_control.conductor.worker.retry import (
    attempt_action,
    detachment_failed,
    retry_forever,
    take_back_attachment,
)
from magnetar_control.conductor.worker.work import HostDown, RunningAction, leased_database
from magnetar_control.documents import ServerNic
from magnetar_control.scheduler.place import describe_nic_needs, hold_ports
from magnetar_control.store.actions import actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.servers import addresses_of_nics
from magnetar_core.document import Document
from magnetar_core.errors import Cancelled, Conflict, MagnetarError

#: Why a requested NIC is not attached.
CANCELLED = "The host did not attach it while its caller waited, or the server's state was reset."


def run_nic_attachment(work: RunningAction) -> None:
    """Attach a NIC to the server of the action *work*. ``work.args["wish"]`` is the requested port. If the attachment
    fails or is cancelled, detach the NIC and free the port. While the host is down, the action is repeated later."""
    network, nic = work.conductor.services.network, None
    try:
        with work.event():
            nic = network.allocate(work.context(), work.id, [work.args["wish"]], confirm=work.confirm_lease,
                                   hostname=work.server.hostname or "", host=work.server.host)[0]
            work.begin(CANCELLED)
            resource = _plug(work, nic)
            network.bind(work.id, work.server.host, work.confirm_lease, nics.nic_devices(resource))
            if nics.any_remote_managed([nic]):
                network.prepare(work.id, work.server.host, work.confirm_lease)
        _tell_guest(work)
        _end_attachment(work)
    except HostDown:
        retry_forever(work)
    except MagnetarError as error:
        if nic is None:
            work.failed(error)
        elif work.action.cancel and work.action.attempts == 1:  # no host was asked yet
            _release(work, nic["port_id"], asks=_asks_of_host(nic))
            work.failed(error)
        else:
            take_back_attachment(work, f"port {nic['port_id']}", error,
                                 partial(_unplug, work, nic["mac"], nic["port_id"]),
                                 partial(_release, work, nic["port_id"], asks=_asks_of_host(nic)))


def _end_attachment(work: RunningAction) -> None:
    """End the action. Raises ``Cancelled`` if the action was cancelled meanwhile, because the API may already have told
    the client that nothing was attached."""
    def check(connection: Connection) -> None:
        if actions.is_cancelled(connection, work.action.id):
            raise Cancelled(CANCELLED)

    work.end_writes.append(check)
    try:
        work.done()
    except Cancelled:
        work.end_writes.remove(check)
        work.notifications.not_ended()
        raise


def _plug(work: RunningAction, nic: ServerNic) -> Document:
    """Plug *nic* into the guest, and return the server as its agent reports it. Raises ``Conflict`` when the host lacks
    resources for the NIC's port."""
    if _asks_of_host(nic) and not _hold_port_resources(work):
        raise Conflict(f"Host {work.server.host} has not {describe_nic_needs(nic)} left for port {nic['port_id']}.")
    work.conductor.services.network.prepare(work.id, work.server.host, work.confirm_lease)
    with work.client() as client:
        nics.make_nic_networks(work, client, work.server.host, [nic])
        plugged = nics.nic_for_agent(nic, nics.claimed_cards(work, work.server.host, [nic]))
        client.ensure("interface_attachment", f"{work.id}:{nic['mac']}", {"server": work.id, **plugged},
                      progress=work.progress)
        resource: Document = client.get("server", work.id)
    addresses = resource.get("addresses") or {}
    _save_nics(work, addresses, lambda saved_nics: [*(saved_nic for saved_nic in saved_nics
                                                      if saved_nic["port_id"] != nic["port_id"]), nic])
    return resource


def _asks_of_host(nic: ServerNic) -> bool:
    """Return whether the NIC's port needs resources of the host (bandwidth, PCI devices) that the server must claim."""
    return bool(nic.get("resources") or nic.get("devices"))


def _hold_port_resources(work: RunningAction) -> bool:
    """Adjust the server's claim on its host to the bandwidth and devices that its current ports need. Return ``False``
    if the host has too little left."""
    conductor, api = work.conductor, leased_database(work.confirm_lease, work.conductor.store.api)
    host = conductor.host(work.server.host).id
    made_of = work.flavor, work.server.image
    return hold_ports(api, work.id, host, made_of, lambda: conductor.services.network.ports(work.id))


def run_nic_detachment(work: RunningAction) -> None:
    """Detach the NIC with the MAC address ``work.args["mac"]`` from the server, and free the port
    ``work.args["port_id"]``, or delete the port if ``work.args["delete"]`` is true. While the host does not answer,
    repeat the action instead of ending it as failed, because the guest may have released the NIC already."""
    # An earlier try may have removed it from the server's row: then its resources are unknown, and assumed.
    id = work.args["port_id"]
    nic = next((attached_nic for attached_nic in work.nics if attached_nic["port_id"] == id), None)
    _tell_guest(work)

    def detach() -> None:
        _unplug(work, work.args["mac"], id)
        _release(work, id, delete=bool(work.args.get("delete")), asks=nic is None or _asks_of_host(nic))

    def has(resource: Mapping[str, Any]) -> bool:
        return any(nic["mac"] == work.args["mac"] for nic in resource["networks"])

    attempt_action(work, detach, partial(detachment_failed, work, f"the NIC {work.args['mac']}", has),
                   partial(retry_forever, work))


def _tell_guest(work: RunningAction) -> None:
    """If the server has floating IPs, send new metadata to the guest after the action, because a new or removed port
    may change the floating IPs. If the action is repeated, send the metadata in any case, because the first attempt may
    already have removed the floating IPs."""
    if work.action.attempts > 1 or work.conductor.services.network.floating([work.id]):
        work.end_writes.append(partial(servers.mark_guest_due, server_id=work.id))


def _release(work: RunningAction, port_id: str, *, asks: bool, delete: bool = False) -> None:
    """Free the port *port_id*, or delete it if *delete* is true. *asks*: whether the port uses resources of the host
    (bandwidth, PCI devices), which must then be released too."""
    work.conductor.services.network.release(work.id, port_id, work.confirm_lease, delete=delete)
    if asks:
        _hold_port_resources(work)


def _unplug(work: RunningAction, mac: str, port_id: str) -> None:
    with work.client() as client:
        client.delete("interface_attachment", f"{work.id}:{mac}", progress=work.progress)
        addresses = client.get("server", work.id).get("addresses") or {}
    _save_nics(work, addresses, lambda saved_nics: [nic for nic in saved_nics if nic["port_id"] != port_id])


def _save_nics(work: RunningAction, addresses: Document, change: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the server's stored list of NICs by ``change(list)``, and update the server's stored addresses for the
    new list. *addresses*: the addresses that the agent reports."""
    work.revise("interfaces", change, lambda saved_nics: {"addresses": servers.json_text(addresses_of_nics(saved_nics,
                                                                                                           addresses))})
