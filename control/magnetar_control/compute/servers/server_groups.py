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
from magnetar_control.store.servers.server_groups import ServerGroupRow
from magnetar_control.store.servers.servers import json_text
from magnetar_core.errors import InvalidRequest, NotFound

RULE = "os_compute_api:os-server-groups:"
#: The policy that has rules.
RULED = "anti-affinity"


class GroupView(NamedTuple):
    """A server group's row, and the uuids of its servers."""

    row: ServerGroupRow
    members: Sequence[str]


@use_case(f"{RULE}index")
def list_server_groups(caller: Caller, limit: int, offset: int = 0, *, all_projects: bool = False) -> list[GroupView]:
    """Return at most *limit* server groups of the caller's project, after skipping *offset*. *all_projects*: return the
    groups of all projects; ignored unless the caller is an administrator."""
    everywhere = all_projects and caller.is_admin
    if everywhere:
        caller.check_policy(f"{RULE}index:all_projects")
    with caller.cloud.store.api.read() as connection:
        rows = server_groups.fetch_server_group_rows(connection, None if everywhere else caller.project, limit, offset)
        members = server_groups.fetch_group_members(connection, [row.id for row in rows])
    return [GroupView(row, members.get(row.id, [])) for row in rows]


@use_case(f"{RULE}show")
def show_server_group(caller: Caller, id: str) -> GroupView:
    """Return the server group *id*. Raises ``NotFound``."""
    row = _find_server_group(caller, id, "show")
    return GroupView(row, caller.fetch(server_groups.fetch_group_members, [row.id]).get(row.id, []))


def _find_server_group(caller: Caller, id: str, action: str) -> Any:
    """Return the row of the server group *id*, after checking the policy rule of *action*. Raises ``Forbidden``. Raises
    ``NotFound``, also for a group of another project unless the caller is an administrator."""
    row = caller.fetch(server_groups.fetch_server_group_row, id) if len(id) == 36 else None
    if row is None or (row.project_id != caller.project and not caller.is_admin):
        raise _group_missing(id)
    caller.check_policy(RULE + action, Owner(row.project_id))
    return row


def _group_missing(id: str) -> NotFound:
    return NotFound(f"Instance group {id[:80]} could not be found.")


@use_case(f"{RULE}create")
def check_server_group(caller: Caller, policy: str, rules: Mapping[str, int], *, replaced: bool = False) -> None:
    """Check that the caller may create a server group with this *policy* and *rules*; nothing is changed. *replaced*:
    the group replaces an existing one, so the quota is not checked. Raises ``InvalidRequest``, ``Forbidden``."""
    _check_rules(policy, rules)
    most = quotas.quota_limits(caller, user=caller.context.user_id)["server_groups"]
    if not replaced:
        with caller.cloud.store.api.read() as connection:
            quotas.check_group_quota(connection, caller.project, most, locked=False)


def _check_rules(policy: str, rules: Mapping[str, int] | None) -> None:
    if rules and policy != RULED:
        raise InvalidRequest(f"Only {RULED} policy supports rules.")


@use_case(f"{RULE}create")
def create_server_group(caller: Caller, name: str, policy: str, rules: Mapping[str, int] | None = None) -> GroupView:
    """Create and return a server group. *rules*: {"max_server_per_host": number}, only for the policy anti-affinity.
    Raises ``InvalidRequest``, ``Forbidden``."""
    _check_rules(policy, rules)
    most, id = quotas.quota_limits(caller, user=caller.context.user_id)["server_groups"], str(uuid.uuid4())
    with caller.cloud.store.api.write() as connection:
        quotas.check_group_quota(connection, caller.project, most)
        server_groups.insert_server_group_row(connection, id=id, name=name, project_id=caller.project, policy=policy,
                                              user_id=caller.context.user_id, rules=json_text(rules or {}))
        row: Any = server_groups.fetch_server_group_row(connection, id)
        caller.notify(connection, lambda: payloads.server_group_payload(row), "server_group.create")
        return GroupView(row, [])


@use_case(f"{RULE}delete")
def delete_server_group(caller: Caller, id: str) -> None:
    """Delete the server group *id*. Its servers are not deleted. Raises ``NotFound``."""
    row = _find_server_group(caller, id, "delete")
    with caller.cloud.store.api.write() as connection:
        caller.notify(connection, lambda: payloads.server_group_payload(
            row, server_groups.fetch_group_members(connection, [row.id]).get(row.id, ())), "server_group.delete")
        if not server_groups.remove_server_group_row(connection, row.id):
            raise _group_missing(row.id)
