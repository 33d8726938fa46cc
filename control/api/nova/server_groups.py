# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-groups: servers that the scheduler puts together or apart."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import Limit, size
from magnetar_control.api.values import Anything, Number, Wrapped, record, since
from magnetar_control.compute import quotas as quota
from magnetar_control.store import quotas, server_groups
from magnetar_control.store.servers import text
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import Field
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choice, Choices, ListOf

RULE = "os_compute_api:os-server-groups:"
PATH = "/os-server-groups"
#: Gates.
SHOWS_OWNER, ONE_POLICY, STRICT = 13, 64, 75
POLICY = Choices("anti-affinity", "affinity", Choice("soft-anti-affinity", since="2.15"),
                 Choice("soft-affinity", since="2.15"))
#: The policy that has rules.
RULED = "anti-affinity"


def _shown(call: Call, row: Any, members: list[str]) -> dict[str, Any]:
    shown = {"id": row.id, "name": row.name, "members": members}
    if call.version >= SHOWS_OWNER:
        shown.update(project_id=row.project_id, user_id=row.user_id)
    if call.version >= ONE_POLICY:
        shown.update(policy=row.policy, rules=orjson.loads(row.rules))
    else:
        shown.update(policies=[row.policy], metadata={})
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET /os-server-groups; all_projects counts for administrators, and is ignored for others."""
    everywhere = "all_projects" in call.query and call.context.is_admin
    if everywhere:
        call.check(f"{RULE}index:all_projects")
    with call.cloud.store.api.read() as connection:
        rows = server_groups.page(connection, None if everywhere else call.project, size(call),
                                  call.query.get("offset", 0))
        members = server_groups.members(connection, [row.id for row in rows])
    return {"server_groups": [_shown(call, row, members.get(row.id, [])) for row in rows]}


def _found(call: Call, rule: str) -> Any:
    """The group of the path. Another project's does not exist, but for administrators. Raises ``NotFound`` or 403."""
    id = call.params["id"]
    with call.cloud.store.api.read() as connection:
        row = server_groups.find(connection, id) if len(id) == 36 else None
    if row is None or (row.project_id != call.project and not call.context.is_admin):
        raise NotFound(f"Instance group {id[:80]} could not be found.")
    call.cloud.policy.check(RULE + rule, call.context, row.project_id)
    return row


def show(call: Call) -> dict[str, Any]:
    """GET /os-server-groups/{id}."""
    row = _found(call, "show")
    with call.cloud.store.api.read() as connection:
        members = server_groups.members(connection, [row.id])
    return {"server_group": _shown(call, row, members.get(row.id, []))}


BODY = Wrapped("server_group", record({
    "name": Field(NAME, "", on="create", required=True),
    "policies": since("2.1", ListOf(POLICY, 1), until="2.63", required=True),
    "policy": since("2.64", POLICY, required=True),
    "rules": since("2.64", record({"max_server_per_host": Number(1)}))}))


def create(call: Call) -> dict[str, Any]:
    """POST /os-server-groups."""
    want = call.body
    if want.get("policies") == []:
        raise InvalidField("server_group.policies", "must have exactly one policy")
    policy, rules = want.get("policy") or want["policies"][0], want.get("rules") or {}
    if rules and policy != RULED:
        raise InvalidRequest(f"Only {RULED} policy supports rules.")
    most, id = quota.limits(call, user=call.context.user_id)["server_groups"], str(uuid.uuid4())
    with call.cloud.store.api.write() as connection:
        if most >= 0:
            quotas.turn(connection, f"server groups {call.project}")
        quota.check_groups(most, server_groups.count(connection, call.project))
        server_groups.make(connection, id=id, name=want["name"], project_id=call.project, policy=policy,
                           user_id=call.context.user_id, rules=text(rules))
        row = server_groups.find(connection, id)
    return {"server_group": _shown(call, row, [])}


def delete(call: Call) -> Answer:
    """DELETE /os-server-groups/{id}."""
    row = _found(call, "delete")
    with call.cloud.store.api.write() as connection:
        gone = server_groups.remove(connection, row.id)
    if not gone:
        raise NotFound(f"Instance group {row.id} could not be found.")
    return Answer(None, 204)


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="os-server-groups.list", rule=f"{RULE}index", strict=STRICT,
              query={"all_projects": Query(value=Anything()), "limit": Query(value=Limit()),
                     "offset": Query(value=Limit())}),
    Operation(method="POST", path=PATH, handler=create, name="os-server-groups.create", rule=f"{RULE}create",
              body=BODY),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="os-server-groups.show", rule=f"{RULE}show",
              strict=102),
    Operation(method="DELETE", path=PATH + "/{id}", handler=delete, name="os-server-groups.delete",
              rule=f"{RULE}delete", status=204),
)
