# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that all resources of Keystone have: list, create, show, change, remove; and members of groups. They are
for administrators, except that all users may see themselves, their projects and their domain."""

from __future__ import annotations

from magnetar_control.services.identity import users
from magnetar_control.services.identity.resources import PROJECTS, REGIONS, USERS
from magnetar_control.services.identity.store import SEEN, IdentityStore
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document

from . import projects
from .views import query_filters, render_filtered_page, render_resource, request_object


def identity_resource_routes(store: IdentityStore) -> list[Guarded]:
    """Return the routes that list, create, show, update and delete one resource type of Keystone, such as users.
    *store*: reads and writes the resources of this type."""
    name, plural = store.resource.name, store.resource.plural
    every, resource_path = f"/v3/{plural}", f"/v3/{plural}/{{id}}"

    def listed(request: Request) -> Document:
        return render_filtered_page(request, store.resource, store.list(query_filters(request, store.resource)),
                                    f"?{request.query_string}" if request.query_string else "")

    def shown(request: Request, document: Document) -> Document:
        return {name: render_resource(request, plural, document)}

    def show(request: Request) -> Document:
        more = projects.project_family(request, store.tokens) if store.resource is PROJECTS else {}
        return shown(request, {**store.show(*request.service_arguments()), **more})

    return [
        guarded_route(f"GET {every}", listed, who="token" if store.resource is REGIONS else "admin"),
        guarded_route(f"POST {every}", lambda request: shown(request, store.create(request_object(request, name))), 201,
                      "admin"),
        guarded_route(f"GET {resource_path}", show, who="token" if name in SEEN else "admin"),
        guarded_route(f"PATCH {resource_path}", lambda request: shown(
            request, store.update(request.params["id"], request_object(request, name))),
                      who="admin"),
        guarded_route(f"DELETE {resource_path}", lambda request: store.delete(request.params["id"]), 204, "admin"),
    ]


def group_member_routes(tokens: Tokens) -> list[Guarded]:
    """Return the routes that list, check, add and remove the members of groups."""
    every, member_path = "/v3/groups/{group}/users", "/v3/groups/{group}/users/{user}"
    return [
        guarded_route(f"GET {every}", lambda request: render_filtered_page(request, USERS, users.list_members(
            tokens, request.params["group"], query_filters(request, USERS))), who="admin"),
        guarded_route(f"GET {member_path}", lambda request: users.check_member(tokens, **_ids(request)), 204, "admin"),
        guarded_route(f"PUT {member_path}", lambda request: users.add_member(tokens, **_ids(request)), 204, "admin"),
        guarded_route(f"DELETE {member_path}", lambda request: users.remove_member(tokens, **_ids(request)), 204,
                      "admin"),
    ]


def _ids(request: Request) -> dict[str, str]:
    return {f"{name}_id": id for name, id in request.params.items()}
