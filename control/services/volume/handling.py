# SPDX-License-Identifier: GPL-3.0-or-later
"""Handlers of volumes and their metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Table, func, select

from magnetar_control.services import Document
from magnetar_control.web import Answer, Request
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from . import attachments, taking, views
from . import volumes as rules
from .tables import volumes
from .work import BELL

if TYPE_CHECKING:
    from .embedded import Embedded

#: Roles that may change what a project has; Cinder's default rules.
WRITERS = frozenset({"admin", "manager", "member", "service"})
CREATE: dict[str, taking.Check] = {
    "name": taking.text, "display_name": taking.text, "description": taking.text, "display_description": taking.text,
    "size": taking.size, "availability_zone": taking.text, "volume_type": taking.text, "snapshot_id": taking.ident,
    "source_volid": taking.ident, "imageRef": taking.ident, "image_id": taking.ident, "metadata": taking.metadata,
    "multiattach": taking.boolean, "consistencygroup_id": taking.nothing, "group_id": taking.nothing,
    "backup_id": taking.nothing, "source_replica": taking.nothing, "user_id": taking.nothing,
    "project_id": taking.nothing, "status": taking.nothing, "attach_status": taking.nothing}
UPDATE: dict[str, taking.Check] = {
    "name": taking.text, "display_name": taking.text, "description": taking.text, "display_description": taking.text,
    "metadata": taking.metadata}
#: What volumes can be made from elsewhere, and not here.
NOT_HERE = ("consistencygroup_id", "group_id", "backup_id", "source_replica")


def may_write(request: Request) -> None:
    """Raises ``Forbidden`` for a reader."""
    if not WRITERS & request.context.roles:
        raise Forbidden("Policy doesn't allow this to be performed: it needs the role member of the project.")


def named(given: Document) -> Document:
    """Name and description, also by their old names."""
    old = {"name": given.get("display_name"), "description": given.get("display_description")}
    return {name: given.get(name, value) for name, value in old.items()
            if name in given or f"display_{name}" in given}


class Volumes:
    """Handlers over the *service*."""

    def __init__(self, service: Embedded) -> None:
        self.service, self.database = service, service.database

    def list(self, request: Request, detailed: bool = False) -> Answer:
        """A page of volumes."""
        listing = taking.Listing(request, volumes, taking.VOLUME_FILTERS)
        with self.database.read() as connection:
            rows, count = listing.rows(connection)
            held = attachments.of(connection, [row["id"] for row in rows]) if detailed else {}
        found: Document = {"volumes": [views.volume(request, row, held[row["id"]], self.service.types) if detailed
                                       else views.brief(request, row) for row in rows]}
        if links := listing.links(rows):
            found["volumes_links"] = links
        return Answer(found if count is None else {**found, "count": count})

    def detail(self, request: Request) -> Answer:
        """The same in full."""
        return self.list(request, detailed=True)

    def summary(self, request: Request) -> Answer:
        """How many, and how large together (3.12); their metadata (3.36)."""
        where = taking.Listing(request, volumes, ()).where()
        with self.database.read() as connection:
            count, size = connection.execute(select(func.count(), func.coalesce(func.sum(volumes.c.size), 0))
                                             .select_from(volumes).where(*where)).one()
            texts = connection.execute(select(volumes.c.metadata).where(*where, volumes.c.metadata != "{}")).scalars()
            values: dict[str, set[str]] = {}
            for text in texts:
                for key, value in rules.document(text).items():
                    values.setdefault(key, set()).add(value)
        found: Document = {"total_count": count, "total_size": size}
        if request.extra["version"] >= (3, 36):
            found["metadata"] = {key: sorted(each) for key, each in values.items()}
        return Answer({"volume-summary": found})

    def show(self, request: Request) -> Answer:
        """One."""
        id = request.params["id"]
        with self.database.read() as connection:
            row = rules.seen(connection, volumes, request.context, id)
            held = attachments.of(connection, [id])[id]
        return Answer({"volume": views.volume(request, row, held, self.service.types)})

    def create(self, request: Request) -> Answer:
        """Note what is to be made; the worker makes it."""
        may_write(request)
        outer = request.json()
        hints = {"OS-SCH-HNT:scheduler_hints", "scheduler_hints"}
        if isinstance(outer, dict) and not set(outer) <= {"volume", *hints}:
            raise InvalidRequest(f"Additional properties are not allowed ({sorted(set(outer) - {'volume', *hints})}).")
        given = taking.body(request, "volume", CREATE)
        wrong = next((name for name in NOT_HERE if given.get(name)), None)
        if wrong:
            raise taking.invalid(wrong, "Embedded volumes are not made from it, and belong to no groups.")
        zone = given.get("availability_zone")
        if zone not in (None, "", self.service.zone):
            raise InvalidRequest(f"Invalid input received: Availability zone '{zone}' is invalid; there is "
                        f"'{self.service.zone}'.")
        wish = {**named(given), **{name: given[name] for name in (
            "volume_type", "snapshot_id", "metadata", "multiattach") if given.get(name)}}
        volume = self.service.create(
            request.context, given.get("size") or 0, image_id=given.get("imageRef") or given.get("image_id"),
            source_volume_id=given.get("source_volid"), **wish)
        request.params["id"] = volume["id"]
        answer = self.show(request)
        answer.status = 202
        return answer

    def update(self, request: Request) -> Answer:
        """Name, description, metadata."""
        may_write(request)
        given, id = taking.body(request, "volume", UPDATE), request.params["id"]
        values: dict[str, Any] = named(given)
        if "metadata" in given:
            values["metadata"] = orjson.dumps(given["metadata"]).decode()
        with self.database.write() as connection:
            rules.seen(connection, volumes, request.context, id)
            rules.set_(connection, volumes, id, **values)
        return self.show(request)

    def delete(self, request: Request) -> Answer:
        """Note that it is to go."""
        may_write(request)
        query = dict(request.query)
        force = query.get("force", "").lower() in taking.TRUE
        if force and not request.context.is_admin:
            raise Forbidden("Policy doesn't allow volume:force_delete to be performed: it needs the role admin.")
        with self.database.write() as connection:
            row = rules.seen(connection, volumes, request.context, request.params["id"])
            rules.begin_delete(connection, row, cascade=query.get("cascade", "").lower() in taking.TRUE, force=force)
            self.database.ring(connection, BELL)
        return Answer(None, 202)


class Metadata:
    """Handlers of the metadata of a *table*'s things, below their URL."""

    def __init__(self, service: Embedded, table: Table) -> None:
        self.database, self.table = service.database, table

    def show(self, request: Request) -> Answer:
        """All."""
        return Answer({"metadata": self._read(request)})

    def one(self, request: Request) -> Answer:
        """One key."""
        key = request.params["key"]
        return Answer({"meta": {key: self._key(self._read(request), key)}})

    def add(self, request: Request) -> Answer:
        """More keys."""
        given = self._given(request)
        return Answer({"metadata": self._change(request, lambda old: {**old, **given})})

    def replace(self, request: Request) -> Answer:
        """These keys and no others."""
        given = self._given(request)
        return Answer({"metadata": self._change(request, lambda _old: given)})

    def put(self, request: Request) -> Answer:
        """One key."""
        given = taking.metadata("meta", taking.body(request, "meta", _any(request, "meta")))
        if list(given) != [request.params["key"]]:
            raise InvalidRequest(f"meta must hold the key of the URL, {request.params['key']!r}, and no other.")
        self._change(request, lambda old: {**old, **given})
        return Answer({"meta": given})

    def delete(self, request: Request) -> Answer:
        """Without one key."""
        key = request.params["key"]

        def without(old: dict[str, str]) -> dict[str, str]:
            self._key(old, key)
            return {name: value for name, value in old.items() if name != key}

        self._change(request, without)
        return Answer(None, 200)

    def _given(self, request: Request) -> dict[str, str]:
        return taking.metadata("metadata", taking.body(request, "metadata", _any(request, "metadata")))

    def _key(self, have: dict[str, str], key: str) -> str:
        if key not in have:
            raise NotFound(f"Metadata key {key} is not found.")
        return have[key]

    def _read(self, request: Request) -> dict[str, str]:
        with self.database.read() as connection:
            row = rules.seen(connection, self.table, request.context, request.params["id"])
        found: dict[str, str] = rules.document(row["metadata"])
        return found

    def _change(self, request: Request, how: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, str]:
        may_write(request)
        with self.database.write() as connection:
            row = rules.seen(connection, self.table, request.context, request.params["id"])
            found = how(rules.document(row["metadata"]))
            rules.set_(connection, self.table, row["id"], metadata=orjson.dumps(found).decode())
        return found


def _any(request: Request, name: str) -> dict[str, taking.Check]:
    """Checks for an object of any keys."""
    outer = request.json()
    inner = outer.get(name) if isinstance(outer, dict) else None
    return dict.fromkeys(inner, taking.nothing) if isinstance(inner, dict) else {}
