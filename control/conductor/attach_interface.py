# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_interface`` and ``detach_interface``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from magnetar_control.services import Document
from magnetar_control.store import servers
from magnetar_core.errors import MagnetarError, NotFound

from . import delivery, nics
from .retry import retry_forever, retry_or_fail
from .work import HostDown, Work

log = logging.getLogger(__name__)
List = list[dict[str, Any]]


def attach_interface(work: Work) -> None:
    """Attach a NIC with the port of ``args["wish"]``; free the port again when that fails. While the host does not
    answer, try again."""
    network, nic = work.conductor.services.network, None
    try:
        with work.event():
            nic = network.allocate(work.context(), work.id, [work.args["wish"]])[0]
            _plug(work, nic)
            network.bind(work.id, work.server.host)
    except HostDown:
        retry_forever(work)
    except MagnetarError as error:
        _undo(work, nic, error)
    else:
        work.done()


def _plug(work: Work, nic: Document) -> None:
    with work.client() as client:
        delivery.networks(work, client, work.server.host, [nic])
        want = {"server": work.id, **nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {})}
        client.ensure("interface_attachment", f"{work.id}:{nic['mac']}", want, progress=work.progress,
                      timeout=work.conductor.settings.action_timeout)
        known = client.get("server", work.id).get("addresses") or {}
    _note(work, known, lambda kept: [*(one for one in kept if one["port_id"] != nic["port_id"]), nic])


def _undo(work: Work, nic: Document | None, error: Exception) -> None:
    """Free or delete the port once the guest is without the NIC. Where the guest does not release it, the port stays
    the server's; the audit frees it when the host shows that the guest has no such NIC."""
    if nic is not None:
        try:
            _unplug(work, nic["mac"], nic["port_id"])
        except HostDown:
            retry_forever(work)
            return
        except NotFound:
            pass
        except MagnetarError as kept:
            log.warning("server %s may have port %s, which it was not to get: %s", work.id, nic["port_id"],
                        kept.message)
            work.failed(error)
            return
        work.conductor.services.network.release(work.id, nic["port_id"])
    work.failed(error)


def detach_interface(work: Work) -> None:
    """Detach the NIC ``args["mac"]``, and free or delete the port ``args["port_id"]``."""
    try:
        with work.event():
            _unplug(work, work.args["mac"], work.args["port_id"])
            work.conductor.services.network.release(work.id, work.args["port_id"])
    except HostDown as error:
        retry_or_fail(work, error)
    except MagnetarError as error:
        work.failed(error)
    else:
        work.done()


def _unplug(work: Work, mac: str, port_id: str) -> None:
    with work.client() as client:
        client.delete("interface_attachment", f"{work.id}:{mac}", progress=work.progress,
                      timeout=work.conductor.settings.action_timeout)
        known = client.get("server", work.id).get("addresses") or {}
    _note(work, known, lambda kept: [one for one in kept if one["port_id"] != port_id])


def _note(work: Work, known: Document, change: Callable[[List], List]) -> None:
    """Save the NICs of the server, and the addresses that follow from them."""
    def once() -> None:
        with work.database.write() as connection:
            kept = servers.revise(connection, work.id, "interfaces", change)
            servers.change(connection, work.id, addresses=servers.text(nics.addresses(kept, known)))
            work.database.ring(connection, servers.SERVERS_BELL)

    work.database.retried(once)
