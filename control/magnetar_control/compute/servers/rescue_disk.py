# SPDX-License-Identifier: GPL-3.0-or-later
"""The claim of a rescue disk: a rescued server claims the size of this disk in addition. The API raises the server's
claim before the action is queued, and the conductor lowers it after the unrescue. After an interruption the audit
corrects the claim: the server's row says what the server holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget
from magnetar_control.scheduler.request_spec import amounts_held_by, flavor_disk_sizes
from magnetar_control.store.claims.allocations import set_claimed_disk
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, MagnetarError

GIB = 2**30


@contextlib.contextmanager
def claimed_rescue_disk(caller: Caller, target: ServerTarget, image_id: str) -> Iterator[int]:
    """Claim disk space on the server's host for a rescue disk from the image *image_id*, in addition to the server's
    own disks. Yield the size of the rescue disk in GiB, rounded up. If the body of the ``with`` statement raises,
    reduce the claim to the server's own disks again. Raises ``Conflict`` when the host has too little disk space."""
    size = _claim_rescue_disk(caller, target, image_id)
    try:
        yield size
    except MagnetarError:
        with target.database.read() as connection:
            row = servers.fetch_server_row(connection, target.row.id)
        if size and row is not None and row.host:
            with caller.cloud.store.api.write() as connection:
                set_claimed_disk(connection, row.id, row.host, amounts_held_by(row)[0].disk_gb)
        raise


def _claim_rescue_disk(caller: Caller, target: ServerTarget, image_id: str) -> int:
    server = target.row
    size = rescue_disk_gb(caller, target, image_id)
    if size and server.host:
        total_gb = amounts_held_by(server)[0].disk_gb + size
        with caller.cloud.store.api.write() as connection:
            done = set_claimed_disk(connection, server.id, server.host, total_gb)
        if not done:
            raise Conflict(f"Instance {server.id} cannot be rescued: the disk of image {image_id} takes {size} GiB, "
                           "and the server's host has less disk left. Use an image with a smaller disk, or a CD "
                           "(disk_format iso), which takes none.")
    return size


def rescue_disk_gb(caller: Caller, target: ServerTarget, image_id: str) -> int:
    """Return the largest possible size, in GiB, of a rescue disk from the image *image_id*: 0 for a CD image, because
    it is read-only. If the image no longer exists, return the size of the flavor's root disk."""
    image = caller.cloud.services.image.show(caller.context, image_id)
    if image is None:
        return flavor_disk_sizes(target.row.flavor)["disk"]
    if image.get("disk_format") == "iso":
        return 0
    return -(-max(int(image.get("size") or 0), int(image.get("virtual_size") or 0)) // GIB)
