# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that all resources have: list, create, show, change, remove; and members of groups. For administrators,
but that everybody may see themselves, their projects and their domain."""

from __future__ import annotations

from magnetar_control.services import Document
from magnetar_control.services.identity import users
from magnetar_control.services.identity.resources import PROJECTS, REGIONS, USERS
from magnetar_control.services.identity.store import SEEN, IdentityStore
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route

from . import projects
from .views import body, filters, resource, some


def routes(store: IdentityStore) -> list[Guarded]:
    """The routes of one resource."""
    name, plural = store.resource.name, store.resource.plural
    every, one = f"/v3/{plural}", f"/v3/{plural}/{{id}}"

    def listed(request: Request) -> Document:
        return some(request, store.resource, store.list(filters(request, store.resource)),
                    f"?{request.query_string}" if request.query_string else "")

    def shown(request: Request, found: Document) -> Document:
        return {name: resource(request, plural, found)}

    def show(request: Request) -> Document:
        more = projects.family(request, store.tokens) if store.resource is PROJECTS else {}
        return shown(request, {**store.show(*request.named()), **more})

    return [
        route(f"GET {every}", listed, who="token" if store.resource is REGIONS else "admin"),
        route(f"POST {every}", lambda request: shown(request, store.create(body(request, name))), 201, "admin"),
        route(f"GET {one}", show, who="token" if name in SEEN else "admin"),
        route(f"PATCH {one}", lambda request: shown(request, store.update(request.params["id"], body(request, name))),
              who="admin"),
        route(f"DELETE {one}", lambda request: store.delete(request.params["id"]), 204, "admin"),
    ]


def members(tokens: Tokens) -> list[Guarded]:
    """The routes of the members of groups."""
    every, one = "/v3/groups/{group}/users", "/v3/groups/{group}/users/{user}"
    return [
        route(f"GET {every}", lambda request: some(request, USERS, users.list_members(
            tokens, request.params["group"], filters(request, USERS))), who="admin"),
        route(f"GET {one}", lambda request: users.check_member(tokens, **_ids(request)), 204, "admin"),
        route(f"PUT {one}", lambda request: users.add_member(tokens, **_ids(request)), 204, "admin"),
        route(f"DELETE {one}", lambda request: users.remove_member(tokens, **_ids(request)), 204, "admin"),
    ]


def _ids(request: Request) -> dict[str, str]:
    return {f"{name}_id": id for name, id in request.params.items()}
