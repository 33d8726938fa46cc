# SPDX-License-Identifier: GPL-3.0-or-later
"""evacuate: rebuild a server of a failed host on another one. docs/reference/evacuations.md says what is kept."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, boots_from_volume, enqueue_action, server_use_case
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.services.volume.access import VolumeAccess
from magnetar_control.store.actions import actions
from magnetar_control.store.actions.actions import password_argument
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.shared_disks import do_hosts_share_disks, shared_disks_of
from magnetar_control.store.servers import migrations
from magnetar_control.store.servers.servers import DELETING, SOFT_DELETING
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NotFound


@server_use_case("evacuate")
def evacuate_server(caller: Caller, target: ServerTarget, host: str | None = None, *, force: bool = False,
                    stopped: bool = False, on_shared_storage: bool | None = None, new_password: bool = False,
                    admin_pass: str | None = None) -> None:
    """Queue the evacuation of the server to *host*, or to a host that the scheduler chooses. *force*: use *host*
    without the scheduler. *stopped*: do not start the server on its new host. *on_shared_storage*: whether the client
    says that the root disk survives on shared storage; a wrong value is refused, ``None`` means not given.
    *admin_pass*: a password for the guest. *new_password*: the request names a password, which cannot be combined with
    *on_shared_storage*. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
    server = target.row
    _check_host(caller, target, host, force=force)
    if on_shared_storage and new_password:
        raise InvalidRequest("admin password can't be changed on existing disk")
    keeps = _keeps_disks(caller, target, host)
    if on_shared_storage is not None and on_shared_storage != keeps and not boots_from_volume(server):
        raise InvalidField("onSharedStorage", "must be true: the disks of the server lie on storage that its hosts "
                           "share" if keeps else "must be false: the root disk of a server that does not boot from a "
                           "volume is recreated of the image")
    if server.task_state in (DELETING, SOFT_DELETING):
        raise Conflict(f"Cannot 'evacuate' instance {server.id} while it is in task_state {server.task_state}")
    check_host_down(caller, server.host)
    check_volumes(caller, target, disks=keeps)
    drawn = str(uuid.uuid4())

    def also(connection: Connection) -> None:
        migrations.insert_migration_row(connection, server, drawn, user_id=caller.context.user_id,
                                        type=migrations.EVACUATION, status="accepted", target=host)
        actions.clear_action_delays(connection, server.id)

    enqueue_action(caller, target, "evacuate", {"migration": drawn, "host": host, "forced": force, "stopped": stopped,
                                                **password_argument(admin_pass)}, also)


def _check_host(caller: Caller, target: ServerTarget, host: str | None, *, force: bool) -> None:
    """Raise ``InvalidRequest`` or ``NotFound`` when the server cannot be evacuated to *host*. With *force*, *host* must
    not be ``None``."""
    if force and not host:
        raise InvalidRequest("Can't force to a non-provided destination")
    if host and caller.cloud.hosts.get(host) is None:
        raise NotFound(f"Compute host {host} not found.")
    if host and host == target.row.host:
        raise InvalidRequest("The target host can't be the same one.")


def check_host_down(caller: Caller, host: str) -> None:
    """Raise ``InvalidRequest`` if the host is up and not forced down."""
    host_view = caller.cloud.hosts.all(fresh=True).get(host)
    if host_view is not None and host_view.up and not host_view.forced_down:
        raise InvalidRequest(f"Compute service of {host} is still in use.")


def _keeps_disks(caller: Caller, target: ServerTarget, host: str | None) -> bool:
    """Return whether the server's disks are on shared storage that *host* can access too. If *host* is ``None``,
    return whether any other host can access the storage."""
    with caller.cloud.store.api.read() as connection:
        source = hosts.fetch_host_row(connection, target.row.host)
        if not shared_disks_of(source, target.row):
            return False
        rows = {row.name: row for row in ([hosts.fetch_host_row(connection, host)] if host else
                                          hosts.fetch_host_rows(connection)) if row is not None}
    return any(do_hosts_share_disks(source, row, target.row) for name, row in rows.items() if name != target.row.host)


def check_volumes(caller: Caller, target: ServerTarget, *, disks: bool) -> None:
    """Raise ``Conflict`` if an evacuation could lose or corrupt data. Data would be lost if only the failed host can
    reach a volume of the server. Data could be corrupted if the failed host is not known to be off, and its guest could
    still write to a volume. *disks*: the new host takes over the server's own disks, to which this guest could write
    too."""
    server = target.row
    access: Mapping[str, VolumeAccess] = caller.cloud.services.volume.homes.access(
        [attachment["volume_id"] for attachment in server.volumes])
    for id, volume in access.items():
        if volume.hosts == {server.host}:
            raise Conflict(f"Volume {id} of the server lies on its host, which is down: the server cannot be evacuated "
                           "with its data. Bring the host up.")
    behind_fence = sorted(id for id, volume in access.items() if volume.needs_fence(server.host))
    HostFencing(caller.cloud.store, caller.settings).check_known_off(server.host, behind_fence, disks=disks,
                                                                     fences_itself=True)
