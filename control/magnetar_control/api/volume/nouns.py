# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of volumes, snapshots and attachments: list with filters, sorting and pages, create, show, update,
delete."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

from magnetar_control.api.query import check_known
from magnetar_control.api.values import Comparison, Number, build_record
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.rows import KEYS, VolumeListing
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Choices, MapOf, Text

from .values import METADATA, NAMES, SIZE, TRUTH, checked_body, is_set, name_fields

#: Limit of rows of a page.
MOST = 1000
COUNT = Number(0, 999_999_999)
#: Filters that are no text.
TYPES = {"bootable": TRUTH, "multiattach": TRUTH, "size": SIZE}
#: Filters by names and values, with their columns; and filters by times.
PAIRS, MOMENTS = {"metadata": "metadata", "glance_metadata": "image_metadata"}, ("created_at", "updated_at")
PAIRS_FORM, COMPARISON, DIRECTION = MapOf(Text(), Text(0, 255), KEYS), Comparison(), Choices("asc", "desc")
#: Parameters of lists that are sorted and cut after they were read.
PAGING = ("limit", "marker", "offset", "sort", "sort_dir", "sort_key")
#: Parameters that are no filters, and aliases of filters. Horizon requests lists without targets of migrations
#: (``no_migration_targets``), which do not exist here.
CONTROLS = ("all_tenants", "limit", "marker", "name~", "no_migration_targets", "offset", "project_id", "sort",
            "sort_dir", "sort_key", "with_count")
ALIASES = {"instance_id": "server_id", "display_name": "name"}
UPDATE = build_record({**NAMES, "metadata": METADATA})


class VolumeResourceRoutes:
    """The base class for the routes of one resource type of the Block Storage API, such as volumes. It contains the
    handlers that all types have. *filters*: columns by which lists can be filtered. *accepted*: the HTTP status of
    requests whose work completes later."""

    name: str
    filters: Sequence[str]
    accepted = 202
    #: A function of the request, a row and whether it is in full, which returns the row in Cinder's form.
    view: Callable[..., Document]
    create: Callable[[Request], Document]

    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service, self.store = service, getattr(service, f"{self.name}s")

    def routes(self) -> list[Guarded]:
        """Return the routes of the resource type, relative to ``/v3``, with their handlers."""
        every, noun_path = f"{self.name}s", f"{self.name}s/{{id}}"
        return [
            guarded_route(f"GET {every}", self.list), guarded_route(f"GET {every}/detail",
                                                                    partial(self.list, detailed=True)),
            guarded_route(f"POST {every}", self.create, self.accepted), guarded_route(f"GET {noun_path}", self.show),
            guarded_route(f"PUT {noun_path}", self.update), guarded_route(f"DELETE {noun_path}", self.delete,
                                                                          self.accepted)]

    def list(self, request: Request, detailed: bool = False) -> Document:
        """Return one page of resources, with a link to the next page if this page is full. *detailed*: with all fields.
        """
        listing = self.listing(request)
        rows, count = self.page(request, listing, detailed)
        shown = [self.view(request, row, detailed) for row in rows]
        answer: Document = {f"{self.name}s": shown}
        if shown and len(shown) == listing.limit:
            answer[f"{self.name}s_links"] = request.next_page(shown[-1]["id"])
        return answer if count is None else {**answer, "count": count}

    def listing(self, request: Request) -> VolumeListing:
        """Return the list request (filters, sort order, limit, …) that the query describes."""
        return parse_volume_listing(request, self.filters)

    def page(self, request: Request, listing: VolumeListing, detailed: bool) -> tuple[Documents, int | None]:
        """Return the rows of the requested page, and the number of rows on all pages; ``None`` in place of the number
        if the query does not request it."""
        rows_and_count: tuple[Documents, int | None] = self.store.list(request.context, listing)
        return rows_and_count

    def show(self, request: Request) -> Document:
        return {self.name: self.view(request, self.store.show(*request.service_arguments()))}

    def changed(self, request: Request) -> Document:
        """Return the resource that the request has created or updated, in the format of the answer to this request."""
        return {self.name: self.view(request, self.store.show(*request.service_arguments()), extended=False)}

    def update(self, request: Request) -> Document:
        """Update name, description and metadata of the resource, and return it."""
        requested = checked_body(request, self.name, UPDATE)
        values = {**name_fields(requested), **{name: requested[name] for name in ("metadata",) if name in requested}}
        self.store.update(*request.service_arguments(), **values)
        return self.changed(request)

    def delete(self, request: Request) -> Document | None:
        """Mark the resource for deletion. Return ``None``; ``AttachmentRoutes`` overrides this method and returns a
        document."""
        self.store.delete(*request.service_arguments())
        return None


