# SPDX-License-Identifier: GPL-3.0-or-later
"""All operations of the Compute API that are served. ``removed`` has the operations that Nova has removed."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.servers import (
    consoles,
    diagnostics,
    external_events,
    instance_actions,
    interfaces,
    metadata,
    migrations,
    server_actions,
    server_create,
    server_groups,
    server_passwords,
    servers,
    shares,
    tags,
    volume_attachments,
    volumes_boot,
)
from magnetar_core.errors import NotFound

from . import (
    aggregates,
    assisted_volume_snapshots,
    availability_zones,
    bare_metal,
    extensions,
    flavors,
    hosts,
    hypervisors,
    images,
    keypairs,
    limits,
    networks,
    quota_sets,
    security_groups,
    services,
    usage,
    versions,
    volumes,
)
from .app import ROOTS
from .operation import ApiOperation, Call

NOUNS = (servers, server_create, server_actions, flavors, keypairs, volume_attachments, shares, interfaces,
         metadata, tags, instance_actions, migrations,
         aggregates, availability_zones, services, hypervisors, limits, quota_sets,
         server_groups, server_passwords, diagnostics, consoles, usage, extensions, hosts,
         security_groups, external_events, images, networks, volumes,
         bare_metal, volumes_boot, assisted_volume_snapshots)


def _version(call: Call, id: str) -> dict[str, Any]:
    """Return the description of the API version *id* (v2.0 or v2.1): GET /versions/{id}. Raises ``NotFound`` for
    another id."""
    if id not in ROOTS.values():
        raise NotFound(f"There is no version {id[:80]} of the Compute API; there are {', '.join(ROOTS.values())}.")
    return versions.version_document(id, call.request.root)


OPERATIONS = (
    *(operation for noun in NOUNS for operation in noun.OPERATIONS),
    ApiOperation(method="GET", path="/versions/{id}", name="versions.show", use=_version, shown=lambda _call,
                 document: document),
)
