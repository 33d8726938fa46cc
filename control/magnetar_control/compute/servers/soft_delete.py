# SPDX-License-Identifier: GPL-3.0-or-later
"""Soft delete: which deleted servers stay for a while (``reclaim_instance_interval``), and how they come back."""

from __future__ import annotations

import orjson
from sqlalchemy import Connection

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.compute.target import Target, enqueue, of_server, tell_stopped
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.servers import servers
from magnetar_core.power import OFFLOADED, RESIZED


def restorable(caller: Caller, server: servers.Found) -> bool:
    """Whether a DELETE leaves a server that can be restored: the settings say so, it has run, and its host is up. One
    that is on no host, or that is being deleted for good already, goes at once."""
    if not caller.settings.reclaim_instance_interval or not server.launched_at or not server.host or (
            server.vm_state == OFFLOADED or server.task_state == servers.DELETING):
        return False
    host = caller.cloud.hosts.get(server.host)
    return host is not None and host.up


class _Other(Exception):
    """The server is not what it was read as; what was cancelled is not."""


def ask(caller: Caller, target: Target) -> bool:
    """Have a server soft-deleted: what is done to it is cancelled, and a resize that waits is confirmed before. Nothing
    is asked where it is being soft-deleted already. Returns ``False`` where it has changed since it was read."""
    if target.row.task_state == servers.SOFT_DELETING:
        with target.database.read() as connection:
            server = servers.row(connection, target.row.id)
        return server is not None and server.task_state == servers.SOFT_DELETING
    try:
        with target.database.write() as connection:
            begun = stopped_actions.cancel(connection, target.row.id, stays=True)
            server = servers.row(connection, target.row.id, lock=True)
            if server is None or server.deleted_at or not restorable(caller, server) or (
                    server.task_state == servers.SOFT_DELETING):
                raise _Other
            tell_stopped(caller, server.id, connection, begun)
            _ask(caller, connection, server)
            target.database.ring(connection, servers.ACTIONS_BELL)
    except _Other:
        return False
    return True


def _ask(caller: Caller, connection: Connection, server: servers.Found) -> None:
    by = (caller.request_id, caller.context.user_id, caller.project)
    if server.vm_state == RESIZED:
        servers.ask(connection, server, "confirmResize", *by)
    servers.ask(connection, server, "softDelete", *by)


@of_server("restore")
def restore(caller: Caller, target: Target) -> None:
    """Have a soft-deleted server be active again. Raises ``Forbidden`` where the quota of its project has no room for
    it: soft-deleted servers do not count."""
    owner = Owner(target.row.project_id, target.row.user_id)
    bounds = quotas.bounds(caller, owner)
    if not bounds:
        enqueue(caller, target, "restore")
        return
    with caller.cloud.store.cell0.write() as connection:
        quotas.check_servers(caller, orjson.loads(target.row.flavor), 1, 1, bounds, connection, owner)
        enqueue(caller, target, "restore")
