# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that hosts of a cell are to have ahead of any server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from magnetar_control.store.engine.database import INSERT, now
from magnetar_control.store.engine.tables import image_requests


def ask(connection: Connection, hosts: Collection[str], images: Collection[str]) -> None:
    """Note that these hosts are to have these images. What is asked for again is tried anew."""
    rows = [{"host": host, "image_id": image, "created_at": now()} for host in hosts for image in images]
    if rows:
        new = INSERT[connection.dialect.name](image_requests)
        connection.execute(new.on_conflict_do_update(
            index_elements=["host", "image_id"], set_={"attempts": 0, "created_at": now()}), rows)


def waiting(connection: Connection, hosts: Collection[str], limit: int) -> Sequence[Row[Any]]:
    """What these hosts are to have, in the order in which it is tried; *limit* at most."""
    return connection.execute(select(image_requests).where(image_requests.c.host.in_(hosts)).order_by(
        image_requests.c.attempts, image_requests.c.created_at, image_requests.c.image_id,
        image_requests.c.host).limit(limit)).all()


def done(connection: Connection, host: str, image: str) -> None:
    """It is there, or nobody tries it any more."""
    connection.execute(delete(image_requests).where(
        image_requests.c.host == host, image_requests.c.image_id == image))


def failed(connection: Connection, host: str, image: str) -> None:
    """It is tried again, after the others."""
    connection.execute(update(image_requests).where(
        image_requests.c.host == host, image_requests.c.image_id == image).values(
        attempts=image_requests.c.attempts + 1, updated_at=now()))


def forget(connection: Connection, before: str) -> None:
    """Remove what was asked for before a moment: those hosts have been down since."""
    connection.execute(delete(image_requests).where(image_requests.c.created_at < before))
