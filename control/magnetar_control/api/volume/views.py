# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes, snapshots and attachments as Cinder shows them, at each microversion (API reference, Block Storage v3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.services.volume.type_specs import BACKEND_NAME
from magnetar_control.services.volume.types import SHOWN_TO_ALL, VolumeType
from magnetar_control.web import Request
from magnetar_core.document import Document

Row = Mapping[Any, Any]


def resource_href(request: Request, resource_type: str, id: str) -> str:
    """Return the URL of the resource *id*. It contains the project id if the URL of the request does. *resource_type*:
    the collection in the URL, such as volumes."""
    project = request.extra.get("project")
    return f"{request.base}/v3/{project + '/' if project else ''}{resource_type}/{id}"


def resource_links(request: Request, resource_type: str, id: str) -> list[Document]:
    url = resource_href(request, resource_type, id)
    return [{"rel": "self", "href": url}, {"rel": "bookmark", "href": url.replace("/v3/", "/", 1)}]


def brief_volume_view(request: Request, row: Row) -> Document:
    """Return the volume *row* in Cinder's format, for a list without details: id, name and links."""
    return {"id": row["id"], "name": row["name"], "links": resource_links(request, "volumes", row["id"])}


def volume_view(request: Request, row: Row, extended: bool = True) -> Document:
    """Return the volume *row* in Cinder's format, with all fields. *extended*: include the fields of Cinder's
    extensions, which the answers of show and list contain, but not the answers of create and update."""
    shown = {
        **{name: row[name] for name in ("id", "name", "description", "size", "created_at", "updated_at", "snapshot_id",
                                        "source_volid", "multiattach", "user_id", "volume_type", "availability_zone")},
        "status": row["status"], "bootable": "true" if row["bootable"] else "false",
        "encrypted": (hidden := row["encryption_key_id"] is not None),
        "metadata": {**row["metadata"], **({"readonly": "True"} if row["readonly"] else {})},
        "links": resource_links(request, "volumes", row["id"]), "attachments": [
            _attachment_view(request, attachment) for attachment in row["attachments"]
            if attachment["status"] in ("attached", "detaching")],
        "consistencygroup_id": None, "replication_status": None}
    admin, shared = request.context.is_admin, None if request.extra["version"] >= (3, 69) else False
    if admin:
        shown["migration_status"] = row["migration_status"]
    if extended:
        shown |= _extensions_of_volume(row, admin)
    return shown | versioned_fields(
        request, (13, True, "group_id", None), (21, admin, "provider_id", None), (48, True, "service_uuid", None),
        (48, True, "shared_targets", shared), (61, admin, "cluster_name", None),
        (63, True, "volume_type_id", row["volume_type_id"]),
        (64, hidden, "encryption_key_id", row["encryption_key_id"]), (65, True, "consumes_quota", True))


def _extensions_of_volume(row: Row, admin: bool) -> Document:
    """Return the fields of Cinder's extensions for the volume *row*. *admin*: include fields for administrators."""
    fields = {"os-vol-tenant-attr:tenant_id": row["project_id"]}
    if row["volume_image_metadata"]:
        fields["volume_image_metadata"] = row["volume_image_metadata"]
    if admin:
        host = f"{row['host']}@{BACKEND_NAME}#{row['pool']}" if row["host"] else None
        fields |= {"os-vol-host-attr:host": host, "os-vol-mig-status-attr:migstat": row["migration_status"],
                   "os-vol-mig-status-attr:name_id": None}
    return fields


def versioned_fields(request: Request, *rows: tuple[int, bool, str, Any]) -> Document:
    """Return a dict with those fields that exist at the requested microversion and whose condition is true. *rows*:
    (first minor version, condition, name, value) tuples."""
    return {name: value for since, holds, name, value in rows if holds and request.extra["version"] >= (3, since)}


def _attachment_view(request: Request, row: Row) -> Document:
    return {"id": row["volume_id"], "attachment_id": row["id"], "volume_id": row["volume_id"],
            "server_id": row["server_id"], "host_name": _host(request, row["host"]), "device": row["device"],
            "attached_at": row["attached_at"]}


def _host(request: Request, name: str | None) -> str | None:
    return name if request.context.knows_hosts else None


