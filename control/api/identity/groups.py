# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of groups; for administrators."""

from __future__ import annotations

from magnetar_control.services.identity import groups
from magnetar_control.services.identity.resources import USERS
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded

from . import views
from .query import filters


class GroupRoutes:
    """The routes below ``/v3/groups/{group}/users``."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def routes(self) -> list[Guarded]:
        """All of them."""
        every = "/v3/groups/{group}/users"
        one = every + "/{user}"
        return [Guarded(method="GET", path=every, handler=self.list, who="admin"),
                Guarded(method="GET", path=one, handler=self.show, who="admin"),
                Guarded(method="PUT", path=one, handler=self.add, who="admin"),
                Guarded(method="DELETE", path=one, handler=self.remove, who="admin")]

    def list(self, request: Request) -> Answer:
        """Users of a group."""
        return views.resources(request, "users",
                               groups.list_members(self.tokens, request.params["group"], filters(request, USERS)))

    def show(self, request: Request) -> Answer:
        """204 or 404."""
        groups.check_member(self.tokens, request.params["group"], request.params["user"])
        return Answer(status=204)

    def add(self, request: Request) -> Answer:
        """Make a user member; nothing when it is."""
        groups.add_member(self.tokens, request.params["group"], request.params["user"])
        return Answer(status=204)

    def remove(self, request: Request) -> Answer:
        """Make a user member no more."""
        groups.remove_member(self.tokens, request.params["group"], request.params["user"])
        return Answer(status=204)
