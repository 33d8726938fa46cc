# SPDX-License-Identifier: GPL-3.0-or-later
"""What belongs to a user: projects, password, groups, application credentials."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.store.database import now
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthenticated

from . import grants, passwords, tables
from .authentication import Authentication
from .bearers import Bearers
from .nouns import DESCRIPTION, GROUPS, NAME, PROJECTS, USERS, Field, Row, checked_password

UNRESTRICTED = Field(name="unrestricted", type=bool)
SECRET = Field(name="secret", longest=passwords.LONGEST)


class People:
    """The routes below ``/v3/users/{user}`` and ``/v3/groups/{group}/users``."""

    def __init__(self, bearers: Bearers, authentication: Authentication) -> None:
        self.bearers, self.authentication = bearers, authentication

    def routes(self) -> list[Guarded]:
        """All of them. Users reach their own only; members of groups are for administrators."""
        own, member = "/v3/users/{user}", "/v3/groups/{group}/users"
        credentials = f"{own}/application_credentials"
        return [
            Guarded(method="GET", path=f"{own}/projects", handler=self._own(self.projects)),
            Guarded(method="POST", path=f"{own}/password", handler=self._own(self.password)),
            Guarded(method="GET", path=f"{own}/groups", handler=self._own(self.groups)),
            Guarded(method="GET", path=credentials, handler=self._own(self.credentials)),
            Guarded(method="POST", path=credentials, handler=self._own(self.new_credential)),
            Guarded(method="GET", path=credentials + "/{id}", handler=self._own(self.credential)),
            Guarded(method="DELETE", path=credentials + "/{id}", handler=self._own(self.drop_credential)),
            Guarded(method="GET", path=member, handler=self.members, who="admin"),
            Guarded(method="GET", path=member + "/{user}", handler=self.is_member, who="admin"),
            Guarded(method="PUT", path=member + "/{user}", handler=self.join, who="admin"),
            Guarded(method="DELETE", path=member + "/{user}", handler=self.leave, who="admin"),
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
        with self.bearers.database.read() as connection:
            USERS.row(connection, user_id)
        return self.authentication.of_user(request, user_id, PROJECTS, f"{request.base}/v3/users/{user_id}/projects")

    def password(self, request: Request, user_id: str) -> Answer:
        """Change it, knowing the old one. All tokens of the user end."""
        body = request.json()
        given = body.get("user") if isinstance(body, dict) else None
        if not isinstance(given, dict) or not isinstance(given.get("original_password"), str):
            raise InvalidRequest('The body must be {"user": {"original_password": text, "password": text}}.')
        new = checked_password(given.get("password"))
        with self.bearers.database.read() as connection:
            row = USERS.row(connection, user_id)
        if not passwords.matches(given["original_password"], row["password"]):
            raise Unauthenticated("original_password is not the user's password.")
        kept = passwords.hashed(new)
        with self.bearers.change() as connection:
            user = tables.users
            connection.execute(update(user).where(user.c.id == user_id).values(
                password=kept, epoch=user.c.epoch + 1, updated_at=now()))
        return Answer(status=204)

    def groups(self, request: Request, user_id: str) -> Answer:
        """Groups of which the user is a member."""
        with self.bearers.database.read() as connection:
            USERS.row(connection, user_id)
            rows = GROUPS.rows(connection, [tables.groups.c.id.in_(grants.groups_of(user_id)),
                                            *GROUPS.where(request.query)])
        return _list(request, "groups", [GROUPS.document(row, f"{request.base}/v3") for row in rows])

    def members(self, request: Request) -> Answer:
        """Users of a group."""
        with self.bearers.database.read() as connection:
            group = GROUPS.row(connection, request.params["group"])
            ids = select(tables.members.c.user_id).where(tables.members.c.group_id == group["id"])
            rows = USERS.rows(connection, [tables.users.c.id.in_(ids), *USERS.where(request.query)])
        return _list(request, "users", [USERS.document(row, f"{request.base}/v3") for row in rows])

    def is_member(self, request: Request) -> Answer:
        """204 or 404."""
        with self.bearers.database.read() as connection:
            if connection.execute(select(tables.members).where(*_member(connection, request))).first() is None:
                raise NotFound("The user is no member of the group.")
        return Answer(status=204)

    def join(self, request: Request) -> Answer:
        """Make a user member; nothing when it is."""
        with self.bearers.change() as connection:
            if connection.execute(select(tables.members).where(*_member(connection, request))).first() is None:
                connection.execute(insert(tables.members).values(
                    group_id=request.params["group"], user_id=request.params["user"]))
        return Answer(status=204)

    def leave(self, request: Request) -> Answer:
        """Make it member no more."""
        with self.bearers.change() as connection:
            if not connection.execute(delete(tables.members).where(*_member(connection, request))).rowcount:
                raise NotFound("The user is no member of the group.")
        return Answer(status=204)

    def credentials(self, request: Request, user_id: str) -> Answer:
        """Application credentials of the user."""
        query = dict(request.query)
        own = tables.credentials.c
        with self.bearers.database.read() as connection:
            USERS.row(connection, user_id)
            rows = connection.execute(select(tables.credentials).where(
                own.user_id == user_id, own.name == query.get("name", own.name)).order_by(own.name)).mappings().all()
            roles = {role["id"]: role for role in grants.names(
                connection, {id for row in rows for id in orjson.loads(row["roles"])})}
        return _list(request, "application_credentials", [_shown(dict(row), roles, request) for row in rows])

    def credential(self, request: Request, user_id: str) -> Answer:
        """One of them."""
        with self.bearers.database.read() as connection:
            row = _credential(connection, request.params["id"], user_id)
            roles = {role["id"]: role for role in grants.names(connection, orjson.loads(row["roles"]))}
        return Answer({"application_credential": _shown(row, roles, request)})

    def new_credential(self, request: Request, user_id: str) -> Answer:
        """A new one for the project of the token, with the roles named, or all of the token's. The secret is told
        once."""
        bearer = request.extra["bearer"]
        if user_id != bearer.context.user_id:
            raise Forbidden("Application credentials are made by the user whose they are.")
        if bearer.context.project_id is None:
            raise InvalidRequest("An application credential is for a project; ask with a token that has one.")
        _unrestricted(request)
        body = request.json()
        given = body.get("application_credential") if isinstance(body, dict) else None
        if not isinstance(given, dict):
            raise InvalidRequest('The body must be an object {"application_credential": {…}}.')
        if given.get("access_rules"):
            raise InvalidRequest("access_rules are not supported here; give the credential fewer roles instead.")
        secret = SECRET.checked(given.get("secret")) or passwords.drawn()
        held = {role["id"]: role for role in _roles(given.get("roles"), bearer.roles)}
        row: dict[str, Any] = {
            "id": uuid.uuid4().hex, "user_id": user_id, "project_id": bearer.context.project_id,
            "name": NAME.checked(given.get("name")), "description": DESCRIPTION.checked(given.get("description")),
            "secret": passwords.hashed(secret),
            "unrestricted": bool(UNRESTRICTED.checked(given.get("unrestricted"))),
            "roles": orjson.dumps(list(held)).decode(),
            "expires_at": _expiry(given.get("expires_at")), "created_at": now(), "extra": "{}"}
        try:
            with self.bearers.change() as connection:
                connection.execute(insert(tables.credentials).values(row))
        except IntegrityError as error:
            raise Conflict(f"There is an application credential named {row['name']} already.") from error
        return Answer({"application_credential": {**_shown(row, held, request), "secret": secret}}, 201)

    def drop_credential(self, request: Request, user_id: str) -> Answer:
        """Remove it; its tokens end."""
        _unrestricted(request)
        with self.bearers.change() as connection:
            row = _credential(connection, request.params["id"], user_id)
            connection.execute(delete(tables.credentials).where(tables.credentials.c.id == row["id"]))
        return Answer(status=204)


def _list(request: Request, name: str, documents: list[dict[str, Any]]) -> Answer:
    return Answer({name: documents, "links": {"next": None, "previous": None, "self": request.base + request.path}})


def _member(connection: Connection, request: Request) -> list[Any]:
    group, user = GROUPS.row(connection, request.params["group"]), USERS.row(connection, request.params["user"])
    return [tables.members.c.group_id == group["id"], tables.members.c.user_id == user["id"]]


def _unrestricted(request: Request) -> None:
    credential = request.extra["bearer"].credential
    if credential and credential["restricted"]:
        raise Forbidden("The token was got with an application credential that is restricted: such a one neither "
                        "makes nor removes application credentials.")


def _credential(connection: Connection, id: str, user_id: str) -> Row:
    own = tables.credentials.c
    row = connection.execute(select(tables.credentials).where(own.id == id, own.user_id == user_id)).mappings().first()
    if row is None:
        raise NotFound(f"Could not find application credential: {id}.")
    return dict(row)


SHOWN = ("id", "name", "description", "user_id", "project_id", "unrestricted", "expires_at")


def _shown(row: Row, roles: Mapping[str, dict[str, str]], request: Request) -> dict[str, Any]:
    return {**{name: row[name] for name in SHOWN}, "system": None,
            "roles": [roles[id] for id in orjson.loads(row["roles"]) if id in roles],
            "links": {"self": f"{request.base}/v3/users/{row['user_id']}/application_credentials/{row['id']}"}}


def _roles(wanted: Any, held: tuple[dict[str, str], ...]) -> list[dict[str, str]]:
    """The held roles that are named by id or name; all when none is named."""
    if not wanted:
        return list(held)
    if not isinstance(wanted, list) or not all(isinstance(role, dict) for role in wanted):
        raise InvalidRequest("roles must be a list of objects with id or name.")
    found = []
    for role in wanted:
        match = [own for own in held if own["id"] == role.get("id") or own["name"] == role.get("name")]
        if not match:
            raise InvalidRequest(f"roles names {role.get('name') or role.get('id')}, which your token has not.")
        found += match
    return found


def _expiry(text: Any) -> str | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidRequest("expires_at must be a time such as 2030-01-31T12:00:00.") from None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds")
