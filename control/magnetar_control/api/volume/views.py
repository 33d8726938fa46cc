# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes, snapshots and attachments as Cinder shows them, at each microversion (API reference, Block Storage v3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.services import Document
from magnetar_control.services.volume.type_specs import BACKEND_NAME
from magnetar_control.services.volume.types import SHOWN_TO_ALL, VolumeType
from magnetar_control.web import Request

Row = Mapping[Any, Any]


def href(request: Request, noun: str, id: str) -> str:
    """URL of a thing, as the client wrote the beginning."""
    project = request.extra.get("project")
    return f"{request.base}/v3/{project + '/' if project else ''}{noun}/{id}"


def links(request: Request, noun: str, id: str) -> list[Document]:
    url = href(request, noun, id)
    return [{"rel": "self", "href": url}, {"rel": "bookmark", "href": url.replace("/v3/", "/", 1)}]


def brief(request: Request, row: Row) -> Document:
    """A volume in a list without details."""
    return {"id": row["id"], "name": row["name"], "links": links(request, "volumes", row["id"])}


def volume(request: Request, row: Row, extended: bool = True) -> Document:
    """Return a volume in full. *extended*: with what Cinder's extensions add to show and lists, but not to the answers
    of create and update."""
    found = {
        **{name: row[name] for name in ("id", "name", "description", "size", "created_at", "updated_at", "snapshot_id",
                                        "source_volid", "multiattach", "user_id", "volume_type", "availability_zone")},
        "status": row["status"], "bootable": "true" if row["bootable"] else "false",
        "encrypted": (hidden := row["encryption_key_id"] is not None),
        "metadata": {**row["metadata"], **({"readonly": "True"} if row["readonly"] else {})},
        "links": links(request, "volumes", row["id"]), "attachments": [
            _held(request, one) for one in row["attachments"] if one["status"] in ("attached", "detaching")],
        "consistencygroup_id": None, "replication_status": None}
    admin, shared = request.context.is_admin, None if request.extra["version"] >= (3, 69) else False
    if admin:
        found["migration_status"] = None
    if extended:
        found |= _extensions_of_volume(row, admin)
    return found | since(
        request, (13, True, "group_id", None), (21, admin, "provider_id", None), (48, True, "service_uuid", None),
        (48, True, "shared_targets", shared), (61, admin, "cluster_name", None),
        (63, True, "volume_type_id", row["volume_type_id"]),
        (64, hidden, "encryption_key_id", row["encryption_key_id"]), (65, True, "consumes_quota", True))


def _extensions_of_volume(row: Row, admin: bool) -> Document:
    """Return the fields of a volume that extensions of Cinder show."""
    found = {"os-vol-tenant-attr:tenant_id": row["project_id"]}
    if row["volume_image_metadata"]:
        found["volume_image_metadata"] = row["volume_image_metadata"]
    if admin:
        host = f"{row['host']}@{BACKEND_NAME}#{row['pool']}" if row["host"] else None
        found |= {"os-vol-host-attr:host": host, "os-vol-mig-status-attr:migstat": None,
                  "os-vol-mig-status-attr:name_id": None}
    return found


def since(request: Request, *rows: tuple[int, bool, str, Any]) -> Document:
    """What came with microversions: since 3.x, and where it holds, a name and its value."""
    return {name: value for since, holds, name, value in rows if holds and request.extra["version"] >= (3, since)}


def _held(request: Request, row: Row) -> Document:
    return {"id": row["volume_id"], "attachment_id": row["id"], "volume_id": row["volume_id"],
            "server_id": row["server_id"], "host_name": _host(request, row["host"]), "device": row["device"],
            "attached_at": row["attached_at"]}


def _host(request: Request, name: str | None) -> str | None:
    return name if request.context.knows_hosts else None


def snapshot(request: Request, row: Row, detailed: bool = True, extended: bool = True) -> Document:
    """Return a snapshot. *extended*: as for ``volume``."""
    names = ("id", "name", "description", "volume_id", "status", "size", "created_at", "updated_at")
    found = {**{name: row[name] for name in names}, "metadata": row["metadata"]}
    if detailed and extended:
        found |= {"os-extended-snapshot-attributes:project_id": row["project_id"],
                  "os-extended-snapshot-attributes:progress": "100%" if row["status"] == "available" else "0%"}
    return found | since(request, (14, detailed, "group_snapshot_id", None), (41, True, "user_id", row["user_id"]),
                          (65, True, "consumes_quota", True))


def attachment(request: Request, row: Row, detailed: bool = True) -> Document:
    """An attachment. ``connection_info`` says where the volume is; the agents connect it."""
    found: Document = {"id": row["id"], "volume_id": row["volume_id"], "instance": row["server_id"],
                       "status": row["status"]}
    if detailed:
        ready = row["connector"] is not None or row["status"] == "attached"
        found |= {"attached_at": row["attached_at"] or "", "detached_at": "", "attach_mode": row["mode"],
                  "connection_info": {"driver_volume_type": "magnetar", "volume_id": row["volume_id"],
                                      "attachment_id": row["id"], "host": _host(request, row["volume_host"]),
                                      "access_mode": row["mode"]} if ready else {}}
    return found


def type(request: Request, one: VolumeType, answer: str = "show") -> Document:
    """Return a volume type as the *answer* of show, create or update has it. Others than administrators see those extra
    specs that users act on."""
    admin = request.context.is_admin
    access = {} if answer == "update" else {"os-volume-type-access:is_public": one.is_public}
    return {"id": one.id, "name": one.name, "is_public": one.is_public, "description": one.description, **access,
            **({"qos_specs_id": None} if answer == "show" else {}),
            "extra_specs": {name: value for name, value in one.extra_specs.items() if admin or name in SHOWN_TO_ALL}}
