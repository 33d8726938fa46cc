# SPDX-License-Identifier: GPL-3.0-or-later
"""Images to be cached on hosts of a cell before any server needs them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, select, update

from magnetar_control.store.engine.database import INSERT, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import image_requests


class ImageRequest(SelectedRow):
    """A row of the table ``image_requests``: a request that a host caches an image."""

    host: str
    image_id: str
    attempts: int
    created_at: str
    updated_at: str | None


_ANY = select(image_requests.c.host).limit(1)


def upsert_image_requests(connection: Connection, hosts: Collection[str], images: Collection[str]) -> None:
    """Request that each of *hosts* caches each of *images*. Repeating a request resets its age and its count of failed
    attempts."""
    rows = [{"host": host, "image_id": image, "created_at": utc_now()} for host in hosts for image in images]
    if rows:
        new = INSERT[connection.dialect.name](image_requests)
        connection.execute(new.on_conflict_do_update(
            index_elements=["host", "image_id"], set_={"attempts": 0, "created_at": utc_now()}), rows)


def has_image_requests(connection: Connection) -> bool:
    """Return whether the cell has any image requests."""
    return connection.execute(_ANY).first() is not None


def fetch_image_requests(connection: Connection, hosts: Collection[str], limit: int) -> list[ImageRequest]:
    """Return at most *limit* image requests of these hosts, those with the fewest failed attempts first."""
    query = ImageRequest.selection(image_requests).where(image_requests.c.host.in_(hosts)).order_by(
        *image_requests.c["attempts", "created_at", "image_id", "host"]).limit(limit)
    return ImageRequest.several(connection.execute(query))


def remove_image_request(connection: Connection, host: str, image: str) -> None:
    """Remove an image request, because the host has cached the image, or cannot cache it."""
    connection.execute(delete(image_requests).where(
        image_requests.c.host == host, image_requests.c.image_id == image))


def defer_image_request(connection: Connection, host: str, image: str) -> None:
    """Count a failed attempt, so that the request is tried again after the others."""
    connection.execute(update(image_requests).where(
        image_requests.c.host == host, image_requests.c.image_id == image).values(
        attempts=image_requests.c.attempts + 1, updated_at=utc_now()))


def expire_image_requests(connection: Connection, cutoff: str) -> None:
    """Remove the image requests that were created before *cutoff*, because their hosts have been down for too long."""
    connection.execute(delete(image_requests).where(image_requests.c.created_at < cutoff))
