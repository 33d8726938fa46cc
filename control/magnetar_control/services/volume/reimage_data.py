# SPDX-License-Identifier: GPL-3.0-or-later
"""The image's metadata in a volume's column ``reimage``: an object. Release 0.1.0 writes and reads JSON text there."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Connection, Text, func, select, type_coerce, update

from magnetar_control.store.data_migrations import DataMigration
from magnetar_core.document import Document

from .tables import volumes

#: The capability to read the object.
REIMAGE_OBJECTS = "reimage-objects"
#: The column as it is stored, and the condition of rows in the old form.
_STORED = type_coerce(volumes.c.reimage, Text)
_IS_OLD = _STORED.like('%"image_metadata":"%') | _STORED.like('%"image_metadata": "%')


def reimage_metadata(task: Document) -> dict[str, Any]:
    """Return the image metadata in *task*, the value of a volume's column ``reimage``. Processes of release 0.1.0 store
    it as JSON text, later ones as an object."""
    stored = task["image_metadata"]
    return dict(orjson.loads(stored) if isinstance(stored, str) else stored)


def _count_old(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(volumes).where(_IS_OLD)).scalar_one()


def _migrate_old(connection: Connection, most: int) -> tuple[int, int]:
    rows = connection.execute(select(volumes.c.id, volumes.c.reimage, _STORED.label("stored")).where(_IS_OLD).order_by(
        volumes.c.id).limit(most)).all()
    changed = 0
    for row in rows:
        task = {**row.reimage, "image_metadata": reimage_metadata(row.reimage)}
        changed += connection.execute(update(volumes).where(volumes.c.id == row.id, row.stored == _STORED).values(
            reimage=task)).rowcount
    return len(rows), changed


REIMAGE_MIGRATION = DataMigration(
    "volume_reimage_objects", "Metadata of images in volumes that were reimaged: an object instead of text.", "api",
    REIMAGE_OBJECTS, _count_old, _migrate_old)
