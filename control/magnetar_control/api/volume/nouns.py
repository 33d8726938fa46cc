# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that volumes, snapshots and attachments have alike: list with filters, sorting and pages, create, show,
update, delete."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

from magnetar_control.api.query import check_known
from magnetar_control.api.values import Comparison, Number, record
from magnetar_control.services import Document, Documents
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.rows import KEYS, VolumeListing
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Choices, MapOf, Text

from .values import METADATA, NAMES, SIZE, TRUTH, body, is_set, named

#: Most rows of a page.
MOST = 1000
COUNT = Number(0, 999_999_999)
#: Filters that are no text.
TYPES = {"bootable": TRUTH, "multiattach": TRUTH, "size": SIZE}
#: Filters by names and values, with the columns that have these; and by moments.
PAIRS, MOMENTS = {"metadata": "metadata", "glance_metadata": "image_metadata"}, ("created_at", "updated_at")
PAIRS_FORM, COMPARISON, DIRECTION = MapOf(Text(), Text(0, 255), KEYS), Comparison(), Choices("asc", "desc")
#: Parameters of lists that are sorted and cut after they were read.
PAGING = ("limit", "marker", "offset", "sort", "sort_dir", "sort_key")
#: Parameters that are no filters, and what filters are called too. Horizon asks for lists without targets of
#: migrations (``no_migration_targets``), which there are none of.
CONTROLS = ("all_tenants", "limit", "marker", "name~", "no_migration_targets", "offset", "project_id", "sort",
            "sort_dir", "sort_key", "with_count")
ALIASES = {"instance_id": "server_id", "display_name": "name"}
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

    def changed(self, request: Request) -> Document:
        """Return what the request made or changed, as the answers of create and update have it."""
        return {self.name: self.view(request, self.store.show(*request.named()), extended=False)}

    def update(self, request: Request) -> Document:
        """Name, description, metadata."""
        given = body(request, self.name, UPDATE)
        values = {**named(given), **{name: given[name] for name in ("metadata",) if name in given}}
        self.store.update(*request.named(), **values)
        return self.changed(request)

    def delete(self, request: Request) -> Document | None:
        """Note that it is to go."""
        self.store.delete(*request.named())
        return None


def listing(request: Request, columns: Sequence[str]) -> VolumeListing:
    """What the list is asked for; filters are *columns*. Raises ``InvalidField`` for a parameter that is none."""
    given = {ALIASES.get(name, name): value for name, value in request.query}
    check_known(request, [*columns, *CONTROLS, *(old for old, name in ALIASES.items() if name in columns)])
    filters = {name: TYPES[name].check(given[name], name) if name in TYPES else given[name]
               for name in columns if name in given and name not in (*PAIRS, *MOMENTS)}
    return VolumeListing(
        filters=filters, named=given.get("name~"), everywhere=is_set(request, "all_tenants"),
        pairs={PAIRS[name]: pairs(given[name], name) for name in columns if name in given and name in PAIRS},
        compared=[one for name in columns if name in given and name in MOMENTS for one in _compared(name, given[name])],
        project_id=given.get("project_id"), sort=sort(given), marker=given.get("marker"),
        limit=min(COUNT.check(given.get("limit", MOST), "limit"), MOST),
        offset=COUNT.check(given.get("offset", 0), "offset"),
        count=request.extra["version"] >= (3, 45) and is_set(request, "with_count"))


def pairs(text: str, name: str) -> dict[str, str]:
    """Names and values of a filter such as metadata: {'a': 'b'}, as clients write it, or JSON."""
    try:
        return PAIRS_FORM.check(ast.literal_eval(text), name)  # type: ignore[no-any-return]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InvalidField(name, "must be an object such as {'name': 'value'}", text) from None


def _compared(name: str, text: str) -> list[tuple[str, str, str]]:
    """Of a filter such as gt:2026-01-01T00:00:00,lt:2026-02-01T00:00:00: column, operator and moment of each."""
    return [(name, *COMPARISON.check(word, name)) for word in text.split(",")]


def sort(given: dict[str, str]) -> list[tuple[str, bool]]:
    """Names of what is sorted by, and whether downwards. Raises ``InvalidField``."""
    words = [word for word in given.get("sort", "").split(",") if word] or [
        f"{given.get('sort_key', 'created_at')}:{given.get('sort_dir', 'desc')}"]
    return [(name, DIRECTION.check(direction or "desc", "sort") == "desc")
            for name, _colon, direction in (word.partition(":") for word in words)]


def sorted_by(query: dict[str, str], found: Documents, keys: Sequence[str]) -> Documents:
    """*found* in the order that the query asks for; as they are where it says none. Raises ``InvalidField``."""
    if "sort" in query or "sort_key" in query:
        for name, down in reversed(sort(query)):
            if name not in keys:
                raise InvalidField("sort", f"must be one of {', '.join(keys)}", name)
            found = sorted(found, key=itemgetter(name), reverse=down)
    return found


def page(request: Request, plural: str, found: Documents) -> Document:
    """The page of *found* that the query asks for, with a link to the next one. Raises ``InvalidField``,
    ``InvalidRequest``."""
    query = dict(request.query)
    start = COUNT.check(query.get("offset", 0), "offset")
    if "marker" in query:
        ids = [one["id"] for one in found]
        if query["marker"] not in ids:
            raise InvalidRequest(f"marker [{query['marker'][:80]}] not found.")
        start += ids.index(query["marker"]) + 1
    limit = min(COUNT.check(query.get("limit", MOST), "limit"), MOST)
    shown = found[start:start + limit]
    more = {f"{plural}_links": request.next_page(shown[-1]["id"])} if shown and len(found) > start + limit else {}
    return {plural: shown, **more}
