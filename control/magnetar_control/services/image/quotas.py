# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of images: how many a project has, and MiB of their content, called as in Glance. Content counts as it comes:
an upload takes its share of the quota piece by piece, ahead of the bytes, so that many at once stay within it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection, bindparam, delete, func, select

from magnetar_control.services.quotas import Excess, Quotas
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import INSERT, Database
from magnetar_core.errors import MagnetarError, TooLarge

from .tables import images, uploads

COUNT, SIZE = "image_count_total", "image_size_total"
MIB = 2**20
#: MiB that an upload takes at once of the quota, when it does not say how much will come.
STEP = 16
_OWN = images.c.owner == bindparam("project")
_COMING = select(func.coalesce(func.sum(uploads.c.size), 0)).join_from(
    uploads, images, images.c.id == uploads.c.image_id).where(
    _OWN, images.c.id != bindparam("besides")).correlate(None).scalar_subquery()
#: How many, and the bytes of what is there and of what comes to others than the image *besides*: one statement, as
#: content that is complete goes from here to there.
_USED = select(func.count(), func.coalesce(func.sum(images.c.size), 0) + _COMING).where(_OWN)


def of(limits: Mapping[str, int]) -> Quotas:
    """With these limits of projects without their own, and the usual ones for what is left out."""
    return Quotas("image", {**defaults(Settings()), **limits}, _count, _refusal)


def defaults(settings: Settings) -> dict[str, int]:
    """The limits that the settings say, by Glance's names."""
    size = settings.quota_image_gigabytes
    return {COUNT: settings.quota_images, SIZE: size if size < 0 else size * 1024}


def _count(connection: Connection, project: str, _names: Collection[str]) -> dict[str, int]:
    count, size = _used(connection, project)
    return {COUNT: count, SIZE: -(-size // MIB)}


def _used(connection: Connection, project: str, besides: str = "") -> tuple[int, int]:
    """How many images, and their bytes, but for what comes to the image *besides*."""
    count, size = connection.execute(_USED, {"project": project, "besides": besides}).one()
    return int(count), int(size)


def _refusal(over: Sequence[Excess]) -> MagnetarError:
    """In the words of oslo.limit, as Glance."""
    words = ", ".join(f"Resource {one.resource} is over limit of {one.limit} due to current usage {one.used} and delta "
                      f"{one.more}" for one in over)
    return TooLarge(f"The project is over a limit for [{words}]. Delete images that are not needed, or ask an "
                    "administrator for a larger quota.")


def check_room(connection: Connection, quota: Quotas, project: str, more: int, size: int, image: str) -> None:
    """Raises the refusal of so many *more* images, with *size* bytes of content beside what comes to *image*."""
    limits, (count, used) = quota.limits(connection, project), _used(connection, project, image)
    over = [Excess(COUNT, count, more, limits[COUNT])] if more > 0 and 0 <= limits[COUNT] < count + more else []
    if size > 0 and 0 <= limits[SIZE] * MIB < used + size:
        over.append(Excess(SIZE, -(-used // MIB), -(-size // MIB), limits[SIZE]))
    if over:
        raise quota.refusal(over)


class Share:
    """What the upload of an *image* takes of the quota of the *project* whose it is."""

    def __init__(self, database: Database, quota: Quotas, image: str, project: str) -> None:
        self.database, self.quota, self.image, self.project = database, quota, image, project
        #: Bytes that may come; ``None``: as many as there are.
        self.taken: int | None = 0

    def of(self, chunks: Iterable[bytes], size: int | None) -> Iterator[bytes]:
        """The *chunks*, each when the quota has room for it; *size*: of all together, where that is known. Raises
        ``TooLarge``."""
        come = 0
        if size:
            self.database.retried(partial(self._take, size, size))
        for chunk in chunks:
            come += len(chunk)
            if self.taken is not None and come > self.taken:
                self.database.retried(partial(self._take, come, come + STEP * MIB))
            yield chunk

    def _take(self, least: int, most: int) -> None:
        """Take *most* bytes, or what is left; at least *least*."""
        with self.database.write() as connection:
            limit = self.quota.bound(connection, self.project, SIZE).get(SIZE)
            if limit is None:
                self.taken = None
                return
            _number, used = _used(connection, self.project, self.image)
            if used + least > limit * MIB:
                raise self.quota.refusal([Excess(SIZE, -(-used // MIB), -(-least // MIB), limit)])
            self.taken = min(most, limit * MIB - used)
            query = INSERT[connection.dialect.name](uploads).values(image_id=self.image, size=self.taken)
            connection.execute(query.on_conflict_do_update(index_elements=["image_id"], set_={"size": self.taken}))


def give_back(connection: Connection, image: str) -> None:
    """The upload of an image has ended: its size counts from now on, if it has one."""
    connection.execute(delete(uploads).where(uploads.c.image_id == image))
