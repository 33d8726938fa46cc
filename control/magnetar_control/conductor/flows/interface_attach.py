# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_interface`` and ``detach_interface``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
from sqlalchemy import Connection

from magnetar_control.conductor.steps import nics
from magnetar_control.conductor.worker.retry import attempt, detachment_failed, retry_forever, take_back
from magnetar_control.conductor.worker.work import HostDown, Work, leased
from magnetar_control.scheduler.place import hold_ports, in_words
from magnetar_control.services import Document
from magnetar_control.store.actions import actions
from magnetar_control.store.servers import servers, told_guests
from magnetar_control.store.servers.server_addresses import addresses_of_nics
from magnetar_core.errors import Cancelled, Conflict, MagnetarError

#: Why a NIC is not attached that was asked for.
CANCELLED = "The host did not attach it while its caller waited, or the server's state was reset."


def attach_interface(work: Work) -> None:
    """Attach a NIC with the port of ``args["wish"]``; free the port when that fails, or when the request was cancelled
    because its caller waits no longer. Try until the host answers."""
    network, nic = work.conductor.services.network, None
    try:
        with work.event():
            nic = network.allocate(work.context(), work.id, [work.args["wish"]], sure=work.confirm_lease,
                                   hostname=work.server.hostname or "", host=work.server.host)[0]
            work.begin(CANCELLED)
            seen = _plug(work, nic)
            network.bind(work.id, work.server.host, work.confirm_lease, nics.devices(seen))
            if nics.any_remote_managed([nic]):
                network.prepare(work.id, work.server.host, work.confirm_lease)
        _tell_guest(work)
        _done(work)
    except HostDown:
        retry_forever(work)
    except MagnetarError as error:
        if nic is None:
            work.failed(error)
        elif work.action.cancel and work.action.attempts == 1:  # no host was asked for it
            _release(work, nic)
            work.failed(error)
        else:
            take_back(work, f"port {nic['port_id']}", error, partial(_unplug, work, nic["mac"], nic["port_id"]),
                      partial(_release, work, nic))


def _done(work: Work) -> None:
    """End the action. Raises ``Cancelled`` where it was cancelled by now: its caller was told that nothing is attached.
    """
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


def _plug(work: Work, nic: Document) -> Document:
    """Returns the agent's resource."""
    if _asks(nic) and not _hold(work):
        raise Conflict(f"Host {work.server.host} has not {in_words(nic)} left for port {nic['port_id']}.")
    work.conductor.services.network.prepare(work.id, work.server.host, work.confirm_lease)
    with work.client() as client:
        nics.networks(work, client, work.server.host, [nic])
        plugged = nics.on_host(nic, nics.claimed_cards(work, work.server.host, [nic]))
        client.ensure("interface_attachment", f"{work.id}:{nic['mac']}", {"server": work.id, **plugged},
                      progress=work.progress)
        seen: Document = client.get("server", work.id)
    known = seen.get("addresses") or {}
    _note(work, known, lambda kept: [*(one for one in kept if one["port_id"] != nic["port_id"]), nic])
    return seen


def _asks(nic: Document) -> bool:
    """Whether the port asks something of its host that the server holds for it."""
    return bool(nic.get("resources") or nic.get("devices"))


def _hold(work: Work) -> bool:
    """Have the server hold what its ports ask of its host. ``False`` where the host has not enough left."""
    conductor, api = work.conductor, leased(work.confirm_lease, work.conductor.store.api)
    host = conductor.host(work.server.host)["id"]
    made_of = work.flavor, orjson.loads(work.server.image)
    return hold_ports(api, work.id, host, made_of, lambda: conductor.services.network.ports(work.id))


def detach_interface(work: Work) -> None:
    """Detach the NIC ``args["mac"]``, and free or delete the port ``args["port_id"]``; ``args["delete"]``: delete it.
    Try until the host answers: the guest may be without it already."""
    # A try before may have taken it out of the server's row: then what it asked for is not known any more.
    nic = next((one for one in work.nics if one["port_id"] == work.args["port_id"]), {
        "port_id": work.args["port_id"], "resources": True})
    _tell_guest(work)

    def detach() -> None:
        _unplug(work, work.args["mac"], work.args["port_id"])
        _release(work, nic, delete=bool(work.args.get("delete")))

    def has(seen: Mapping[str, Any]) -> bool:
        return any(one["mac"] == work.args["mac"] for one in seen["networks"])

    attempt(work, detach, partial(detachment_failed, work, f"the NIC {work.args['mac']}", has),
            partial(retry_forever, work))


def _tell_guest(work: Work) -> None:
    """Have the guest told of its floating IPs when the action ends, if a port has brought one or takes one away. What
    there was before an earlier try is not known."""
    if work.action.attempts > 1 or work.conductor.services.network.floating([work.id]):
        work.end_writes.append(partial(told_guests.mark_due, server_id=work.id))


def _release(work: Work, nic: Document, *, delete: bool = False) -> None:
    """Free or delete the port, and give back what it asked of the host."""
    work.conductor.services.network.release(work.id, nic["port_id"], work.confirm_lease, delete=delete)
    if _asks(nic):
        _hold(work)


def _unplug(work: Work, mac: str, port_id: str) -> None:
    with work.client() as client:
        client.delete("interface_attachment", f"{work.id}:{mac}", progress=work.progress)
        known = client.get("server", work.id).get("addresses") or {}
    _note(work, known, lambda kept: [one for one in kept if one["port_id"] != port_id])


def _note(work: Work, known: Document, change: Callable[[list[Document]], list[Document]]) -> None:
    """Save the NICs of the server, and the addresses that follow from them."""
    work.revise("interfaces", change, lambda kept: {"addresses": servers.text(addresses_of_nics(kept, known))})
