# SPDX-License-Identifier: GPL-3.0-or-later
"""Image quotas of projects: the number of images, and the MiB of their content, with Glance's names.

Content counts while it is uploaded: an upload claims its share of the quota piece by piece, before the bytes arrive, so
that concurrent uploads stay within the quota.
"""

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
#: MiB of the quota that an upload claims in one step, when its size is not known.
STEP = 16
_OWN = images.c.owner == bindparam("project")
_COMING = select(func.coalesce(func.sum(uploads.c.size), 0)).join_from(
    uploads, images, images.c.id == uploads.c.image_id).where(
    _OWN, images.c.id != bindparam("besides")).correlate(None).scalar_subquery()
#: The number of images, and the bytes of stored content and of uploads to images other than *besides*. It is one
#: statement, because complete content moves from uploads to images.
_USED = select(func.count(), func.coalesce(func.sum(images.c.size), 0) + _COMING).where(_OWN)


def image_quotas(limits: Mapping[str, int]) -> Quotas:
    """Return the quotas of the image service. *limits*: the default limits of projects, by resource; a resource that is
    missing here gets the default limit of ``Settings``."""
    return Quotas("image", {**image_quota_defaults(Settings()), **limits}, _count, _refusal)


def image_quota_defaults(settings: Settings) -> dict[str, int]:
    """Return the default limits in *settings*: {resource, as Glance names it: limit}."""
    size = settings.quota_image_gigabytes
    return {COUNT: settings.quota_images, SIZE: size if size < 0 else size * 1024}


def _count(connection: Connection, project: str, _names: Collection[str]) -> dict[str, int]:
    count, size = _used(connection, project)
    return {COUNT: count, SIZE: -(-size // MIB)}


def _used(connection: Connection, project: str, besides: str = "") -> tuple[int, int]:
    """Return (number of images of a project, bytes that their content uses). *besides*: the id of an image whose
    running upload does not count."""
    count, size = connection.execute(_USED, {"project": project, "besides": besides}).one()
    return int(count), int(size)


def _refusal(over: Sequence[Excess]) -> MagnetarError:
    """Return the error for a request that exceeds the limits of the resources *over*. The text is oslo.limit's, as in
    Glance."""
    words = ", ".join(
        f"Resource {excess.resource} is over limit of {excess.limit} due to current usage {excess.used} and delta "
                      f"{excess.more}" for excess in over)
    return TooLarge(f"The project is over a limit for [{words}]. Delete images that are not needed, or ask an "
                    "administrator for a larger quota.")


def check_image_quota(connection: Connection, quota: Quotas, project: str, more: int, size: int, image: str) -> None:
    """Raise ``TooLarge`` unless the project may have *more* additional images and *size* additional bytes of content.
    *image*: the id of an image whose running upload is not counted."""
    limits, (count, used) = quota.limits(connection, project), _used(connection, project, image)
    over = [Excess(COUNT, count, more, limits[COUNT])] if more > 0 and 0 <= limits[COUNT] < count + more else []
    if size > 0 and 0 <= limits[SIZE] * MIB < used + size:
        over.append(Excess(SIZE, -(-used // MIB), -(-size // MIB), limits[SIZE]))
    if over:
        raise quota.refusal(over)


class Share:
    """The bytes of a project's image quota that are reserved for a running upload to the image *image*. *project*: the
    project. *quota*: the quotas of the image service."""

    def __init__(self, database: Database, quota: Quotas, image: str, project: str) -> None:
        self.database, self.quota, self.image, self.project = database, quota, image, project
        #: Bytes that the upload may use; ``None``: no limit.
        self.taken: int | None = 0

    def of(self, chunks: Iterable[bytes], size: int | None) -> Iterator[bytes]:
        """Yield *chunks*. Reserve the quota that a chunk needs before yielding the chunk. *size*: the total in bytes,
        if known. Raises ``TooLarge``."""
        come = 0
        if size:
            self.database.retried(partial(self._take, size, size))
        for chunk in chunks:
            come += len(chunk)
            if self.taken is not None and come > self.taken:
                self.database.retried(partial(self._take, come, come + STEP * MIB))
            yield chunk

    def _take(self, least: int, most: int) -> None:
        """Reserve *most* bytes of the quota for the upload, or all remaining bytes if there are fewer. Store the number
        of reserved bytes in ``taken``. Raises the quota's error when fewer than *least* bytes remain."""
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


def release_upload_quota(connection: Connection, image: str) -> None:
    """Release the quota that is reserved for the upload to the image *image*, because the upload has ended. Afterwards
    the size of the image itself counts."""
    connection.execute(delete(uploads).where(uploads.c.image_id == image))
