# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that all resources have: list, create, show, change, remove. For administrators, but that everybody may
see themselves, their projects and their domain."""

from __future__ import annotations

from magnetar_control.services import Document
from magnetar_control.services.identity.resources import REGIONS
from magnetar_control.services.identity.store import SEEN, IdentityStore
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded

from . import views
from .query import body, filters


class IdentityRoutes:
    """The routes of one resource."""

    def __init__(self, store: IdentityStore) -> None:
        self.store, self.name, self.plural = store, store.resource.name, store.resource.plural

    def routes(self) -> list[Guarded]:
        """The routes of the collection and of its members."""
        every, one = f"/v3/{self.plural}", f"/v3/{self.plural}/{{id}}"
        see = "token" if self.name in SEEN else "admin"
        listing = "token" if self.store.resource is REGIONS else "admin"
        return [
            Guarded(method="GET", path=every, handler=self.list, who=listing),
            Guarded(method="POST", path=every, handler=self.create, who="admin"),
            Guarded(method="GET", path=one, handler=self.show, who=see),
            Guarded(method="PATCH", path=one, handler=self.update, who="admin"),
            Guarded(method="DELETE", path=one, handler=self.delete, who="admin"),
        ]

    def list(self, request: Request) -> Answer:
        """All, or those under the filters of the query."""
        query = f"?{request.query_string}" if request.query_string else ""
        return views.resources(request, self.plural, self.store.list(filters(request, self.store.resource)),
                               f"{request.base}/v3/{self.plural}{query}")

    def show(self, request: Request) -> Answer:
        """One; 404 when the user may not know of it."""
        return self._answer(request, self.store.show(request.context, request.params["id"]))

    def create(self, request: Request) -> Answer:
        """A new one."""
        return self._answer(request, self.store.create(body(request, self.name)), 201)

    def update(self, request: Request) -> Answer:
        """Change what is given."""
        return self._answer(request, self.store.update(request.params["id"], body(request, self.name)))

    def delete(self, request: Request) -> Answer:
        """Remove it, with what belongs to it."""
        self.store.delete(request.params["id"])
        return Answer(status=204)

    def _answer(self, request: Request, found: Document, status: int = 200) -> Answer:
        return Answer({self.name: views.resource(request, self.plural, found)}, status)