def parse_volume_listing(request: Request, columns: Sequence[str]) -> VolumeListing:
    """Return the list request (filters, sort order, limit, …) that the query of *request* describes. *columns*: the
    filters that this list supports. Raises ``InvalidField``, also for an unknown parameter."""
    parameters = {ALIASES.get(name, name): value for name, value in request.query}
    check_known(request, [*columns, *CONTROLS, *(old for old, name in ALIASES.items() if name in columns)])
    filters = {name: TYPES[name].check(parameters[name], name) if name in TYPES else parameters[name]
               for name in columns if name in parameters and name not in (*PAIRS, *MOMENTS)}
    return VolumeListing(
        filters=filters, named=parameters.get("name~"), everywhere=is_set(request, "all_tenants"),
        pairs={PAIRS[name]: parse_pairs(parameters[name], name) for name in columns if name in parameters
               and name in PAIRS},
        compared=[comparison for name in columns if name in parameters and name in MOMENTS
                  for comparison in _compared(name, parameters[name])],
        project_id=parameters.get("project_id"), sort=parse_sort(parameters), marker=parameters.get("marker"),
        limit=min(COUNT.check(parameters.get("limit", MOST), "limit"), MOST),
        offset=COUNT.check(parameters.get("offset", 0), "offset"),
        count=request.extra["version"] >= (3, 45) and is_set(request, "with_count"))


def parse_pairs(text: str, name: str) -> dict[str, str]:
    """Parse *text*, a Python literal such as {'a': 'b'} in the filter *name* (for example metadata), and return the
    dict. Raises ``InvalidField``."""
    try:
        return PAIRS_FORM.check(ast.literal_eval(text), name)  # type: ignore[no-any-return]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InvalidField(name, "must be an object such as {'name': 'value'}", text) from None


def _compared(name: str, text: str) -> list[tuple[str, str, str]]:
    """Parse *text*, the value of the time filter *name*, such as gt:2026-01-01T00:00:00,lt:2026-02-01T00:00:00. Return
    (column, operator, time) tuples. Raises ``InvalidField``."""
    return [(name, *COMPARISON.check(part, name)) for part in text.split(",")]


def parse_sort(parameters: dict[str, str]) -> list[tuple[str, bool]]:
    """Return the sort order in the query *parameters* as (column, descending) pairs. Raises ``InvalidField``."""
    words = [part for part in parameters.get("sort", "").split(",") if part] or [
        f"{parameters.get('sort_key', 'created_at')}:{parameters.get('sort_dir', 'desc')}"]
    return [(name, DIRECTION.check(direction or "desc", "sort") == "desc")
            for name, _colon, direction in (part.partition(":") for part in words)]


def sorted_by(query: dict[str, str], documents: Documents, keys: Sequence[str]) -> Documents:
    """Return *documents* sorted as the *query* requests, or unchanged if it requests no order. *keys*: the allowed sort
    keys. Raises ``InvalidField``."""
    if "sort" in query or "sort_key" in query:
        for name, down in reversed(parse_sort(query)):
            if name not in keys:
                raise InvalidField("sort", f"must be one of {', '.join(keys)}", name)
            documents = sorted(documents, key=itemgetter(name), reverse=down)
    return documents


def page_of_documents(request: Request, plural: str, documents: Documents) -> Document:
    """Return the requested page of *documents* under the key *plural*, with a link to the next page if there is one.
    Raises ``InvalidField``, ``InvalidRequest``."""
    query = dict(request.query)
    start = COUNT.check(query.get("offset", 0), "offset")
    if "marker" in query:
        ids = [document["id"] for document in documents]
        if query["marker"] not in ids:
            raise InvalidRequest(f"marker [{query['marker'][:80]}] not found.")
        start += ids.index(query["marker"]) + 1
    limit = min(COUNT.check(query.get("limit", MOST), "limit"), MOST)
    shown = documents[start:start + limit]
    more = {f"{plural}_links": request.next_page(shown[-1]["id"])} if shown and len(documents) > start + limit else {}
    return {plural: shown, **more}
