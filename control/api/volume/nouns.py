# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that volumes, snapshots and attachments have alike: list with filters, sorting and pages, create, show,
update, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from magnetar_control.api.values import Number, record
from magnetar_control.services import Document, Documents
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route

from .values import METADATA, NAMES, SIZE, TRUTH, body, is_set, named

#: Most rows of a page.
MOST = 1000
COUNT = Number(0, 999_999_999)
#: Filters that are no text.
TYPES = {"bootable": TRUTH, "multiattach": TRUTH, "size": SIZE}
UPDATE = record({**NAMES, "metadata": METADATA})


class NounRoutes:
    """What the routes do. *filters*: columns by which a list may be asked; *accepted*: status of what is only begun."""

    name: str
    filters: Sequence[str]
    accepted = 202
    #: A row as Cinder shows it, of (request, row, whether in full); note what is to be made.
    view: Callable[..., Document]
    create: Callable[[Request], Document]

    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service, self.store = service, getattr(service, f"{self.name}s")

    def routes(self) -> list[Guarded]:
        """Where they are, below ``/v3``."""
        every, one = f"{self.name}s", f"{self.name}s/{{id}}"
        return [
            route(f"GET {every}", self.list), route(f"GET {every}/detail", partial(self.list, detailed=True)),
            route(f"POST {every}", self.create, self.accepted), route(f"GET {one}", self.show),
            route(f"PUT {one}", self.update), route(f"DELETE {one}", self.delete, self.accepted)]

    def list(self, request: Request, detailed: bool = False) -> Document:
        """A page, with a link to the next one where it is full."""
        asked = listing(request, self.filters)
        found, count = self.page(request, asked, detailed)
        shown = [self.view(request, one, detailed) for one in found]
        answer: Document = {f"{self.name}s": shown}
        if shown and len(shown) == asked.limit:
            answer[f"{self.name}s_links"] = request.next_page(shown[-1]["id"])
        return answer if count is None else {**answer, "count": count}

    def page(self, request: Request, asked: VolumeListing, detailed: bool) -> tuple[Documents, int | None]:
        """The rows of a list, and how many there are on all pages where that is asked."""
        found: tuple[Documents, int | None] = self.store.list(request.context, asked)
        return found

    def show(self, request: Request) -> Document:
        return {self.name: self.view(request, self.store.show(*request.named()))}

    def update(self, request: Request) -> Document:
        """Name, description, metadata."""
        given = body(request, self.name, UPDATE)
        values = {**named(given), **{name: given[name] for name in ("metadata",) if name in given}}
        self.store.update(*request.named(), **values)
        return self.show(request)

    def delete(self, request: Request) -> Document | None:
        """Note that it is to go."""
        self.store.delete(*request.named())
        return None


def listing(request: Request, columns: Sequence[str]) -> VolumeListing:
    """What the list is asked for; filters are *columns*. What is no filter is not looked at, as in Cinder."""
    given = dict(request.query)
    if "instance_id" in given:  # what Cinder calls the server of an attachment
        given.setdefault("server_id", given["instance_id"])
    filters = {name: TYPES[name].check(given[name], name) if name in TYPES else given[name]
               for name in columns if name in given}
    return VolumeListing(
        filters=filters, named=given.get("name~"), everywhere=is_set(request, "all_tenants"),
        project_id=given.get("project_id"), sort=_sort(given), marker=given.get("marker"),
        limit=min(COUNT.check(given.get("limit", MOST), "limit"), MOST),
        offset=COUNT.check(given.get("offset", 0), "offset"),
        count=request.extra["version"] >= (3, 45) and is_set(request, "with_count"))


def _sort(given: dict[str, str]) -> list[tuple[str, bool]]:
    words = [word for word in given.get("sort", "").split(",") if word] or [
        f"{given.get('sort_key', 'created_at')}:{given.get('sort_dir', 'desc')}"]
    return [(name, direction != "asc") for name, _colon, direction in (word.partition(":") for word in words)]
