# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that name the filters of lists (Block Storage API v3, "Resource filters", 3.33)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar_control.api.query import check_known
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document

from .attachments import AttachmentRoutes
from .limits import MESSAGE_FILTERS
from .pools import POOL_FILTERS
from .snapshots import SnapshotRoutes
from .types import TYPE_FILTERS
from .volumes import VolumeRoutes

FILTERS: Mapping[str, Sequence[str]] = {
    "volume": (*VolumeRoutes.filters, "name~"), "snapshot": (*SnapshotRoutes.filters, "name~"),
    "attachment": AttachmentRoutes.filters, "message": MESSAGE_FILTERS, "pool": POOL_FILTERS,
    "volume_type": TYPE_FILTERS}


def filter_routes() -> list[Guarded]:
    """Return the routes of Cinder's resource filters, relative to ``/v3``. They list the filters of each resource type.
    """
    return [guarded_route("GET resource_filters", _filters)]


def _filters(request: Request) -> Document:
    check_known(request, ("resource",))
    resource = dict(request.query).get("resource")
    return {"resource_filters": [{"resource": name, "filters": [*filters]} for name, filters in FILTERS.items()
                                 if resource in (None, name)]}
