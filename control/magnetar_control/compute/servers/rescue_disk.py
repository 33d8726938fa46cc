# SPDX-License-Identifier: GPL-3.0-or-later
"""The claim of a rescue disk: while a server is rescued, its host has that much less disk for others.

The API raises the server's claim before the action is queued, and the conductor lowers it after the unrescue. A claim
that is left over, because something else came between, is lowered by the audit: the server's row says what it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target
from magnetar_control.scheduler.request_spec import held_by, sizes
from magnetar_control.store.claims.rescue_claims import set_disk
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, MagnetarError

GIB = 2**30


@contextlib.contextmanager
def claimed(caller: Caller, target: Target, image_id: str) -> Iterator[int]:
    """Have the server hold the disk of a rescue with this image beside its own disks; give its GiB, rounded up. Where
    the action is refused within, the server holds again what its row says. Raises ``Conflict`` where the server's host
    has less left."""
    size = _claim(caller, target, image_id)
    try:
        yield size
    except MagnetarError:
        with target.database.read() as connection:
            row = servers.row(connection, target.row.id)
        if size and row is not None and row.host:
            with caller.cloud.store.api.write() as connection:
                set_disk(connection, row.id, row.host, held_by(row)[0].disk_gb)
        raise


def _claim(caller: Caller, target: Target, image_id: str) -> int:
    server = target.row
    size = disk_gb(caller, target, image_id)
    if size and server.host:
        wanted = held_by(server)[0].disk_gb + size
        with caller.cloud.store.api.write() as connection:
            done = set_disk(connection, server.id, server.host, wanted)
        if not done:
            raise Conflict(f"Instance {server.id} cannot be rescued: the disk of image {image_id} takes {size} GiB, "
                           "and the server's host has less disk left. Use an image with a smaller disk, or a CD "
                           "(disk_format iso), which takes none.")
    return size


def disk_gb(caller: Caller, target: Target, image_id: str) -> int:
    """Return the GiB to which a rescue disk of this image may grow. A CD is only read, and an image that is not there
    any more is taken for as large as the root disk that was made of it."""
    image = caller.cloud.services.image.show(caller.context, image_id)
    if image is None:
        return sizes(orjson.loads(target.row.flavor))["disk"]
    if image.get("disk_format") == "iso":
        return 0
    return -(-max(int(image.get("size") or 0), int(image.get("virtual_size") or 0)) // GIB)
