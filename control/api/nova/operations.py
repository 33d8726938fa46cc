# SPDX-License-Identifier: GPL-3.0-or-later
"""All operations of the Compute API that are served. What Nova has removed is in
``removed``."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova import (
    aggregates,
    assisted_volume_snapshots,
    availability_zones,
    bare_metal,
    consoles,
    diagnostics,
    extensions,
    external_events,
    flavors,
    hosts,
    hypervisors,
    images,
    instance_actions,
    interfaces,
    keypairs,
    limits,
    metadata,
    migrations,
    networks,
    quota_sets,
    security_groups,
    server_actions,
    server_create,
    server_groups,
    server_passwords,
    servers,
    services,
    tags,
    usage,
    versions,
    volume_attachments,
    volumes,
    volumes_boot,
)
from magnetar_control.api.nova.app import ROOTS
from magnetar_control.api.nova.operation import ApiOperation, Call
from magnetar_core.errors import NotFound

NOUNS = (servers, server_create, server_actions, flavors, keypairs, volume_attachments, interfaces, metadata, tags,
         instance_actions, migrations, aggregates, availability_zones, services, hypervisors, limits, quota_sets,
         server_groups, server_passwords, diagnostics, consoles, usage, extensions, hosts,
         security_groups, external_events, images, networks, volumes,
         bare_metal, volumes_boot, assisted_volume_snapshots)


def _version(call: Call, id: str) -> dict[str, Any]:
    """The version documents once more, below a version: v2.0 or v2.1."""
    if id not in ROOTS.values():
        raise NotFound(f"There is no version {id[:80]} of the Compute API; there are {', '.join(ROOTS.values())}.")
    return versions.one(id, call.request.root)


OPERATIONS = (
    *(operation for noun in NOUNS for operation in noun.OPERATIONS),
    ApiOperation(method="GET", path="/versions/{id}", name="versions.show", use=_version, shown=lambda _call, one: one),
)
