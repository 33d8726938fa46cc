# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of an image's members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import record, to_second
from magnetar_control.services import Document
from magnetar_control.services.image.members import Members
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.fields import Record
from magnetar_core.values import Choices, Text

MEMBER = record({"member": Text(1, 255)}, "member")
STATUS = record({"status": Choices("pending", "accepted", "rejected")}, "status")


def routes(members: Members) -> list[Guarded]:
    """Where they are."""
    def listed(request: Request) -> Document:
        return {"members": [document(row) for row in members.list(*request.named())], "schema": "/v2/schemas/members"}

    every, one = "/v2/images/{id}/members", "/v2/images/{id}/members/{member}"
    return [
        route(f"GET {every}", listed),
        route(f"POST {every}", lambda request: document(members.add(*request.named(_given(request, MEMBER))))),
        route(f"GET {one}", lambda request: document(members.show(*request.named()))),
        route(f"PUT {one}", lambda request: document(members.answer(*request.named(_given(request, STATUS))))),
        route(f"DELETE {one}", lambda request: members.remove(*request.named()), 204)]


def _given(request: Request, known: Record) -> Any:
    """The value of the one key that the body has, but for the ids of the URL, which clients send along. Raises
    ``InvalidField``."""
    body, ids = request.json(), request.params
    so = {"image_id": ids["id"], "member_id": ids.get("member"), "member": ids.get("member")}
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if so.get(name) is None or value != so[name]}
    return known.check(body, "")[known.fields[0].name]


def document(row: Mapping[Any, Any]) -> Document:
    """A project with which an image is shared, as Glance shows it."""
    return {"image_id": row["image_id"], "member_id": row["member"], "status": row["status"],
            "created_at": to_second(row["created_at"]),
            "updated_at": to_second(row["updated_at"] or row["created_at"]), "schema": "/v2/schemas/member"}
