# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``delete``: remove the server from its host, free its ports, volumes and claims, and delete the image of
a shelved server. Its row stays, marked deleted."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from sqlalchemy import String, bindparam, delete, select, update

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.steps import block_devices, keys, migration
from magnetar_control.conductor.worker.retry import attempt_action, last_try
from magnetar_control.conductor.worker.work import HostDown, RunningAction, full_is_down
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import migrations, server_group_members, server_mappings
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.migrations import ENDED
from magnetar_core.errors import Conflict, Unavailable
from magnetar_core.power import DELETED

from .server_adopt import run_release
from .server_shelve import delete_image

log = logging.getLogger(__name__)
#: Statements of every deletion, built once.
_SERVER = bindparam("server", type_=String)
_MOVES = select(migrations.c.uuid).where(migrations.c.server_id == _SERVER)
_LEAVE = delete(server_group_members).where(server_group_members.c.server_id == _SERVER)
_UNMAP = update(server_mappings).where(server_mappings.c.server_id == _SERVER).values(deleted=True)


def run_server_deletion(work: RunningAction) -> None:
    """Delete the server of the action *work*. If a host is down, has a full disk or does not answer at any attempt, the
    deletion completes without this host, and the guest is removed from the host later. The domain of an adopted server
    stays as it is if the server is released, or its adoption has not ended."""
    server = work.server
    if server.deleted_at:
        work.done()
        return
    if work.args.get("release") or (servers.is_adopted_server(server) and not server.launched_at):
        run_release(work)
        return

    def delete_it() -> dict[str, Any]:
        with work.conductor.store.api.read() as connection:  # its host, and the hosts of migrations that have not ended
            claimed_hosts = [claim.host for claim in allocations.fetch_server_claims(connection, work.id)]
        names = list(dict.fromkeys(filter(None, (work.server.host, *claimed_hosts))))
        for host in names:
            _delete_on(work, host, moves=len(names) > 1)
        block_devices.release_volumes(work)
        work.conductor.services.network.release(work.id, confirm=work.confirm_lease)
        delete_image(work, server.shelved_image_id)
        _forget_keys(work)
        _release_claims(work)
        moment = utc_now()
        return {"deleted_at": moment, "terminated_at": server.terminated_at or moment, "vm_state": DELETED,
                "power_state": 0, "host": server.host, "volumes": "[]", "addresses": "{}", "interfaces": "[]"}

    attempt_action(work, delete_it, work.error)


def _delete_on(work: RunningAction, host: str, *, moves: bool) -> None:
    """Delete the server from *host*. *moves*: several hosts may have the guest or disks of the server, because a
    migration has not ended. If the host is down, or does not answer at the last attempt, the server stays on the host
    until ``HostWatch`` (when the agent reconnects) or the audit removes it. At earlier attempts, raise ``HostDown``
    instead."""
    try:
        with full_is_down():
            if not moves:
                with suppress(Conflict):  # it moves, or a move has left something
                    work.delete_on(host)
                    return
            with work.client(host, PATIENCE) as client:
                migration.remove_server_from_host(client, work.id)
    except Conflict as error:
        log.warning("server %s stays on %s for now: %s", work.id, host, error.message)
    except HostDown as error:
        if work.conductor.is_up(host) and not last_try(work):
            raise
        log.warning("server %s stays on %s for now: %s", work.id, host, error.message)


def _forget_keys(work: RunningAction) -> None:
    """Delete the encryption keys of the server's disks and the secret of its TPM. Raises ``HostDown`` if the key
    manager does not answer, so that the action is repeated later."""
    try:
        keys.forget_disk_keys(work)
        keys.forget_tpm_secret(work)
    except Unavailable as away:
        raise HostDown(away.message) from away


def _release_claims(work: RunningAction) -> None:
    """Release the server's claims on all hosts, remove the server from its server group and from the mapping of servers
    to cells, and set its open migrations to error."""
    with work.database.read() as connection:
        moves = connection.execute(_MOVES, {"server": work.id}).scalars().all()
    with work.conductor.store.api.write() as connection:
        for consumer in (work.id, *moves):
            allocations.release_consumer_claims(connection, consumer)
        for statement in (_LEAVE, _UNMAP):
            connection.execute(statement, {"server": work.id})
    if work.server.host:
        work.conductor.read_host(work.server.host)
    if moves:
        with work.database.write() as connection:
            connection.execute(update(migrations).where(migrations.c.server_id == work.id, migrations.c.status.not_in(
                ENDED)).values(status="error", updated_at=utc_now()))
