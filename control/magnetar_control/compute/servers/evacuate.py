# SPDX-License-Identifier: GPL-3.0-or-later
"""evacuate: a server of a host that is down is built anew on another one. docs/evacuate.md says what is kept."""

from __future__ import annotations

import uuid
from contextlib import suppress

import orjson
from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, enqueue, of_server, on_volume
from magnetar_control.store.actions import evacuations
from magnetar_control.store.actions.action_secrets import argument
from magnetar_control.store.servers import migrations
from magnetar_control.store.servers.servers import DELETING, SOFT_DELETING
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NotFound


@of_server("evacuate")
def evacuate(caller: Caller, target: Target, host: str | None = None, *, force: bool = False, stopped: bool = False,
             on_shared_storage: bool = False, new_password: bool = False, admin_pass: str | None = None) -> None:
    """Build it on another host: on *host* where named, with *force* without the scheduler. *stopped*: it is not
    started there. *on_shared_storage*: the root disk outlives the host. *admin_pass*: a password that the guest is
    told; *new_password*: the caller has given it. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
    server = target.row
    _check_host(caller, target, host, force=force)
    if on_shared_storage and new_password:
        raise InvalidRequest("admin password can't be changed on existing disk")
    if on_shared_storage and not on_volume(server):
        raise InvalidField("onSharedStorage", "must be false: the root disk of a server that does not boot from a "
                           "volume is made anew of the image")
    if server.task_state in (DELETING, SOFT_DELETING):
        raise Conflict(f"Cannot 'evacuate' instance {server.id} while it is in task_state {server.task_state}")
    check_down(caller, server.host)
    check_volumes(caller, target)
    drawn = str(uuid.uuid4())

    def also(connection: Connection) -> None:
        migrations.make(connection, server, drawn, user_id=caller.context.user_id, type=migrations.EVACUATION,
                        status="accepted", target=host)
        evacuations.hasten(connection, server.id)

    enqueue(caller, target, "evacuate", {"migration": drawn, "host": host, "forced": force, "stopped": stopped,
                                         **argument(admin_pass)}, also)


def _check_host(caller: Caller, target: Target, host: str | None, *, force: bool) -> None:
    """Whether *host* can be named."""
    if force and not host:
        raise InvalidRequest("Can't force to a non-provided destination")
    if host and caller.cloud.hosts.get(host) is None:
        raise NotFound(f"Compute host {host} not found.")
    if host and host == target.row.host:
        raise InvalidRequest("The target host can't be the same one.")


def check_down(caller: Caller, host: str) -> None:
    """Raises ``InvalidRequest`` while the agent of a host is heard, unless the host is forced down."""
    found = caller.cloud.hosts.all(fresh=True).get(host)
    if found is not None and found.up and not found.forced_down:
        raise InvalidRequest(f"Compute service of {host} is still in use.")


def check_volumes(caller: Caller, target: Target) -> None:
    """Raises ``Conflict`` for a volume that lies on the server's own host."""
    server, volumes = target.row, caller.cloud.services.volume
    for one in orjson.loads(server.volumes):
        place = None
        with suppress(NotFound):  # it is gone: the flow says so
            place = volumes.where(one["volume_id"])
        if place == server.host:
            raise Conflict(f"Volume {one['volume_id']} of the server lies on its host, which is down: the server "
                           "cannot be evacuated with its data. Bring the host up.")
