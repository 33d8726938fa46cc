# SPDX-License-Identifier: GPL-3.0-or-later
"""shelve and unshelve: servers that are kept without a host. For shelveOffload see ``server_actions.PLAIN``."""

from __future__ import annotations

import uuid

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, boots_from_volume, enqueue_action, server_use_case
from magnetar_core.actions import policy_rule_of_action
from magnetar_core.errors import Conflict, InvalidRequest
from magnetar_core.power import OFFLOADED

from .server_create import check_zone_exists
from .server_images import image_fields

#: The suffix of the image's name after the server's, and the maximum length of a name.
SUFFIX, LONGEST = "-shelved", 255


@server_use_case("shelve")
def shelve_server(caller: Caller, target: ServerTarget) -> None:
    """Queue an action that stops the guest and uploads its root disk to a new image of the server's project. If the
    root disk is a volume, no image is created."""
    server = target.row
    if boots_from_volume(server):
        enqueue_action(caller, target, "shelve", {"image": None})
        return
    id = str(uuid.uuid4())
    name = server.name[:LONGEST - len(SUFFIX)] + SUFFIX
    enqueue_action(caller, target, "shelve", {"image": id, "fields": {"name": name, **image_fields(caller, server)}},
                   shelved_image_id=id)


@server_use_case("unshelve")
def unshelve_server(caller: Caller, target: ServerTarget, zone: str | None = None, host: str | None = None, *,
                    unpin: bool = False) -> None:
    """Queue the start of a shelved server. The scheduler chooses a host for an offloaded server. *zone*: choose a host
    in this availability zone, and pin the server to the zone. *unpin*: remove the pin to a zone. *host*: use this host.
    Raises ``InvalidRequest``, ``Forbidden``, ``Conflict``."""
    server, columns = target.row, dict[str, str | None]()
    offloaded = server.vm_state == OFFLOADED
    if (zone or host or unpin) and not offloaded:
        raise Conflict(f"An availability zone or a host cannot be given for server {server.id} while its status is "
                       "SHELVED: it is on its host still. The status must be SHELVED_OFFLOADED.")
    if zone:
        check_zone_exists(caller, zone)
    if zone or unpin:
        columns = {"pinned_availability_zone": zone,
                   "availability_zone": zone or caller.settings.default_schedule_zone}
    if host:
        caller.check_policy(f"{policy_rule_of_action('unshelve')}_to_host", server)
        _check_host(caller, host, zone or (None if unpin else server.pinned_availability_zone))
    enqueue_action(caller, target, "unshelve", {"offloaded": offloaded, "host": host}, None, None, **columns)


def _check_host(caller: Caller, name: str, zone: str | None) -> None:
    """Raise ``InvalidRequest`` when the host *name* does not exist, ``Conflict`` when the host is not in the
    availability zone *zone* (``None``: any zone)."""
    host = caller.cloud.hosts.get(name)
    if host is None:
        raise InvalidRequest(f"Compute host {name} could not be found.")
    if zone and host.zone != zone:
        raise Conflict(f'Host "{name}" is not in the availability zone "{zone}".')
