# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of an image's members."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import record
from magnetar_control.services.image.members import Members
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.values import Choices, Text

from . import views

ADD = record({"member": Text(1, 255)}, "member")
ANSWER = record({"status": Choices("pending", "accepted", "rejected")}, "status")


class MemberRoutes:
    """What the routes do."""

    def __init__(self, members: Members) -> None:
        self.members = members

    def routes(self) -> list[Guarded]:
        """Where they are."""
        every = "/v2/images/{id}/members"
        one = every + "/{member}"
        return [Guarded(method="GET", path=every, handler=self.list),
                Guarded(method="POST", path=every, handler=self.add),
                Guarded(method="GET", path=one, handler=self.show),
                Guarded(method="PUT", path=one, handler=self.answer),
                Guarded(method="DELETE", path=one, handler=self.remove)]

    def list(self, request: Request) -> Answer:
        """All members for the owner; for a member itself."""
        found = self.members.list(request.context, request.params["id"])
        return Answer({"members": [views.member(row) for row in found], "schema": "/v2/schemas/members"})

    def show(self, request: Request) -> Answer:
        """One member."""
        return Answer(views.member(self.members.show(*_named(request))))

    def add(self, request: Request) -> Answer:
        """Share the image with a project."""
        project = ADD.check(_known(request.json(), "member"), "")["member"]
        return Answer(views.member(self.members.add(request.context, request.params["id"], project)))

    def answer(self, request: Request) -> Answer:
        """The member's own answer."""
        status = ANSWER.check(_known(request.json(), "status"), "")["status"]
        return Answer(views.member(self.members.answer(*_named(request), status)))

    def remove(self, request: Request) -> Answer:
        """Share it with the project no more."""
        self.members.remove(*_named(request))
        return Answer(status=204)


def _named(request: Request) -> tuple[Any, str, str]:
    return request.context, request.params["id"], request.params["member"]


def _known(body: Any, name: str) -> Any:
    """*body* with the one key that is looked at."""
    return {key: value for key, value in body.items() if key == name} if isinstance(body, dict) else body
