# SPDX-License-Identifier: GPL-3.0-or-later
"""Images and members as Glance shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.times import to_second
from magnetar_control.services import Document


def image(found: Document) -> Document:
    """An image, its properties beside its fields."""
    path = f"/v2/images/{found['id']}"
    own = {key: value for key, value in found.items() if key not in ("properties", "why")}
    return {**found["properties"], **own, "created_at": to_second(found["created_at"]),
            "updated_at": to_second(found["updated_at"] or found["created_at"]),
            "self": path, "file": f"{path}/file", "schema": "/v2/schemas/image"}


def member(row: Mapping[Any, Any]) -> Document:
    """A project with which an image is shared."""
    return {"image_id": row["image_id"], "member_id": row["member"], "status": row["status"],
            "created_at": to_second(row["created_at"]),
            "updated_at": to_second(row["updated_at"] or row["created_at"]), "schema": "/v2/schemas/member"}
