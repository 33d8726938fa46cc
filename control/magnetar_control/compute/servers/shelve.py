# SPDX-License-Identifier: GPL-3.0-or-later
"""shelve and unshelve: servers that are kept without a host. shelveOffload has no arguments (``server_actions.PLAIN``).
"""

from __future__ import annotations

import uuid

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, enqueue, of_server, on_volume
from magnetar_core.actions import rule_of
from magnetar_core.errors import Conflict, InvalidRequest
from magnetar_core.power import OFFLOADED

from .server_create import check_zone
from .server_images import image_fields

#: What the name of the image has after the server's; and how long a name may be.
SUFFIX, LONGEST = "-shelved", 255


@of_server("shelve")
def shelve(caller: Caller, target: Target) -> None:
    """Stop the server, and keep it: its root disk is copied into an image of its project, named after it, of which the
    conductor is told what it is made with. A root disk that is a volume is kept as it is."""
    server = target.row
    if on_volume(server):
        enqueue(caller, target, "shelve", {"image": None})
        return
    id = str(uuid.uuid4())
    name = server.name[:LONGEST - len(SUFFIX)] + SUFFIX
    enqueue(caller, target, "shelve", {"image": id, "fields": {"name": name, **image_fields(caller, server)}},
            shelved_image_id=id)


@of_server("unshelve")
def unshelve(caller: Caller, target: Target, zone: str | None = None, host: str | None = None, *,
             unpin: bool = False) -> None:
    """Have it run again. One that was offloaded gets a host as a new server does: one of *zone*, to which it is pinned
    from then on, or of any with *unpin*; or *host*. Raises ``InvalidRequest``, ``Forbidden``, ``Conflict``."""
    server, columns = target.row, dict[str, str | None]()
    offloaded = server.vm_state == OFFLOADED
    if (zone or host or unpin) and not offloaded:
        raise Conflict(f"An availability zone or a host cannot be given for server {server.id} while its status is "
                       "SHELVED: it is on its host still. The status must be SHELVED_OFFLOADED.")
    if zone:
        check_zone(caller, zone)
    if zone or unpin:
        columns = {"pinned_availability_zone": zone,
                   "availability_zone": zone or caller.settings.default_schedule_zone}
    if host:
        caller.check_policy(f"{rule_of('unshelve')}_to_host", server)
        _check_host(caller, host, zone or (None if unpin else server.pinned_availability_zone))
    enqueue(caller, target, "unshelve", {"offloaded": offloaded, "host": host}, None, None, **columns)


def _check_host(caller: Caller, name: str, zone: str | None) -> None:
    """Whether there is such a host, and it is in *zone*, if one is given."""
    host = caller.cloud.hosts.get(name)
    if host is None:
        raise InvalidRequest(f"Compute host {name} could not be found.")
    if zone and host.zone != zone:
        raise Conflict(f'Host "{name}" is not in the availability zone "{zone}".')
