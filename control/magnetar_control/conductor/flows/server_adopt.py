# SPDX-License-Identifier: GPL-3.0-or-later
"""The adoption of a libvirt domain as a server, which is the flow of ``create`` for such a server, and its release.

The guest runs on in both. Ports are allocated first, with the MAC addresses and addresses that the domain's NICs have,
then the agent of the host marks the domain. Every step can be repeated. If the agent refuses the domain, all is undone,
and the server is in error until the request that waits for it, or the next one, removes its row.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.steps import machines, nics
from magnetar_control.conductor.worker.retry import retry_forever, retry_later
from magnetar_control.conductor.worker.work import HostDown, RunningAction, full_is_down, leased_database
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import deleted_servers, servers
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.power import POWERS

log = logging.getLogger(__name__)


def run_adoption(work: RunningAction) -> None:
    """Adopt the libvirt domain of the action *work*, so that it becomes the action's server: allocate ports, and have
    the host's agent record the domain as a server. If the agent refuses, undo the adoption."""
    host = work.action.host or work.server.host
    try:
        _check_still_possible(work, host)
        with work.event(host=host, noted={"task_state": servers.SPAWNING, "host": host}):
            columns = _adopt_on(work, host)
            _check_still_possible(work, host)
    except HostDown as error:
        if not retry_later(work):
            _undo_adoption(work, host, error)
    except MagnetarError as error:
        _undo_adoption(work, host, error)
    else:
        work.done(**columns)


def _check_still_possible(work: RunningAction, host: str) -> None:
    """Raise ``Conflict`` if the adoption must not continue: the server was deleted meanwhile, or it has no claim on
    *host* any more. In the second case, an earlier attempt was undoing the adoption, which ends with the release of the
    claims."""
    if work.action.cancel or work.cancelled.is_set():
        raise Conflict("The server was deleted while its domain was adopted.")
    with work.conductor.store.api.read() as connection:
        claims = allocations.fetch_server_claims(connection, work.id)
    if host not in [claim.host for claim in claims]:
        raise Conflict("The adoption has failed, and was interrupted while it was undone. Repeat it.")


def _adopt_on(work: RunningAction, host: str) -> dict[str, Any]:
    """Allocate the ports of the server, and have the agent of *host* adopt its domain. Return the columns of the
    server's row."""
    ports = nics.allocate_nics(work, host)
    work.flush()  # an undo must know them
    with full_is_down(), work.client(host) as client:
        client.ensure("adoption", work.id, {"server_name": work.server.hostname or work.server.name},
                      request_id=work.idempotency_key)
        resource = client.get("server", work.id)
    if ports:
        work.conductor.services.network.bind(work.id, host, work.confirm_old_lease, {})
    power = POWERS[resource["power_state"]]
    return {**nics.observed_columns(ports, resource), **machines.machine_type_column(work, resource), "host": host,
            "vm_state": power.vm_state, "launched_at": work.server.launched_at or utc_now()}


def _undo_adoption(work: RunningAction, host: str, error: MagnetarError) -> None:
    """Undo an adoption that has failed with *error*: have the agent of *host* release the domain, free the ports and
    the claims, and set the server to error. Until the host answers, the action is repeated."""
    work.confirm_lease()
    try:
        release_domain(work, host)
    except HostDown as away:
        log.warning("server %s: its adoption on %s is undone later: %s", work.id, host, away.message)
        retry_forever(work)
        return
    work.conductor.services.network.release(work.id, confirm=work.confirm_lease)
    with leased_database(work.confirm_lease, work.conductor.store.api).write() as connection:
        allocations.release_consumer_claims(connection, work.id)
    work.conductor.read_host(host)
    work.failed(error, vm_state="error", host=None, interfaces="[]")


def release_domain(work: RunningAction, host: str) -> None:
    """Have the agent of *host* release the libvirt domain of the adopted server: the agent does not manage the domain
    any more, and the domain continues to run. Do nothing if the host does not have the server. Raises ``HostDown``."""
    with full_is_down(), work.client(host, PATIENCE) as client:
        client.delete("adoption", work.id)


def run_release(work: RunningAction) -> None:
    """Release the adopted server of the action *work*: its domain runs on, its ports and claims are freed, and its rows
    are removed, so that the domain can be adopted again. If the host does not answer, the server stays as it is."""
    try:
        with work.event():
            if work.server.host:
                release_domain(work, work.server.host)
            work.conductor.services.network.release(work.id, confirm=work.confirm_lease)
            with leased_database(work.confirm_lease, work.conductor.store.api).write() as connection:
                allocations.release_consumer_claims(connection, work.id)
            deleted_servers.remove_mappings(work.conductor.store, [work.id])
    except HostDown as error:
        if not retry_later(work):
            work.failed(error)
    except MagnetarError as error:
        work.failed(error)
    else:
        if work.server.host:
            work.conductor.read_host(work.server.host)
        work.end_writes.append(partial(_forget_rows, work))
        work.done(deleted_at=utc_now(), host=work.server.host)


def _forget_rows(work: RunningAction, connection: Connection) -> None:
    """Send the notifications of the release, and remove the server's rows, in the transaction that ends the action."""
    work.notifications.write(connection, work.server)
    deleted_servers.remove_server_rows(connection, [work.id])
