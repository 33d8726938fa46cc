# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of tags of Neutron's resources: all tags of a resource, and single ones (API reference, "Standard
attributes tag extension")."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar_control.services.network.resources import NetworkStore
from magnetar_control.services.network.tags import tags_of
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import NotFound

from .attributes import TAG, TAGS


class TagRoutes:
    """The routes of the tags of one resource type. *store*: reads and writes the resources. *path*: the collection in
    the URL, such as ``networks``."""

    def __init__(self, store: NetworkStore, path: str) -> None:
        self.store, self.path = store, path

    def routes(self) -> list[Guarded]:
        """Return the routes of tags, with their handlers; an empty list if the resource type has no tags."""
        if "tags" not in self.store.resource.table.c:
            return []
        every = f"/v2.0/{self.path}/{{id}}/tags"
        tag_path = f"{every}/{{tag}}"
        return [guarded_route(f"GET {every}", self.list), guarded_route(f"PUT {every}", self.replace),
                guarded_route(f"DELETE {every}", self.clear, 204), guarded_route(f"GET {tag_path}", self.check, 204),
                guarded_route(f"PUT {tag_path}", self.add, 201), guarded_route(f"DELETE {tag_path}", self.remove, 204)]

    def list(self, request: Request) -> Document:
        """Return all tags of the resource."""
        return {"tags": tags_of(self.store.show(request.context, request.params["id"]))}

    def replace(self, request: Request) -> Document:
        """Replace all tags of the resource, and return them."""
        tags = TAGS.check(request.json(), "body")["tags"]
        self.store.retag(request.context, request.params["id"], lambda _have: tags)
        return self.list(request)

    def clear(self, request: Request) -> None:
        """Remove all tags of the resource."""
        self.store.retag(request.context, request.params["id"], lambda _have: [])

    def check(self, request: Request) -> None:
        """Check that the resource has the tag in the URL. Raises ``NotFound``."""
        _check(request, self.list(request)["tags"])

    def add(self, request: Request) -> None:
        """Add the tag in the URL to the resource. It is no error if the resource already has the tag."""
        tag = TAG.check(request.params["tag"], "tag")
        self.store.retag(request.context, request.params["id"], lambda have: [*have, tag])

    def remove(self, request: Request) -> None:
        """Remove the tag in the URL from the resource. Raises ``NotFound`` if the resource does not have it."""
        self.store.retag(request.context, request.params["id"], lambda have: [
            tag for tag in _check(request, have) if tag != request.params["tag"]])


def _check(request: Request, have: Sequence[str]) -> Sequence[str]:
    if request.params["tag"] not in have:
        raise NotFound(f"Tag {request.params['tag']} could not be found.", type="TagNotFound")
    return have
