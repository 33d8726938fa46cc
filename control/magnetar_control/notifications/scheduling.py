# SPDX-License-Identifier: GPL-3.0-or-later
"""Nova's versioned payloads of the scheduler and of failed tasks, made from a server's row, without side effects.

Source: Nova's RequestSpecPayload 1.1 and ComputeTaskPayload 1.0. Fields that are stored nowhere are null: the server
group (``scheduler_hints`` has its uuid), NUMA cells and PCI devices (both follow from the flavor and the ports).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document

from .payloads import ActionFault, Row, flavor_payload, versioned_object


def request_spec_payload(row: ServerRow, args: Row) -> Document:
    """Return the payload of a scheduler request for the server of *row*: Nova's ``RequestSpecPayload``. *args*: the
    arguments of the action: the new ``flavor`` of a resize, the requested ``host``, ``forced`` (skip the scheduler for
    this host), and ``tried`` (hosts that have refused)."""
    request, hints = row.request, row.hints
    host = args.get("host") or request.get("host") or request.get("hypervisor_hostname")
    forced, tried = bool(args.get("forced")) and host, list(args.get("tried") or ())
    return versioned_object(
        "RequestSpecPayload", "1.1", instance_uuid=row.id, project_id=row.project_id, user_id=row.user_id,
        availability_zone=row.pinned_availability_zone or row.availability_zone,
        flavor=flavor_payload(args.get("flavor") or row.flavor), image=_image(row), num_instances=1,
        numa_topology=None, pci_requests=None, instance_group=None, force_hosts=forced or None, force_nodes=None,
        ignore_hosts=tried or None,
        requested_destination=None if forced or not host else versioned_object(
            "DestinationPayload", "1.0", host=host, node=None, cell=None, aggregates=None),
        retry=versioned_object("SchedulerRetriesPayload", "1.0", num_attempts=len(tried), hosts=tried) if tried
        else None,
        scheduler_hints={name: [str(hint) for hint in (value if isinstance(value, list) else [value])]
                         for name, value in hints.items()},
        security_groups=[group.get("id") or group["name"] for group in row.security_groups])


def _image(row: ServerRow) -> Document | None:
    """Return the payload of the image in the server's row; ``None`` if the server has no image."""
    image: Mapping[str, Any] = row.image
    if not row.image_id and not image:
        return None
    return versioned_object(
        "ImageMetaPayload", "1.0", id=row.image_id, properties=versioned_object(
            "ImageMetaPropsPayload", "1.6", **{str(name): value for name, value in (
                image.get("properties") or {}).items()}),
        **{name: image.get(name) for name in (
            "checksum", "container_format", "created_at", "direct_url", "disk_format", "min_disk", "min_ram", "name",
            "owner", "protected", "size", "status", "tags", "updated_at", "virtual_size", "visibility")})


def compute_task_payload(row: ServerRow, args: Row, fault: ActionFault) -> Document:
    """Return the payload of a task that could not begin because no host was found: Nova's ``ComputeTaskPayload``.
    *args*: the arguments of the action."""
    return versioned_object("ComputeTaskPayload", "1.0", instance_uuid=row.id,
                            request_spec=request_spec_payload(row, args), state=row.vm_state, reason=fault.payload())
