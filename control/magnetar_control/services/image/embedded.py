# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded image service: rows in the API database, content in a folder."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select

from magnetar_control.services import Context, KeyManager
from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, Gone, ImageRefused, InvalidRequest, NotFound
from magnetar_core.image_format import is_encrypted

from . import fields, images, quotas
from .content import Content
from .images import ImageListing, Page, check_fields, check_image_owner
from .members import Members
from .signatures import SignedUpload, is_signed
from .tables import deleted, members
from .tables import images as rows

log = logging.getLogger(__name__)

GIB = 2**30
#: Seconds between two sweeps.
EVERY = 3600.0
#: Defaults of a new image.
DEFAULTS: Document = {"visibility": "shared", "min_disk": 0, "min_ram": 0, "protected": False, "os_hidden": False,
                      "disk_format": None, "container_format": None, "name": None}
#: The status of an image whose content is staged, but not imported yet.
STAGED = "uploading"
#: Statuses of an image that accepts content. In ``saving`` the part's lock shows whether an upload is running.
WAITING = ("queued", "saving")


class EmbeddedImages:
    """The image service inside the control plane, an implementation of ``services.Images``. *folder*: the folder of the
    content; all machines that use the database must share it.

    *limit*: largest content, *max_virtual*: largest virtual size, *reserve*: free space to leave on the folder's file
    system, all in bytes. *limits*: the default quota of projects. *keys*: the key manager with the certificates for
    verifying signatures of uploads; without it, signatures are not verified.
    """

    def __init__(self, database: Database, folder: Path, limit: int = 256 * GIB, max_virtual: int = 2048 * GIB,
                 reserve: int = GIB, limits: Mapping[str, int] | None = None, keys: KeyManager | None = None) -> None:
        self.database, self.files = database, Content(folder, limit, max_virtual, reserve)
        self.members, self.quota = Members(database), quotas.image_quotas(limits or {})
        self.keys = keys

    def show(self, context: Context, id: str) -> Document | None:
        with self.database.read() as connection:
            return images.find_image_document(connection, context, id)

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """Return all images that *context* may list, except hidden ones. *name*, *properties*: return only images with
        this name and these property values."""
        filters = [(key, "eq", value) for key, value in (properties or {}).items()]
        if name is not None:
            filters.append(("name", "eq", name))
        return self.page(context, ImageListing(filters=[*filters, ("os_hidden", "eq", False)]))[0]

    def page(self, context: Context, listing: ImageListing) -> Page:
        with self.database.read() as connection:
            return images.fetch_image_page(connection, context, listing)

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """Return (iterator over the pieces of the image's content, size in bytes). Raises ``NotFound`` when there is no
        content."""
        with self.database.read() as connection:
            image = images.find_image_document(connection, None, id)
        pieces = self.files.read(id) if image and image["status"] in ("active", "deactivated") else None
        if image is None or pieces is None:
            raise NotFound(f"Image {id} has no content.")
        return pieces, image["size"]

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """Return the image, and an empty string as its location, because hosts can download the content only from this
        service. The image is ``None`` if *context* may not see it."""
        return self.show(context, id), ""

    def create(self, context: Context, name: str | None, *, share_with: str | None = None,
               **attributes: Any) -> Document:
        """Create an image without content (status queued) and return it. *share_with*: a project to share it with.
        *attributes*: the fields of ``services.Images.create``, and ``tags``. Raises ``InvalidRequest``, ``Forbidden``,
        ``Conflict``, ``TooLarge``."""
        properties = attributes.pop("properties", {})
        fields.check_properties(properties)
        id = fields.ID.check(attributes.pop("id"), "id") if attributes.get("id") else str(uuid.uuid4())
        values, more = fields.check_image_values({"name": name, **attributes, **properties})
        check_fields(context, values)
        names = values.pop("tags", [])
        row = {**DEFAULTS, "owner": context.project_id, **values, "id": id, "status": "queued",
               "properties": fields.sorted_properties(more)}
        fields.check_formats(row)
        with self.database.write() as connection:
            if row["owner"] is not None:
                self.quota.within(connection, row["owner"], **{quotas.COUNT: 1})
            if not insert_if_absent(connection, rows, **row, created_at=utc_now()):
                raise Conflict(f"There is an image {id} already.")
            images.set_tags(connection, id, names)
            if share_with is not None:
                insert_if_absent(connection, members, image_id=id, member=share_with, status="pending",
                                 created_at=utc_now())
            # Checked after the insert, which waits for a concurrent deletion.
            if connection.execute(select(deleted).filter_by(id=id)).first() is not None:
                raise Conflict(f"{id} was the id of an image that is deleted, and is not given again. Choose "
                               "another, or leave it out.")
            return images.require_image_document(connection, None, id)

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change an image, and return it. *change*: takes the present image, and returns the values to change. Raises
        ``NotFound``, ``InvalidField``, ``Forbidden``."""
        with self.database.write() as connection:
            image = images.require_image_document(connection, context, id, lock=True)
            check_image_owner(context, image)
            values = _changed(context, image, change(image))
            if (names := values.pop("tags", None)) is not None:
                images.set_tags(connection, id, names)
            images.update_image_row(connection, id, values)
            return images.require_image_document(connection, context, id)

    def tag(self, context: Context, id: str, name: str, on: bool = True) -> None:
        """Add the tag *name* to an image, or remove it if *on* is false. Raises ``NotFound`` when the tag to remove
        does not exist."""
        with self.database.write() as connection:
            image = images.require_image_document(connection, context, id, lock=True)
            check_image_owner(context, image)
            if not on and name not in image["tags"]:
                raise NotFound(f"Image {id} has no tag {name}.")
            names = {*image["tags"], name} if on else {*image["tags"]} - {name}
            images.set_tags(connection, id, fields.TAGS.check(sorted(names), "tags"))

    def activate(self, context: Context, id: str, status: str) -> None:
        """Set the *status* of an image: "deactivated" (only administrators can download it) or "active"."""
        with self.database.write() as connection:
            image = images.require_image_document(connection, context, id)
            if not images.update_image_row(connection, image["id"], {"status": status}, ("active", "deactivated")):
                raise Forbidden(f"Image {image['id']} is {image['status']}; only what is active or deactivated can "
                                f"become {status}.")

    def import_staged(self, context: Context, id: str) -> None:
        """Set the status of an image with staged content to active. Its content was already checked when it was staged.
        Raises ``Conflict`` for an image in another status."""
        with self.database.write() as connection:
            image = images.require_image_document(connection, context, id, lock=True)
            check_image_owner(context, image)
            if not images.update_image_row(connection, id, {"status": "active"}, (STAGED,)):
                raise Conflict(f"Image {id} is {image['status']}; stage its content before you import it.")

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Raise ``TooLarge`` unless the quota of the caller's project allows *more* additional images and *size*
        additional bytes of content. *image*: the id of an image whose running upload does not count as usage."""
        self.files.check_length(size)
        if context.project_id:
            with self.database.read() as connection:
                quotas.check_image_quota(connection, self.quota, context.project_id, more, size, image)

    def upload(self, id: str, chunks: Iterable[bytes], then: str = "active", size: int | None = None) -> Document:
        """Store *chunks* as the content of the image *id*, and return the image. *then*: the status afterwards. *size*:
        the total number of bytes, if known. If the image's signature does not match the content, delete the image, as
        in Glance, unless it is protected."""
        with self.files.part(id) as part:
            with self.database.write() as connection:
                image = images.require_image_document(connection, None, id)
                if not image["disk_format"] or not image["container_format"]:
                    raise InvalidRequest("disk_format and container_format must be set before content comes.")
                if not images.update_image_row(connection, id, {"status": "saving"}, WAITING):
                    raise Conflict(f"Image {id} is {image['status']}; content is taken for queued images only.")
            try:
                empty = "block_device_mapping" in image["properties"]
                if image["owner"] is not None:
                    chunks = quotas.Share(self.database, self.quota, id, image["owner"]).of(chunks, size)
                signed = SignedUpload(image, self.keys,
                                      _owner_context(image)) if self.keys and is_signed(image) else None
                taken = self.files.write(part, signed.seen(chunks) if signed else chunks, image["disk_format"], empty,
                                         is_encrypted(image))
                if signed:
                    self._check(id, signed)
                self.files.keep(id)
            except BaseException:
                self._set(id, {"status": "queued"}, ("saving",))
                raise
            with self.database.write() as connection:
                quotas.release_upload_quota(connection, id)
                if images.update_image_row(connection, id, {"status": then, **taken}, ("saving",)):
                    return images.require_image_document(connection, None, id)
            self.files.remove(id)
            raise Gone(f"Image {id} was removed while its content came.")

    def _check(self, id: str, signed: SignedUpload) -> None:
        """Verify the signature of the content that was uploaded to the image *id*. If it does not match, delete the
        image (unless it is protected), and raise ``ImageRefused``. *signed*: the verification, which has computed the
        digest of the content during the upload."""
        try:
            signed.check()
        except ImageRefused as error:
            with self.database.write() as connection:
                quotas.release_upload_quota(connection, id)
                if connection.execute(delete(rows).filter_by(id=id, protected=False)).rowcount:
                    insert_if_absent(connection, deleted, id=id, deleted_at=utc_now())
            raise ImageRefused(f"{error.message} The content was not kept.") from None

    def fail(self, id: str, why: str) -> None:
        self._set(id, {"status": "killed", "why": why}, WAITING)

    def delete(self, context: Context, id: str) -> None:
        """Delete an image and its content. Raises ``Forbidden`` when it is protected or belongs to another project."""
        with self.database.write() as connection:
            image = images.find_image_document(connection, context, id, lock=True)
            if image is None:
                return
            check_image_owner(context, image)
            if image["protected"]:
                raise Forbidden(f"Image {id} is protected; set protected to false before you remove it.")
            connection.execute(delete(rows).filter_by(id=id))
            insert_if_absent(connection, deleted, id=id, deleted_at=utc_now())  # its id is never used again
        self.files.remove(id)

    def sweep(self) -> None:
        """Clean up after a crash: set the status of images whose uploading process has died back to ``queued``, and
        remove the content of deleted images.

        Content of an image that the database does not know at all is not removed, only logged, because the service may
        run with an older or a different database. Several processes may call this at the same time.
        """
        for id in self.files.abandoned():
            self._set(id, {"status": "queued"}, ("saving",))
        stored_ids = self.files.complete_ids()  # before the rows: the row of an upload exists from its start
        with self.database.read() as connection:
            image_ids = set(connection.execute(select(rows.c.id)).scalars())
            deleted_ids = set(connection.execute(select(deleted.c.id)).scalars())
        for id in stored_ids:
            if id in deleted_ids - image_ids:
                self.files.remove(id)
            elif id not in image_ids:
                log.warning("image content %s has no image in the database, and is kept: remove it by hand", id)

    def sweeping(self) -> threading.Event:
        """Start a thread that calls ``sweep`` immediately and then every ``EVERY`` seconds. Return the event that stops
        the thread."""
        over = threading.Event()

        def sweep() -> None:
            while not over.is_set():
                try:
                    self.sweep()
                except Exception:
                    log.exception("images are swept again in %g s", EVERY)
                over.wait(EVERY)

        threading.Thread(target=sweep, name="sweep images", daemon=True).start()
        return over

    def usage(self, project: str) -> dict[str, tuple[int, int]]:
        """Return the limits and the usage of a project: {resource: (limit, usage)}."""
        with self.database.read() as connection:
            limits, used = self.quota.limits(connection, project), self.quota.used(connection, project)
        return {name: (limit, used[name]) for name, limit in limits.items()}

    def _set(self, id: str, values: Document, status: tuple[str, ...]) -> None:
        """Release the quota that the upload to the image *id* has claimed. Also set the image's columns *values*, if
        its present status is one of *status*."""
        with self.database.write() as connection:
            quotas.release_upload_quota(connection, id)
            images.update_image_row(connection, id, values, status)


def _owner_context(image: Document) -> Context:
    """Return a context for the project that owns *image*, to read the certificate of its signature from the key
    manager."""
    return Context("", image["owner"])


def _changed(context: Context, image: Document, changes: Document) -> Document:
    """Check the requested *changes* of an image, and return the new column values. Raises ``InvalidField``,
    ``Forbidden``."""
    removed = {name for name, value in changes.items() if value is None and name not in fields.FIELDS}
    values, more = fields.check_image_values({name: value for name, value in changes.items() if name not in removed})
    # Unchanged values need no permission, because clients send all fields that they know.
    check_fields(context, {name: value for name, value in values.items() if value != image[name]})
    for name in ("disk_format", "container_format"):
        if name in values and values[name] != image[name] and image["status"] != "queued":
            raise Forbidden(f"{name} cannot be changed any more: the content is there, and is of that format.")
    if "disk_format" in values or "container_format" in values:
        fields.check_formats({**image, **values})
    properties = {**image["properties"], **more}
    values["properties"] = fields.sorted_properties({
        name: value for name, value in properties.items() if name not in removed})
    return values
