# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``delete``: remove the server from its host, networks, volumes and claims. Its row stays, marked
deleted."""

from __future__ import annotations

import logging

from sqlalchemy import String, bindparam, delete, select, update

from magnetar_control.store import allocations
from magnetar_control.store.database import now
from magnetar_control.store.tables import migrations, server_group_members, server_mappings
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.power import DELETED

from . import block_devices, migration_halves
from .retry import retry_or_fail
from .work import HostDown, Work

log = logging.getLogger(__name__)
#: Statuses of migrations that have ended.
ENDED = ("completed", "confirmed", "reverted", "error", "cancelled", "failed")
#: Statements that each delete needs, made once.
_SERVER = bindparam("server", type_=String)
_MOVES = select(migrations.c.uuid).where(migrations.c.server_id == _SERVER)
_LEAVE = delete(server_group_members).where(server_group_members.c.server_id == _SERVER)
_UNMAP = update(server_mappings).where(server_mappings.c.server_id == _SERVER).values(deleted=True)


def delete_server(work: Work) -> None:
    """``delete``. A host that is down does not block it: what is left there is removed when the host is back."""
    server = work.server
    if server.deleted_at:
        work.done()
        return
    try:
        with work.event():
            names = _hosts_of(work)
            if len(names) > 1:
                migration_halves.recall(work, names)
            for host in names:
                _delete_on(work, host)
            block_devices.release(work)
            work.conductor.services.network.release(work.id)
            _release_claims(work)
    except HostDown as error:
        retry_or_fail(work, error, vm_state="error")
        return
    except MagnetarError as error:
        work.error(error)
        return
    moment = now()
    work.done(deleted_at=moment, terminated_at=server.terminated_at or moment, vm_state=DELETED, power_state=0,
              host=server.host, volumes="[]", addresses="{}", interfaces="[]")


def _hosts_of(work: Work) -> list[str]:
    """Hosts that may have parts of the server: its own, and those of migrations that have not ended."""
    with work.conductor.store.api.read() as connection:
        held = [row["host"] for row in allocations.held(connection, work.id)]
    return list(dict.fromkeys([name for name in (work.server.host, *held) if name]))


def _delete_on(work: Work, host: str) -> None:
    try:
        with work.client(host) as client:
            client.delete("server", work.id, timeout=work.conductor.settings.action_timeout)
    except NotFound:
        pass
    except Conflict as error:  # it is moving to or from a host that is down: removed when that is back
        log.warning("server %s stays on %s for now: %s", work.id, host, error.message)
    except HostDown:
        if work.conductor.is_up(host):
            raise


def _release_claims(work: Work) -> None:
    """Release its claims, remove it from its server group and mapping, and end its migrations."""
    with work.database.read() as connection:
        moves = connection.execute(_MOVES, {"server": work.id}).scalars().all()
    with work.conductor.store.api.write() as connection:
        for consumer in (work.id, *moves):
            allocations.release(connection, consumer)
        for statement in (_LEAVE, _UNMAP):
            connection.execute(statement, {"server": work.id})
    if work.server.host:
        work.conductor.read_host(work.server.host)
    if not moves:
        return
    with work.database.write() as connection:
        connection.execute(update(migrations).where(
            migrations.c.server_id == work.id, migrations.c.status.not_in(ENDED)).values(
            status="error", updated_at=now()))
