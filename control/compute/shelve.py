# SPDX-License-Identifier: GPL-3.0-or-later
"""shelve and unshelve: servers that are kept without a host. shelveOffload has no arguments (``server_actions.PLAIN``).
"""

from __future__ import annotations

import uuid

from magnetar_control.services import Context
from magnetar_core.actions import rule_of
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError
from magnetar_core.power import OFFLOADED

from .caller import Caller
from .server_actions import make_image, on_volume
from .server_create import check_zone
from .target import Target, enqueue, of_server

#: What the name of the image has after the server's; and how long a name may be.
SUFFIX, LONGEST = "-shelved", 255
#: Roles with which the image is made.
ROLES = frozenset(("member", "reader"))


@of_server("shelve")
def shelve(caller: Caller, target: Target) -> None:
    """Stop the server, and keep it. Its root disk is copied into an image of its project, named after it; the API makes
    it now, so that a quota of images is heard of at once. A root disk that is a volume is kept as it is."""
    server = target.row
    if on_volume(server):
        enqueue(caller, target, "shelve", {"image": None})
        return
    owner, images = Context(server.user_id, server.project_id, ROLES), caller.cloud.services.image
    image = make_image(caller, server, str(uuid.uuid4()), server.name[:LONGEST - len(SUFFIX)] + SUFFIX, owner=owner)
    try:
        enqueue(caller, target, "shelve", {"image": image}, shelved_image_id=image)
    except MagnetarError:
        images.delete(owner, image)
        raise


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
