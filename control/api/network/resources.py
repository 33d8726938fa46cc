# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that all of Neutron's resources have: list, show, create (one or many), update, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from magnetar_control.api.values import Number, Truth
from magnetar_control.services import Document, Page
from magnetar_control.services.network.resources import Resources
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.fields import Record

from . import attributes, views
from .attributes import NAMES

#: Parameters of a list that are no filters.
CONTROLS = frozenset({"fields", "limit", "marker", "page_reverse", "sort_dir", "sort_key"})
#: Attributes by which lists are filtered and sorted besides those that a body has.
READ_ONLY = frozenset({"id", "status", "created_at"})
COUNT = Number(0, 999_999_999)


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a resource looks over HTTP: names, the attributes of bodies, and a view of (resource, for an admin)."""

    name: str
    plural: str
    path: str
    body: Record
    view: Callable[[Mapping[str, Any], bool], Document]

    def attribute(self, name: str) -> Any:
        """The value type of an attribute; ``None`` for another name."""
        return next((field.value for field in self.body.fields if field.name == name), None)


FORMS = tuple(Form(name=name, plural=f"{name}s", path=f"{name}s".replace("_", "-"), body=body, view=view)
              for name, body, view in (
                  ("network", attributes.NETWORK, views.network), ("subnet", attributes.SUBNET, views.subnet),
                  ("port", attributes.PORT, views.port),
                  ("security_group", attributes.SECURITY_GROUP, views.security_group),
                  ("security_group_rule", attributes.SECURITY_GROUP_RULE, views.security_group_rule)))


class ResourceRoutes:
    """The routes of one resource."""

    def __init__(self, resources: Resources, form: Form) -> None:
        self.resources, self.form = resources, form

    def routes(self) -> list[Guarded]:
        """Where they are."""
        path = f"/v2.0/{self.form.path}"
        routes = [Guarded(method="GET", path=path, handler=self.list),
                  Guarded(method="POST", path=path, handler=self.create),
                  Guarded(method="GET", path=path + "/{id}", handler=self.show),
                  Guarded(method="DELETE", path=path + "/{id}", handler=self.delete)]
        if self.resources.resource.update:
            routes.append(Guarded(method="PUT", path=path + "/{id}", handler=self.update))
        return routes

    def list(self, request: Request) -> Answer:
        """Those that fit the query, sorted and in pages."""
        query = Query(self.form, self.resources, request)
        page = query.page()
        found = self.resources.list(request.context, page)
        answer: Document = {self.form.plural: [query.picked(self._view(request, one)) for one in found]}
        if page.limit and len(found) == page.limit:
            answer[f"{self.form.plural}_links"] = [{"rel": "next", "href": query.next(found[-1]["id"])}]
        return Answer(answer)

    def show(self, request: Request) -> Answer:
        """One."""
        found = self.resources.show(request.context, request.params["id"])
        return Answer({self.form.name: Query(self.form, self.resources, request).picked(self._view(request, found))})

    def create(self, request: Request) -> Answer:
        """One, or many in one transaction."""
        name, plural, body = self.form.name, self.form.plural, request.json()
        many = isinstance(body, dict) and isinstance(body.get(plural), list)
        wanted = body[plural] if many else [self._inner(body)]
        made = self.resources.create(request.context, *(
            _named(self.form.body.check(one, name)) for one in wanted))
        shown = [self._view(request, one) for one in made]
        return Answer({plural: shown} if many else {name: shown[0]}, 201)

    def update(self, request: Request) -> Answer:
        """Change what is given."""
        values = _named(self.form.body.changes(self._inner(request.json()), self.form.name))
        found = self.resources.update(request.context, request.params["id"], values)
        return Answer({self.form.name: self._view(request, found)})

    def delete(self, request: Request) -> Answer:
        """Remove it."""
        self.resources.delete(request.context, request.params["id"])
        return Answer(None, 204)

    def _inner(self, body: Any) -> Any:
        if not isinstance(body, dict) or self.form.name not in body:
            raise InvalidRequest(f"Unable to find '{self.form.name}' in request body")
        return body[self.form.name]

    def _view(self, request: Request, found: Document) -> Document:
        return self.form.view(found, request.context.is_admin)


def _named(values: Document) -> Document:
    """*values* by the service's names. Of project_id and tenant_id the first that says something counts."""
    found = {NAMES.get(name, name): value for name, value in values.items() if name not in ("project_id", "tenant_id")}
    project = values.get("project_id") or values.get("tenant_id")
    return {**found, "project_id": project} if project else found


class Query:
    """The query of a list: filters, fields, sort_key and sort_dir, limit and marker."""

    def __init__(self, form: Form, resources: Resources, request: Request) -> None:
        self.form, self.resource, self.request = form, resources.resource, request
        self.given: dict[str, list[str]] = {}
        for name, value in request.query:
            self.given.setdefault(name, []).append(value)

    def page(self) -> Page:
        """What the list is asked for. Raises ``InvalidRequest`` for a parameter that is not known."""
        keys, directions = self.given.get("sort_key", []), self.given.get("sort_dir", [])
        sort = [(self._known(name, "sorting"), directions[at:at + 1] == ["desc"]) for at, name in enumerate(keys)]
        try:
            limit = COUNT.check(self.given.get("limit", ["0"])[-1], "limit")
        except InvalidField as error:
            raise InvalidRequest(error.message, type="BadRequest") from None
        return Page(filters=self._filters(), sort=sort, limit=limit, marker=self.given.get("marker", [None])[-1])

    def _filters(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for name, values in self.given.items():
            if name in CONTROLS:
                continue
            known = self._known(name, "filtering")
            value = None if known in self.resource.filters else self.form.attribute(name)
            kind = COUNT if isinstance(value, Number) else value if isinstance(value, Truth) else None
            found[known] = values if kind is None else [kind.check(one, name) for one in values]
        return found

    def _known(self, name: str, what: str) -> str:
        """The service's name of an attribute. What only admins see, others do not find."""
        known = NAMES.get(name, name)
        hidden = known in self.resource.admin and name in NAMES and not self.request.context.is_admin
        if known in self.resource.filters and what == "filtering":
            return known
        if hidden or (name not in READ_ONLY and self.form.attribute(name) is None):
            raise InvalidRequest(f"['{name}'] is invalid attribute for {what}")
        return known

    def next(self, last: str) -> str:
        """URL of the next page."""
        query = [(name, value) for name, value in self.request.query if name != "marker"]
        return f"{self.request.base}{self.request.path}?{urlencode([*query, ('marker', last)])}"

    def picked(self, document: Document) -> Document:
        """Only the ``fields`` asked for."""
        fields = self.given.get("fields")
        return {name: document[name] for name in document if name in fields} if fields else document
