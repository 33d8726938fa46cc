# SPDX-License-Identifier: GPL-3.0-or-later
"""os-keypairs: public keys of users. Until 2.91 pairs are made here on request; the private half is given out once and
kept nowhere."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.values import Anything, ByVersion, Wrapped, record, since
from magnetar_control.compute import keys
from magnetar_control.compute import quotas as quota
from magnetar_control.store import keypairs, quotas
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound
from magnetar_core.fields import Field
from magnetar_core.values import Choices, Text

RULE = "os_compute_api:os-keypairs:"
PATH = "/os-keypairs"
#: Gates.
TYPED, PAGED, STRICT = 2, 35, 75
NAME = ByVersion(
    (None, "2.91", Text(1, 255, r"(?! )[a-zA-Z0-9_ -]+(?<! )",
                        "may have letters, digits, blanks inside, - and _ only")),
    ("2.92", None, Text(1, 255, r"(?! )[a-zA-Z0-9_ @.-]+(?<! )",
                        "may have letters, digits, blanks inside, and - _ @ . only")))
USER = Query(value=Text(1, 255), since=10)


def _user(call: Call, what: str, given: str | None) -> str:
    """Whose key pairs are meant. Raises ``Forbidden`` when these are another's and the caller is no administrator."""
    user = given or call.context.user_id
    call.cloud.policy.check(RULE + what, call.context, call.project, user)
    return user


def _shown(call: Call, row: Any, *names: str) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("name", "public_key", "fingerprint", *names)}
    if call.version >= TYPED:
        shown["type"] = row.type
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET /os-keypairs."""
    user = _user(call, "index", call.query.get("user_id"))
    paged = call.version >= PAGED
    limit, marker = (size(call), call.query.get("marker")) if paged else (None, None)
    with call.cloud.store.api.read() as connection:
        rows = keypairs.page(connection, user, limit, marker)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    answer: dict[str, Any] = {"keypairs": [{"keypair": _shown(call, row)} for row in rows]}
    if limit is not None and len(rows) >= limit > 0:
        answer["keypairs_links"] = next_link(call, PATH, rows[-1].name)
    return answer


def _missing(name: str, user: str) -> MagnetarError:
    return NotFound(f"Keypair {name[:255]} not found for user {user}")


def show(call: Call) -> dict[str, Any]:
    """GET /os-keypairs/{id}; the id is the name."""
    user, name = _user(call, "show", call.query.get("user_id")), call.params["id"]
    with call.cloud.store.api.read() as connection:
        row = keypairs.find(connection, user, name)
    if row is None:
        raise _missing(name, user)
    return {"keypair": {**_shown(call, row, "user_id", "created_at", "updated_at"), "id": row.number,
                        "deleted": False, "deleted_at": None}}


_KEY = Text(1, 16384)
BODY = Wrapped("keypair", record({
    "name": NAME, "type": since("2.2", Choices("ssh", "x509")), "user_id": since("2.10", Text(1, 255)),
    "public_key": _KEY}, "name"))
IMPORT_BODY = Wrapped("keypair", record({
    "name": NAME, "type": Choices("ssh", "x509"), "user_id": Text(1, 255),
    "public_key": Field(_KEY, "", on="create", required=True)}, "name"))


def create(call: Call) -> dict[str, Any]:
    """POST /os-keypairs: keep a public key, or (until 2.91, without one) make a pair."""
    want = call.body
    user = _user(call, "create", want.get("user_id"))
    kind, name, private = want.get("type", "ssh"), want["name"], None
    most = quota.limits(call, user=user)["key_pairs"]
    _room(call, user, name, most)
    if "public_key" in want:
        public, mark = want["public_key"], keys.fingerprint(kind, want["public_key"])
    else:
        private, public, mark = keys.made(kind, user)
    with call.cloud.store.api.write() as connection:
        if most >= 0:
            quotas.turn(connection, f"key pairs {user}")
        quota.check_keypairs(most, keypairs.count(connection, user))
        new = keypairs.make(connection, user_id=user, name=name, type=kind, fingerprint=mark, public_key=public)
    if not new:
        raise _exists(name)
    shown = {"name": name, "fingerprint": mark, "public_key": public, "user_id": user}
    if private is not None:
        shown["private_key"] = private
    if call.version >= TYPED:
        shown["type"] = kind
    return {"keypair": shown}


def _room(call: Call, user: str, name: str, most: int) -> None:
    """Refuse before a pair is made in vain."""
    with call.cloud.store.api.read() as connection:
        if keypairs.find(connection, user, name) is not None:
            raise _exists(name)
        quota.check_keypairs(most, keypairs.count(connection, user))


def _exists(name: str) -> MagnetarError:
    return Conflict(f"Key pair '{name}' already exists.")


def delete(call: Call) -> Answer:
    """DELETE /os-keypairs/{id}; servers keep the public key."""
    user, name = _user(call, "delete", call.query.get("user_id")), call.params["id"]
    with call.cloud.store.api.write() as connection:
        gone = keypairs.remove(connection, user, name)
    if not gone:
        raise _missing(name, user)
    return Answer(None, call.operation.success(call.version))


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="os-keypairs.list", strict=STRICT, query={
        "user_id": USER, "limit": Query(value=PAGE["limit"].value, since=PAGED),
        "marker": Query(value=Anything(), since=PAGED)}),
    Operation(method="POST", path=PATH, handler=create, name="os-keypairs.create", body=BODY, until=91,
              status=((1, 200), (TYPED, 201))),
    Operation(method="POST", path=PATH, handler=create, name="os-keypairs.create", body=IMPORT_BODY, since=92,
              status=201),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="os-keypairs.show", query={"user_id": USER},
              strict=STRICT),
    Operation(method="DELETE", path=PATH + "/{id}", handler=delete, name="os-keypairs.delete", query={"user_id": USER},
              strict=STRICT, status=((1, 202), (TYPED, 204))),
)
