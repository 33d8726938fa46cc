# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of tags of Neutron's resources: all of one, and single ones (API reference, "Standard attributes tag
extension")."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar_control.services import Document
from magnetar_control.services.network.resources import NetworkStore
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import NotFound

from .attributes import TAG, TAGS
from .resources import tags_of


class TagRoutes:
    """The routes of tags of the resources of a *store*, which are at *path*; none of those that can have none."""

    def __init__(self, store: NetworkStore, path: str) -> None:
        self.store, self.path = store, path

    def routes(self) -> list[Guarded]:
        """Where they are."""
        if "tags" not in self.store.resource.table.c:
            return []
        every = f"/v2.0/{self.path}/{{id}}/tags"
        one = f"{every}/{{tag}}"
        return [route(f"GET {every}", self.list), route(f"PUT {every}", self.replace),
                route(f"DELETE {every}", self.clear, 204), route(f"GET {one}", self.check, 204),
                route(f"PUT {one}", self.add, 201), route(f"DELETE {one}", self.remove, 204)]

    def list(self, request: Request) -> Document:
        """All tags."""
        return {"tags": tags_of(self.store.show(request.context, request.params["id"]))}

    def replace(self, request: Request) -> Document:
        """These tags and no others."""
        wanted = TAGS.check(request.json(), "body")["tags"]
        self.store.retag(request.context, request.params["id"], lambda _have: wanted)
        return self.list(request)

    def clear(self, request: Request) -> None:
        """No tags."""
        self.store.retag(request.context, request.params["id"], lambda _have: [])

    def check(self, request: Request) -> None:
        """Whether it has the tag. Raises ``NotFound``."""
        _check(request, self.list(request)["tags"])

    def add(self, request: Request) -> None:
        """One more; again is no error."""
        tag = TAG.check(request.params["tag"], "tag")
        self.store.retag(request.context, request.params["id"], lambda have: [*have, tag])

    def remove(self, request: Request) -> None:
        """One less. Raises ``NotFound``."""
        self.store.retag(request.context, request.params["id"], lambda have: [
            one for one in _check(request, have) if one != request.params["tag"]])


def _check(request: Request, have: Sequence[str]) -> Sequence[str]:
    if request.params["tag"] not in have:
        raise NotFound(f"Tag {request.params['tag']} could not be found.", type="TagNotFound")
    return have
