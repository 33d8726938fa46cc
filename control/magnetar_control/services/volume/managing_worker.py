# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker's tasks manage (turn existing content of a pool into a volume) and unmanage (forget a volume and leave its
content in the pool)."""

from __future__ import annotations

from magnetar_core.document import Document
from magnetar_core.errors import NotFound

from .migration_rows import Row
from .reach import Reach
from .removal_rows import VOLUME

MANAGE, UNMANAGE = "manage", "unmanage"
#: Seconds for an agent to rename and grow content.
LIMIT = 600.0


def take_content_over(reach: Reach, row: Row) -> Document:
    """Execute the task "manage": the agent of the volume's host turns existing content of a storage pool into the
    volume *row*. Return the new column values of the volume."""
    content = row["existing"]
    with reach.client(row["host"]) as client:
        client.ensure(VOLUME, row["id"], {
            "name": f"volume-{row['id']}", "size": row["size"], "pool": row["pool"], "multiattach": row["multiattach"],
            "format": content["format"], "existing": content["name"]}, timeout=LIMIT)
    return {"status": "available", "existing": None}


def leave_content(reach: Reach, row: Row) -> None:
    """Execute the task "unmanage": the agent of the volume's host deletes its entry for the volume *row*, but not the
    content in the storage pool."""
    with reach.client(row["host"]) as client:
        try:
            client.get(VOLUME, row["id"])
        except NotFound:
            return
        client.ensure(VOLUME, row["id"], {"keep_content": True}, timeout=LIMIT)
        client.delete(VOLUME, row["id"], timeout=LIMIT)
