# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_interface`` and ``detach_interface``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from magnetar_control.services import Document
from magnetar_control.store import servers
from magnetar_core.errors import MagnetarError

from . import nics
from .retry import attempt, retry_forever, take_back
from .work import HostDown, Work


def attach_interface(work: Work) -> None:
    """Attach a NIC with the port of ``args["wish"]``; free the port when that fails. Try until the host answers."""
    network, nic = work.conductor.services.network, None
    try:
        with work.event():
            nic = network.allocate(work.context(), work.id, [work.args["wish"]], sure=work.confirm_lease,
                                   hostname=work.server.hostname or "")[0]
            _plug(work, nic)
            network.bind(work.id, work.server.host, work.confirm_lease)
    except HostDown:
        retry_forever(work)
    except MagnetarError as error:
        if nic is None:
            work.failed(error)
        else:
            take_back(work, f"port {nic['port_id']}", error, partial(_unplug, work, nic["mac"], nic["port_id"]),
                      partial(network.release, work.id, nic["port_id"], work.confirm_lease))
    else:
        work.done()


def _plug(work: Work, nic: Document) -> None:
    work.conductor.services.network.prepare(work.id, work.server.host, work.confirm_lease)
    with work.client() as client:
        nics.networks(work, client, work.server.host, [nic])
        client.ensure("interface_attachment", f"{work.id}:{nic['mac']}", {"server": work.id, **nics.on_host(nic)},
                      progress=work.progress)
        known = client.get("server", work.id).get("addresses") or {}
    _note(work, known, lambda kept: [*(one for one in kept if one["port_id"] != nic["port_id"]), nic])


def detach_interface(work: Work) -> None:
    """Detach the NIC ``args["mac"]``, and free or delete the port ``args["port_id"]``."""
    def detach() -> None:
        _unplug(work, work.args["mac"], work.args["port_id"])
        work.conductor.services.network.release(work.id, work.args["port_id"], work.confirm_lease)

    attempt(work, detach, work.failed)


def _unplug(work: Work, mac: str, port_id: str) -> None:
    with work.client() as client:
        client.delete("interface_attachment", f"{work.id}:{mac}", progress=work.progress)
        known = client.get("server", work.id).get("addresses") or {}
    _note(work, known, lambda kept: [one for one in kept if one["port_id"] != port_id])


def _note(work: Work, known: Document, change: Callable[[list[Document]], list[Document]]) -> None:
    """Save the NICs of the server, and the addresses that follow from them."""
    work.revise("interfaces", change, lambda kept: {"addresses": servers.text(nics.addresses(kept, known))})
