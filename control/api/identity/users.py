# SPDX-License-Identifier: GPL-3.0-or-later
"""What belongs to a user: projects, password, groups, application credentials."""

from __future__ import annotations

from collections.abc import Callable

from magnetar_control.services.identity import application_credentials, users
from magnetar_control.services.identity.resources import GROUPS, PROJECTS
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidRequest, NotFound

from . import views
from .query import body, filters


class UserRoutes:
    """The routes below ``/v3/users/{user}``. Users reach their own only."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def routes(self) -> list[Guarded]:
        """All of them."""
        own = "/v3/users/{user}"
        credentials = f"{own}/application_credentials"
        return [
            Guarded(method="GET", path=f"{own}/projects", handler=self._own(self.projects)),
            Guarded(method="POST", path=f"{own}/password", handler=self._own(self.password)),
            Guarded(method="GET", path=f"{own}/groups", handler=self._own(self.groups)),
            Guarded(method="GET", path=credentials, handler=self._own(self.credentials)),
            Guarded(method="POST", path=credentials, handler=self._own(self.create_credential)),
            Guarded(method="GET", path=credentials + "/{id}", handler=self._own(self.credential)),
            Guarded(method="DELETE", path=credentials + "/{id}", handler=self._own(self.delete_credential)),
        ]

    def _own(self, handler: Callable[[Request, str], Answer]) -> Callable[[Request], Answer]:
        def guarded(request: Request) -> Answer:
            user_id = request.params["user"]
            if user_id != request.context.user_id and not request.context.is_admin:
                raise NotFound(f"Could not find user: {user_id}.")
            return handler(request, user_id)

        return guarded

    def projects(self, request: Request, user_id: str) -> Answer:
        """Projects on which the user has a role."""
        found = users.targets(self.tokens, user_id, PROJECTS, filters(request, PROJECTS), check=True)
        return views.resources(request, "projects", found)

    def password(self, request: Request, user_id: str) -> Answer:
        """Change it, knowing the old one."""
        given = body(request, "user")
        if not isinstance(given.get("original_password"), str):
            raise InvalidRequest('The body must be {"user": {"original_password": text, "password": text}}.')
        users.change_password(self.tokens, user_id, given["original_password"], given.get("password"))
        return Answer(status=204)

    def groups(self, request: Request, user_id: str) -> Answer:
        """Groups of which the user is a member."""
        return views.resources(request, "groups", users.groups(self.tokens, user_id, filters(request, GROUPS)))

    def credentials(self, request: Request, user_id: str) -> Answer:
        """Application credentials of the user."""
        found = application_credentials.list_all(self.tokens, user_id, dict(request.query).get("name"))
        return views.listed("application_credentials", (views.credential(request, one) for one in found),
                            request.base + request.path)

    def credential(self, request: Request, user_id: str) -> Answer:
        """One of them."""
        found = application_credentials.show(self.tokens, user_id, request.params["id"])
        return Answer({"application_credential": views.credential(request, found)})

    def create_credential(self, request: Request, user_id: str) -> Answer:
        """A new one."""
        made = application_credentials.create(self.tokens, request.extra["token"], user_id,
                                              body(request, "application_credential"))
        return Answer({"application_credential": views.credential(request, made)}, 201)

    def delete_credential(self, request: Request, user_id: str) -> Answer:
        """Remove it; its tokens end."""
        application_credentials.remove(self.tokens, request.extra["token"], user_id, request.params["id"])
        return Answer(status=204)
