# SPDX-License-Identifier: GPL-3.0-or-later
"""What notifications of the scheduler and of failed tasks say, pure: Nova's versioned payloads, made of a server's row.

Source: Nova's RequestSpecPayload 1.1 and ComputeTaskPayload 1.0. What is kept nowhere else is null: the server group
(``scheduler_hints`` has its uuid), NUMA cells and PCI devices (both follow from the flavor and the ports).
"""

from __future__ import annotations

from typing import Any

import orjson

from .payloads import ActionFault, Document, Row, flavor, wrapped


def request_spec(row: Row, args: Row) -> Document:
    """What the scheduler is asked for. *args*: of the action: the ``flavor`` of a resize, a ``host`` that is named,
    whether it is ``forced``, and the hosts that were ``tried``."""
    request, hints = orjson.loads(row["request"]), orjson.loads(row["hints"])
    host = args.get("host") or request.get("host") or request.get("hypervisor_hostname")
    forced, tried = bool(args.get("forced")) and host, list(args.get("tried") or ())
    return wrapped(
        "RequestSpecPayload", "1.1", instance_uuid=row["id"], project_id=row["project_id"], user_id=row["user_id"],
        availability_zone=row["pinned_availability_zone"] or row["availability_zone"],
        flavor=flavor(args.get("flavor") or orjson.loads(row["flavor"])), image=_image(row), num_instances=1,
        numa_topology=None, pci_requests=None, instance_group=None, force_hosts=forced or None, force_nodes=None,
        ignore_hosts=tried or None,
        requested_destination=None if forced or not host else wrapped(
            "DestinationPayload", "1.0", host=host, node=None, cell=None, aggregates=None),
        retry=wrapped("SchedulerRetriesPayload", "1.0", num_attempts=len(tried), hosts=tried) if tried else None,
        scheduler_hints={name: [str(one) for one in (value if isinstance(value, list) else [value])]
                         for name, value in hints.items()},
        security_groups=[one.get("id") or one["name"] for one in orjson.loads(row["security_groups"])])


def _image(row: Row) -> Document | None:
    """What a server keeps of its image."""
    kept: dict[str, Any] = orjson.loads(row["image"])
    if not row["image_id"] and not kept:
        return None
    return wrapped(
        "ImageMetaPayload", "1.0", id=row["image_id"], properties=wrapped(
            "ImageMetaPropsPayload", "1.6", **{str(name): value for name, value in (
                kept.get("properties") or {}).items()}),
        **{name: kept.get(name) for name in (
            "checksum", "container_format", "created_at", "direct_url", "disk_format", "min_disk", "min_ram", "name",
            "owner", "protected", "size", "status", "tags", "updated_at", "virtual_size", "visibility")})


def compute_task(row: Row, args: Row, fault: ActionFault) -> Document:
    """What could not be begun, since no host was found."""
    return wrapped("ComputeTaskPayload", "1.0", instance_uuid=row["id"], request_spec=request_spec(row, args),
                   state=row["vm_state"], reason=fault.payload())