def snapshot_view(request: Request, row: Row, detailed: bool = True, extended: bool = True) -> Document:
    """Return the snapshot *row* in Cinder's format. *detailed*: with the fields of the detailed list, otherwise with
    those of the short list. *extended*: include the fields of Cinder's extensions."""
    names = ("id", "name", "description", "volume_id", "status", "size", "created_at", "updated_at")
    shown = {**{name: row[name] for name in names}, "metadata": row["metadata"]}
    if detailed and extended:
        shown |= {"os-extended-snapshot-attributes:project_id": row["project_id"],
                  "os-extended-snapshot-attributes:progress": "100%" if row["status"] == "available" else "0%"}
    return shown | versioned_fields(request, (14, detailed, "group_snapshot_id", None),
                                    (41, True, "user_id", row["user_id"]),
                          (65, True, "consumes_quota", True))


def volume_attachment_view(request: Request, row: Row, detailed: bool = True) -> Document:
    """Return the attachment *row* in Cinder's format. *detailed*: with the fields of the detailed list, otherwise with
    those of the short list. ``connection_info`` contains the volume and its host, because the agent that connects the
    volume needs both."""
    shown: Document = {"id": row["id"], "volume_id": row["volume_id"], "instance": row["server_id"],
                       "status": row["status"]}
    if detailed:
        ready = row["connector"] is not None or row["status"] == "attached"
        shown |= {"attached_at": row["attached_at"] or "", "detached_at": "", "attach_mode": row["mode"],
                  "connection_info": {"driver_volume_type": "magnetar", "volume_id": row["volume_id"],
                                      "attachment_id": row["id"], "host": _host(request, row["volume_host"]),
                                      "access_mode": row["mode"]} if ready else {}}
    return shown


def brief_backup_view(request: Request, row: Row) -> Document:
    """Return the backup *row* in Cinder's format, for a list without details and for the answers of create and update.
    """
    return {"id": row["id"], "name": row["name"], "links": resource_links(request, "backups", row["id"])}


def backup_view(request: Request, row: Row, zone: str) -> Document:
    """Return the backup *row* in Cinder's format, with all fields. *zone*: the availability zone of the volume service.
    """
    names = ("status", "size", "object_count", "container", "created_at", "updated_at", "description", "volume_id",
             "snapshot_id", "data_timestamp", "has_dependent_backups")
    return {**brief_backup_view(request, row), **{name: row[name] for name in names}, "availability_zone": zone,
            "fail_reason": row["fault"], "is_incremental": row["parent_id"] is not None,
            **versioned_fields(
                request, (18, request.context.is_admin, "os-backup-project-attr:project_id", row["project_id"]),
                (43, True, "metadata", row["metadata"]), (56, True, "user_id", row["user_id"]))}


def brief_transfer_view(request: Request, row: Row) -> Document:
    """Return the transfer *row* in Cinder's format, for a list without details and for the answer of accept."""
    return {**{name: row[name] for name in ("id", "volume_id", "name")},
            "links": resource_links(request, "os-volume-transfer", row["id"])}


def transfer_view(request: Request, row: Row, key: bool = False) -> Document:
    """Return the open transfer *row* in Cinder's format, with all fields. *key*: include the auth_key, as in the answer
    of create."""
    return {**brief_transfer_view(request, row), "created_at": row["created_at"],
            **({"auth_key": row["auth_key"]} if key else {}),
            **versioned_fields(request, (55, True, "no_snapshots", row["no_snapshots"]),
                               (57, True, "source_project_id", row["project_id"]),
                               (57, True, "destination_project_id", None), (57, True, "accepted", False))}


def volume_type_view(request: Request, volume_type: VolumeType, answer: str = "show") -> Document:
    """Return *volume_type* in Cinder's format. *answer*: show, create or update; their fields differ. Callers who are
    not administrators see only the extra specs that are meant for users."""
    admin = request.context.is_admin
    access = {} if answer == "update" else {"os-volume-type-access:is_public": volume_type.is_public}
    return {"id": volume_type.id, "name": volume_type.name, "is_public": volume_type.is_public,
            "description": volume_type.description, **access, **({"qos_specs_id": None} if answer == "show" else {}),
            "extra_specs": {name: value for name, value in volume_type.extra_specs.items() if admin
                            or name in SHOWN_TO_ALL}}
