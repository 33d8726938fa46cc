# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the Identity API that only projects have: parents and subtree in the answer of a project, and tags."""

from __future__ import annotations

from collections.abc import Callable

from magnetar_control.services.identity.hierarchy import Hierarchy
from magnetar_control.services.identity.resources import PROJECTS
from magnetar_control.services.identity.store import IdentityStore
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound

from .views import is_on, render_resource


def project_family(request: Request, tokens: Tokens) -> Document:
    """Return the parent and child projects of the project in the URL: ``parents`` and ``subtree``, if the query
    requests them (``parents_as_list``, ``subtree_as_ids``, …). Raises ``InvalidRequest`` for a query that requests the
    parents, or the subtree, both as list and as ids."""
    family: Document = {}
    hierarchy, id = Hierarchy(tokens), request.params["id"]
    forms: dict[str, tuple[Callable[..., Document | None], Callable[..., list[Document]]]] = {
        "parents": (hierarchy.parent_ids, hierarchy.parents), "subtree": (hierarchy.subtree_ids, hierarchy.subtree)}
    for name, (ids, documents) in forms.items():
        as_ids, as_list = is_on(request, f"{name}_as_ids"), is_on(request, f"{name}_as_list")
        if as_ids and as_list:
            raise InvalidRequest(f"Give {name}_as_ids or {name}_as_list, and not both.")
        if as_ids:
            family[name] = ids(id)
        elif as_list:
            family[name] = [{"project": render_resource(request, "projects", project)}
                            for project in documents(request.context, id)]
    return family


def project_tag_routes(store: IdentityStore) -> list[Guarded]:
    """Return the routes of project tags (Identity API v3, "Project tags"). Only administrators may change tags."""
    def read(request: Request) -> list[str]:
        tags: list[str] = store.show(request.context, request.params["id"])["tags"]
        return tags

    def write(request: Request, change: Callable[[list[str]], list[str]]) -> Document:
        return {"tags": store.change_tags(request.params["id"], change)}

    def put(request: Request) -> Document:
        content = request.json()
        if not isinstance(content, dict) or "tags" not in content:
            raise InvalidField("tags", "is required: a list of texts")
        return write(request, lambda _old: content["tags"])

    def check_there(tag: str, have: list[str]) -> list[str]:
        if tag not in have:
            raise NotFound(f"Could not find project tag: {tag}.")
        return have

    def has(request: Request) -> None:
        check_there(request.params["tag"], read(request))

    def add(request: Request) -> Answer:
        tag = request.params["tag"]
        write(request, lambda have: have if tag in have else [*have, tag])
        return Answer(b"", 201, {"Location": f"{request.base}{request.path}"})

    def drop(request: Request) -> None:
        tag = request.params["tag"]
        write(request, lambda have: [existing for existing in check_there(tag, have) if existing != tag])

    every = f"/v3/{PROJECTS.plural}/{{id}}/tags"
    return [guarded_route(f"GET {every}", lambda request: {"tags": read(request)}),
            guarded_route(f"PUT {every}", put, who="admin"),
            guarded_route(f"DELETE {every}", lambda request: write(request, lambda _old: []) and None, 204, "admin"),
            guarded_route(f"GET {every}/{{tag}}", has, 204), guarded_route(f"PUT {every}/{{tag}}", add, 201, "admin"),
            guarded_route(f"DELETE {every}/{{tag}}", drop, 204, "admin")]
