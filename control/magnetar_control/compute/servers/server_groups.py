# SPDX-License-Identifier: GPL-3.0-or-later
"""Server groups: servers that the scheduler puts together or apart."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.notifications import payloads
from magnetar_control.store.servers import server_groups
from magnetar_control.store.servers.servers import text
from magnetar_core.errors import InvalidRequest, NotFound

RULE = "os_compute_api:os-server-groups:"
#: The policy that has rules.
RULED = "anti-affinity"


class GroupView(NamedTuple):
    """A row of the table, and the uuids of the group's servers."""

    row: Any
    members: Sequence[str]


@use_case(f"{RULE}index")
def page(caller: Caller, limit: int, offset: int = 0, *, all_projects: bool = False) -> list[GroupView]:
    """Groups of the project. *all_projects*: of all; only administrators' wish for it counts."""
    everywhere = all_projects and caller.is_admin
    if everywhere:
        caller.check_policy(f"{RULE}index:all_projects")
    with caller.cloud.store.api.read() as connection:
        rows = server_groups.page(connection, None if everywhere else caller.project, limit, offset)
        members = server_groups.members(connection, [row.id for row in rows])
    return [GroupView(row, members.get(row.id, [])) for row in rows]


@use_case(f"{RULE}show")
def show(caller: Caller, id: str) -> GroupView:
    """One. Raises ``NotFound``."""
    row = _found(caller, id, "show")
    return GroupView(row, caller.fetch(server_groups.members, [row.id]).get(row.id, []))


def _found(caller: Caller, id: str, what: str) -> Any:
    """The row. Another project's does not exist, but for administrators. Raises ``NotFound`` or ``Forbidden``."""
    row = caller.fetch(server_groups.find, id) if len(id) == 36 else None
    if row is None or (row.project_id != caller.project and not caller.is_admin):
        raise _missing(id)
    caller.check_policy(RULE + what, Owner(row.project_id))
    return row


def _missing(id: str) -> NotFound:
    return NotFound(f"Instance group {id[:80]} could not be found.")


@use_case(f"{RULE}create")
def check(caller: Caller, policy: str, rules: Mapping[str, int], *, replaced: bool = False) -> None:
    """Whether one could be made, in place of another where one is *replaced*; nothing changes. Raises
    ``InvalidRequest``, ``Forbidden``."""
    _check_rules(policy, rules)
    most = quotas.limits(caller, user=caller.context.user_id)["server_groups"]
    if not replaced:
        with caller.cloud.store.api.read() as connection:
            quotas.check_groups(connection, caller.project, most, alone=False)


def _check_rules(policy: str, rules: Mapping[str, int] | None) -> None:
    if rules and policy != RULED:
        raise InvalidRequest(f"Only {RULED} policy supports rules.")


@use_case(f"{RULE}create")
def create(caller: Caller, name: str, policy: str, rules: Mapping[str, int] | None = None) -> GroupView:
    """Make a group. *rules*: max_server_per_host, of the policy anti-affinity. Raises ``InvalidRequest``,
    ``Forbidden``."""
    _check_rules(policy, rules)
    most, id = quotas.limits(caller, user=caller.context.user_id)["server_groups"], str(uuid.uuid4())
    with caller.cloud.store.api.write() as connection:
        quotas.check_groups(connection, caller.project, most)
        server_groups.make(connection, id=id, name=name, project_id=caller.project, policy=policy,
                           user_id=caller.context.user_id, rules=text(rules or {}))
        row: Any = server_groups.find(connection, id)
        caller.notify(connection, lambda: payloads.server_group(row._mapping),  # noqa: SLF001 - SQLAlchemy's name
                      "server_group.create")
        return GroupView(row, [])


@use_case(f"{RULE}delete")
def delete(caller: Caller, id: str) -> None:
    """Delete it; its servers stay. Raises ``NotFound``."""
    row = _found(caller, id, "delete")
    with caller.cloud.store.api.write() as connection:
        caller.notify(connection, lambda: payloads.server_group(
            row._mapping, server_groups.members(connection, [row.id]).get(row.id, ())),  # noqa: SLF001 - its name
            "server_group.delete")
        if not server_groups.remove(connection, row.id):
            raise _missing(row.id)
