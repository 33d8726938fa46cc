# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v2/schemas``: JSON schemas of images and members, for clients that look at them (python-glanceclient)."""

from __future__ import annotations

from magnetar_control.services import Document
from magnetar_control.services.image.fields import LONGEST, READ_ONLY, VISIBILITIES
from magnetar_control.services.image.formats import BOOT, DISKS
from magnetar_control.web import Answer, Request
from magnetar_core.errors import NotFound

TEXT: Document = {"type": ["null", "string"], "maxLength": 255}
NUMBER: Document = {"type": "integer", "minimum": 0}
TIME: Document = {"type": "string"}
FLAG: Document = {"type": "boolean"}
STATES = ("queued", "saving", "uploading", "active", "killed", "deactivated")

IMAGE: Document = {
    "name": "image",
    "properties": {
        "id": {"type": "string", "description": "A UUID."}, "name": TEXT, "owner": TEXT,
        "status": {"type": "string", "enum": list(STATES)},
        "visibility": {"type": "string", "enum": list(VISIBILITIES)},
        "disk_format": {"type": ["null", "string"], "enum": [None, *DISKS, *BOOT]},
        "container_format": {"type": ["null", "string"], "enum": [None, "bare", *BOOT]},
        "min_disk": NUMBER, "min_ram": NUMBER, "protected": FLAG, "os_hidden": FLAG,
        "size": {"type": ["null", "integer"]},
        "virtual_size": {"type": ["null", "integer"]}, "checksum": TEXT, "os_hash_algo": TEXT, "os_hash_value": TEXT,
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 255}},
        "created_at": TIME, "updated_at": TIME, "self": TIME, "file": TIME, "schema": TIME},
    "additionalProperties": {"type": "string", "maxLength": LONGEST},
    "links": [{"rel": "self", "href": "{self}"}, {"rel": "enclosure", "href": "{file}"},
              {"rel": "describedby", "href": "{schema}"}]}
for _name in READ_ONLY & set(IMAGE["properties"]):
    IMAGE["properties"][_name] = {**IMAGE["properties"][_name], "readOnly": True}

MEMBER: Document = {
    "name": "member",
    "properties": {"image_id": TIME, "member_id": TIME, "created_at": TIME, "updated_at": TIME, "schema": TIME,
                   "status": {"type": "string", "enum": ["pending", "accepted", "rejected"]}}}


def _many(name: str, item: Document) -> Document:
    own = {name: {"type": "array", "items": item}, "schema": TIME, "first": TIME, "next": TIME}
    return {"name": name, "properties": own,
            "links": [{"rel": "first", "href": "{first}"}, {"rel": "next", "href": "{next}"}]}


SCHEMAS = {"image": IMAGE, "images": _many("images", IMAGE), "member": MEMBER, "members": _many("members", MEMBER)}


def show(request: Request) -> Answer:
    """One of the schemas."""
    name = request.params["name"]
    if name not in SCHEMAS:
        raise NotFound(f"There is no schema {name}; there are {', '.join(SCHEMAS)}.")
    return Answer(SCHEMAS[name])
