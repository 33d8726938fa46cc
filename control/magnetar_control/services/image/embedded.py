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

from magnetar_control.services import Context, Document, Documents, KeyManager
from magnetar_control.store.engine.database import Database, added, now
from magnetar_core.errors import Conflict, Forbidden, Gone, ImageRefused, InvalidRequest, NotFound
from magnetar_core.image_format import is_encrypted

from . import fields, images, quotas
from .content import Content
from .images import ImageListing, Page, check_fields, check_owner
from .members import Members
from .signatures import SignedUpload, is_signed
from .tables import deleted, members
from .tables import images as rows

log = logging.getLogger(__name__)

GIB = 2**30
#: Seconds between two sweeps.
EVERY = 3600.0
#: What a new image has unless its maker says something else.
DEFAULTS: Document = {"visibility": "shared", "min_disk": 0, "min_ram": 0, "protected": False, "os_hidden": False,
                      "disk_format": None, "container_format": None, "name": None}
#: The state of an image whose content is there, and is not imported yet.
STAGED = "uploading"
#: When content may come: the image waits for it. In ``saving`` the part's lock says whether somebody brings it.
WAITING = ("queued", "saving")


class EmbeddedImages:
    """Implements ``services.Images``. *folder*: where the content is; hosts that share the database share it. *limit*:
    largest content, *max_virtual*: largest disk that a guest may see of it, *reserve*: room that stays on the folder's
    file system, in bytes. *limits*: see ``quotas.of``. *keys*: has the certificates with which signatures of uploads
    are verified; without it, they are not."""

    def __init__(self, database: Database, folder: Path, limit: int = 256 * GIB, max_virtual: int = 2048 * GIB,
                 reserve: int = GIB, limits: Mapping[str, int] | None = None, keys: KeyManager | None = None) -> None:
        self.database, self.files = database, Content(folder, limit, max_virtual, reserve)
        self.members, self.quota = Members(database), quotas.of(limits or {})
        self.keys = keys

    def show(self, context: Context, id: str) -> Document | None:
        with self.database.read() as connection:
            return images.find(connection, context, id)

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """See ``services.Images``."""
        filters = [(key, "eq", value) for key, value in (properties or {}).items()]
        if name is not None:
            filters.append(("name", "eq", name))
        return self.page(context, ImageListing(filters=[*filters, ("os_hidden", "eq", False)]))[0]

    def page(self, context: Context, listing: ImageListing) -> Page:
        with self.database.read() as connection:
            return images.page(connection, context, listing)

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """See ``services.Images``. Raises ``NotFound`` when there is none."""
        with self.database.read() as connection:
            image = images.find(connection, None, id)
        pieces = self.files.read(id) if image and image["status"] in ("active", "deactivated") else None
        if image is None or pieces is None:
            raise NotFound(f"Image {id} has no content.")
        return pieces, image["size"]

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """The content is nowhere but here."""
        return self.show(context, id), ""

    def create(self, context: Context, name: str | None, *, share_with: str | None = None, **wanted: Any) -> Document:
        """See ``services.Images``; also ``tags``. Raises ``InvalidRequest``, 403, 409, 413."""
        properties = wanted.pop("properties", {})
        fields.check_properties(properties)
        id = fields.ID.check(wanted.pop("id"), "id") if wanted.get("id") else str(uuid.uuid4())
        values, more = fields.checked({"name": name, **wanted, **properties})
        check_fields(context, values)
        names = values.pop("tags", [])
        row = {**DEFAULTS, "owner": context.project_id, **values, "id": id, "status": "queued",
               "properties": fields.as_json(more)}
        fields.check_formats(row)
        with self.database.write() as connection:
            if row["owner"] is not None:
                self.quota.within(connection, row["owner"], **{quotas.COUNT: 1})
            if not added(connection, rows, **row, created_at=now()):
                raise Conflict(f"There is an image {id} already.")
            images.set_tags(connection, id, names)
            if share_with is not None:
                added(connection, members, image_id=id, member=share_with, status="pending", created_at=now())
            # Looked at afterwards: adding it waits for who deletes it now.
            if connection.execute(select(deleted).filter_by(id=id)).first() is not None:
                raise Conflict(f"{id} was the id of an image that is deleted, and is not given again. Choose "
                               "another, or leave it out.")
            return images.seen(connection, None, id)

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """See ``services.Images``. Raises ``NotFound``, ``InvalidField``, ``Forbidden``."""
        with self.database.write() as connection:
            image = images.seen(connection, context, id, lock=True)
            check_owner(context, image)
            values = _changed(context, image, change(image))
            if (names := values.pop("tags", None)) is not None:
                images.set_tags(connection, id, names)
            images.change(connection, id, values)
            return images.seen(connection, context, id)

    def tag(self, context: Context, id: str, name: str, on: bool = True) -> None:
        """Put a tag on it; with *on* false, take it off: raises ``NotFound`` where it has not that tag."""
        with self.database.write() as connection:
            image = images.seen(connection, context, id, lock=True)
            check_owner(context, image)
            if not on and name not in image["tags"]:
                raise NotFound(f"Image {id} has no tag {name}.")
            names = {*image["tags"], name} if on else {*image["tags"]} - {name}
            images.set_tags(connection, id, fields.TAGS.check(sorted(names), "tags"))

    def activate(self, context: Context, id: str, status: str) -> None:
        """Make it *deactivated*, so that nobody but admins gets the content, or *active* again."""
        with self.database.write() as connection:
            image = images.seen(connection, context, id)
            if not images.change(connection, image["id"], {"status": status}, ("active", "deactivated")):
                raise Forbidden(f"Image {image['id']} is {image['status']}; only what is active or deactivated can "
                                f"become {status}.")

    def bring(self, context: Context, id: str) -> None:
        """Import what was staged: it was looked at then, so the image is active at once."""
        with self.database.write() as connection:
            image = images.seen(connection, context, id, lock=True)
            check_owner(context, image)
            if not images.change(connection, id, {"status": "active"}, (STAGED,)):
                raise Conflict(f"Image {id} is {image['status']}; stage its content before you import it.")

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """See ``services.Images``. Raises ``TooLarge``."""
        self.files.check_length(size)
        if context.project_id:
            with self.database.read() as connection:
                quotas.check_room(connection, self.quota, context.project_id, more, size, image)

    def upload(self, id: str, chunks: Iterable[bytes], then: str = "active", size: int | None = None) -> Document:
        """See ``services.Images``; *then*: what the image becomes. An image whose signature does not fit the content
        goes, as at Glance, unless it is protected."""
        with self.files.part(id) as part:
            with self.database.write() as connection:
                image = images.seen(connection, None, id)
                if not image["disk_format"] or not image["container_format"]:
                    raise InvalidRequest("disk_format and container_format must be set before content comes.")
                if not images.change(connection, id, {"status": "saving"}, WAITING):
                    raise Conflict(f"Image {id} is {image['status']}; content is taken for queued images only.")
            try:
                empty = "block_device_mapping" in image["properties"]
                if image["owner"] is not None:
                    chunks = quotas.Share(self.database, self.quota, id, image["owner"]).of(chunks, size)
                signed = SignedUpload(image, self.keys, _owner(image)) if self.keys and is_signed(image) else None
                taken = self.files.take(part, signed.seen(chunks) if signed else chunks, image["disk_format"], empty,
                                        is_encrypted(image))
                if signed:
                    self._check(id, signed)
                self.files.keep(id)
            except BaseException:
                self._set(id, {"status": "queued"}, ("saving",))
                raise
            with self.database.write() as connection:
                quotas.give_back(connection, id)
                if images.change(connection, id, {"status": then, **taken}, ("saving",)):
                    return images.seen(connection, None, id)
            self.files.remove(id)
            raise Gone(f"Image {id} was removed while its content came.")

    def _check(self, id: str, signed: SignedUpload) -> None:
        """Raises ``ImageRefused`` when the content is not what was signed; the image goes then."""
        try:
            signed.check()
        except ImageRefused as error:
            with self.database.write() as connection:
                quotas.give_back(connection, id)
                if connection.execute(delete(rows).filter_by(id=id, protected=False)).rowcount:
                    added(connection, deleted, id=id, deleted_at=now())
            raise ImageRefused(f"{error.message} The content was not kept.") from None

    def fail(self, id: str, why: str) -> None:
        self._set(id, {"status": "killed", "why": why}, WAITING)

    def delete(self, context: Context, id: str) -> None:
        """See ``services.Images``. Raises ``Forbidden`` when it is protected or not one's own."""
        with self.database.write() as connection:
            image = images.find(connection, context, id, lock=True)
            if image is None:
                return
            check_owner(context, image)
            if image["protected"]:
                raise Forbidden(f"Image {id} is protected; set protected to false before you remove it.")
            connection.execute(delete(rows).filter_by(id=id))
            added(connection, deleted, id=id, deleted_at=now())  # that it was there stays known
        self.files.remove(id)

    def sweep(self) -> None:
        """Put right what a crash left: images whose upload died are queued again, content of deleted images goes. What
        has no row and was not deleted is kept, and told: the database may be an older one, or another. May be done at
        any time, by many."""
        for id in self.files.abandoned():
            self._set(id, {"status": "queued"}, ("saving",))
        kept = self.files.kept()  # before the rows: an upload's content has a row from its beginning
        with self.database.read() as connection:
            known = set(connection.execute(select(rows.c.id)).scalars())
            gone = set(connection.execute(select(deleted.c.id)).scalars())
        for id in kept:
            if id in gone - known:
                self.files.remove(id)
            elif id not in known:
                log.warning("image content %s has no image in the database, and is kept: remove it by hand", id)

    def sweeping(self) -> threading.Event:
        """Sweep now and from time to time, in a thread of its own, until the event is set."""
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
        """Limit and use of each resource that a project has a quota of."""
        with self.database.read() as connection:
            limits, used = self.quota.limits(connection, project), self.quota.used(connection, project)
        return {name: (limit, used[name]) for name, limit in limits.items()}

    def _set(self, id: str, values: Document, status: tuple[str, ...]) -> None:
        """Change images in one of the states *status*, whose content does not come any more."""
        with self.database.write() as connection:
            quotas.give_back(connection, id)
            images.change(connection, id, values, status)


def _owner(image: Document) -> Context:
    """Who asks the key manager for an image's certificate."""
    return Context("", image["owner"])


def _changed(context: Context, image: Document, changes: Document) -> Document:
    """The columns of *changes*, checked."""
    gone = {name for name, value in changes.items() if value is None and name not in fields.FIELDS}
    values, more = fields.checked({name: value for name, value in changes.items() if name not in gone})
    # What stays as it is needs no right: clients send all fields that they know.
    check_fields(context, {name: value for name, value in values.items() if value != image[name]})
    for name in ("disk_format", "container_format"):
        if name in values and values[name] != image[name] and image["status"] != "queued":
            raise Forbidden(f"{name} cannot be changed any more: the content is there, and is of that format.")
    if "disk_format" in values or "container_format" in values:
        fields.check_formats({**image, **values})
    properties = {**image["properties"], **more}
    values["properties"] = fields.as_json({name: value for name, value in properties.items() if name not in gone})
    return values
