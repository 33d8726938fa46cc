# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of an image read directly from Ceph, if the image service stores it there (Nova's enable_rbd_download).
The content then bypasses the control plane. After any failure the image waits for its upload, as it does without
Ceph."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.storage import CephImage
from magnetar_agent.settings import CEPH_NAME
from magnetar_core.errors import Cancelled, InvalidField, MagnetarError, NoSpace, TooLarge

from . import importing
from .store import check_length

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

#: The key of a source that waits for its content, and may read it from this location.
FIELD = "location"
#: Glance's location of an image in Ceph.
_LOCATION = re.compile(f"rbd://(?P<fsid>[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})/(?P<pool>{CEPH_NAME})/"
                       f"(?P<name>{CEPH_NAME})/(?P<snapshot>{CEPH_NAME})")


def ceph_source(host: LocalHost, want: Fields) -> dict[str, Any]:
    """Return the image's field ``source`` as stored: ``{upload: true}``, which permits clients to upload the content.
    If this host may read from Ceph, and *want* (the image's requested fields) has a checksum to verify the content, the
    field also has the location in Ceph."""
    location = want["source"].get(FIELD)
    direct = location and host.settings.enable_rbd_download and want.get("checksum")
    return {**importing.UPLOAD, FIELD: location} if direct else dict(importing.UPLOAD)


def take_ceph_image(task: Task, location: str) -> None:
    """Store the image's content, read from its *location* in Ceph (``rbd://FSID/POOL/IMAGE/SNAPSHOT``). If Ceph cannot
    be read, make the image wait for an upload instead."""
    host, document = task.host, task.document
    try:
        with host.hypervisor.export_image(_image(host, document.id, location)) as (size, pieces):
            check_length(size, host.settings.image_max_bytes)
            with importing.image_store(host).part(document.id, size) as part:
                advance = partial(importing.advance_bytes, task.operation, size, "download")
                part.write_chunks(pieces, size, host.settings.image_max_bytes, advance)
                importing.commit_content(host, document, part, importing.UPLOAD, None, task.operation)
    except (Cancelled, NoSpace, TooLarge):
        raise
    except MagnetarError as error:
        log.warning("image %s comes by HTTP, not out of Ceph: %s", document.name, error.message)
        document.want["source"] = dict(importing.UPLOAD)


def _image(host: LocalHost, id: str, location: str) -> CephImage:
    """Return the RBD snapshot at *location* (``rbd://FSID/POOL/IMAGE/SNAPSHOT``). Raises ``InvalidField`` unless it
    belongs to the image *id* and is in the pool of the settings: a user with write access to the image service could
    otherwise refer to other users' data."""
    location_match, settings = _LOCATION.fullmatch(location), host.settings
    if location_match is None:
        raise InvalidField("source.location", "must be rbd://FSID/POOL/IMAGE/SNAPSHOT", location[:200])
    if location_match["pool"] != settings.rbd_pool:
        raise InvalidField("source.location", f"must be in the pool {settings.rbd_pool!r} of the agent's setting "
                                              "rbd_pool", location)
    if location_match["name"] != id:
        raise InvalidField("source.location", f"must be of an RBD image with the image's own uuid {id}, as Glance "
                                              "calls it", location)
    return CephImage(settings.rbd_ceph_conf, str(settings.rbd_user), settings.rbd_connect_timeout,
                     **location_match.groupdict())
