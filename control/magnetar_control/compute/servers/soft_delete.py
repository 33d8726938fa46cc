# SPDX-License-Identifier: GPL-3.0-or-later
"""Soft delete: deleted servers that stay for a while (``reclaim_instance_interval``), and their restoration."""

from __future__ import annotations

from sqlalchemy import Connection

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.compute.target import ServerTarget, enqueue_action, notify_stopped_actions, server_use_case
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.power import OFFLOADED, RESIZED


def is_restorable(caller: Caller, server: ServerRow) -> bool:
    """Return whether a DELETE request only soft-deletes the server: the setting ``reclaim_instance_interval`` is not 0,
    the server was built, and its host is up. Servers without a host, and servers whose final deletion has begun, are
    removed immediately."""
    if not caller.settings.reclaim_instance_interval or not server.launched_at or not server.host or (
            server.vm_state == OFFLOADED or server.task_state == servers.DELETING):
        return False
    host = caller.cloud.hosts.get(server.host)
    return host is not None and host.up


class _Other(Exception):
    """Raised to roll back a transaction that cancels the server's actions, because the server has changed since it was
    read."""


def soft_delete_server(caller: Caller, target: ServerTarget) -> bool:
    """Soft-delete a server: cancel its actions, confirm a finished resize, and queue the soft deletion. Return
    ``True``, also when a soft deletion is in progress already. Return ``False`` when the server has changed since it
    was read."""
    if target.row.task_state == servers.SOFT_DELETING:
        with target.database.read() as connection:
            server = servers.fetch_server_row(connection, target.row.id)
        return server is not None and server.task_state == servers.SOFT_DELETING
    try:
        with target.database.write() as connection:
            begun = stopped_actions.cancel_server_actions(connection, target.row.id, stays=True)
            server = servers.fetch_server_row(connection, target.row.id, lock=True)
            if server is None or server.deleted_at or not is_restorable(caller, server) or (
                    server.task_state == servers.SOFT_DELETING):
                raise _Other
            notify_stopped_actions(caller, server.id, connection, begun)
            _queue_soft_deletion(caller, connection, server)
            target.database.notify(connection, servers.ACTIONS_CHANGED)
    except _Other:
        return False
    return True


def _queue_soft_deletion(caller: Caller, connection: Connection, server: ServerRow) -> None:
    by = (caller.request_id, caller.context.user_id, caller.project)
    if server.vm_state == RESIZED:
        servers.request_server_action(connection, server, "confirmResize", *by)
    servers.request_server_action(connection, server, "softDelete", *by)


@server_use_case("restore")
def restore_deleted_server(caller: Caller, target: ServerTarget) -> None:
    """Make a soft-deleted server active again. Raises ``Forbidden`` when the project's quota has no room for it,
    because soft-deleted servers do not count against the quota."""
    owner = Owner(target.row.project_id, target.row.user_id)
    bounds = quotas.binding_limits(caller, owner)
    if not bounds:
        enqueue_action(caller, target, "restore")
        return
    with caller.cloud.store.cell0.write() as connection:
        quotas.check_server_quota(caller, target.row.flavor, 1, 1, bounds, connection, owner)
        enqueue_action(caller, target, "restore")
