# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of an image's members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import build_record, to_second
from magnetar_control.services.image.members import Members
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.fields import Record
from magnetar_core.values import Choices, Text

MEMBER = build_record({"member": Text(1, 255)}, "member")
STATUS = build_record({"status": Choices("pending", "accepted", "rejected")}, "status")


def image_member_routes(members: Members) -> list[Guarded]:
    """Return the routes that list, show, add, update and remove image members (projects that share an image)."""
    def listed(request: Request) -> Document:
        return {"members": [image_member_view(row) for row in members.list(*request.service_arguments())],
                "schema": "/v2/schemas/members"}

    every, member_path = "/v2/images/{id}/members", "/v2/images/{id}/members/{member}"
    return [
        guarded_route(f"GET {every}", listed),
        guarded_route(f"POST {every}", lambda request: image_member_view(
            members.add(*request.service_arguments(_body_value(request, MEMBER))))),
        guarded_route(f"GET {member_path}",
                      lambda request: image_member_view(members.show(*request.service_arguments()))),
        guarded_route(f"PUT {member_path}", lambda request: image_member_view(
            members.answer(*request.service_arguments(_body_value(request, STATUS))))),
        guarded_route(f"DELETE {member_path}", lambda request: members.remove(*request.service_arguments()), 204)]


def _body_value(request: Request, body_form: Record) -> Any:
    """Check the request body with *body_form*, a validator with one field, and return the value of this field. The body
    may also repeat the image id and the member id from the URL; the repeated ids are ignored. Raises ``InvalidField``.
    """
    body, ids = request.json(), request.params
    path_ids = {"image_id": ids["id"], "member_id": ids.get("member"), "member": ids.get("member")}
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if path_ids.get(name) is None or value != path_ids[name]}
    return body_form.check(body, "")[body_form.fields[0].name]


def image_member_view(row: Mapping[Any, Any]) -> Document:
    """Return *row*, an image member (a project that shares the image), in the format of Glance's answers."""
    return {"image_id": row["image_id"], "member_id": row["member"], "status": row["status"],
            "created_at": to_second(row["created_at"]),
            "updated_at": to_second(row["updated_at"] or row["created_at"]), "schema": "/v2/schemas/member"}
