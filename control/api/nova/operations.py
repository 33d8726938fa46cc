# SPDX-License-Identifier: GPL-3.0-or-later
"""All operations of the Compute API that are served. What the conformance table has besides answers 404."""

from __future__ import annotations

from magnetar_control.api.nova import (
    addresses,
    aggregates,
    availability_zones,
    diagnostics,
    flavor_access,
    flavor_extra_specs,
    flavors,
    hypervisors,
    instance_actions,
    interfaces,
    keypairs,
    limits,
    metadata,
    migrations,
    quota_sets,
    server_actions,
    server_create,
    server_groups,
    servers,
    services,
    tags,
    version_documents,
    volume_attachments,
)

NOUNS = (servers, server_create, server_actions, flavors, flavor_access, flavor_extra_specs, keypairs,
         volume_attachments, interfaces, metadata, tags, addresses, instance_actions, migrations, aggregates,
         availability_zones, services, hypervisors, limits, quota_sets, server_groups, diagnostics,
         version_documents)
OPERATIONS = tuple(operation for noun in NOUNS for operation in noun.OPERATIONS)
