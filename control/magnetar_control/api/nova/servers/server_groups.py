# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-groups: servers that the scheduler places together or apart."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.fields import ApiField, Fields
from magnetar_control.api.nova.operation import Call, Query, operation_factory
from magnetar_control.api.nova.paging import Limit, page_size
from magnetar_control.api.nova.values import body_object
from magnetar_control.api.values import Anything, Number, Wrapped
from magnetar_control.compute.servers import server_groups
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choice, Choices, ListOf

POLICY = Choices("anti-affinity", "affinity", Choice("soft-anti-affinity", since="2.15"),
                 Choice("soft-affinity", since="2.15"))
FIELDS = Fields(
    ApiField("id", name="row.id", shows="show"),
    ApiField("name", NAME, takes="create", required="create"),
    ApiField("name", name="row.name", shows="show"),
    ApiField("members", shows="show"),
    ApiField("project_id", name="row.project_id", shows="show", since=13),
    ApiField("user_id", name="row.user_id", shows="show", since=13),
    ApiField("policies", ListOf(POLICY, 1), takes="create", required="create", until=63),
    ApiField("policies", shows="show", until=63, show=lambda _view, group: [group.row.policy]),
    ApiField("metadata", shows="show", until=63, show=lambda _view, _group: {}),
    ApiField("policy", POLICY, takes="create", required="create", since=64),
    ApiField("policy", name="row.policy", shows="show", since=64),
    ApiField("rules", body_object({"max_server_per_host": Number(1)}), takes="create", since=64),
    ApiField("rules", shows="show", since=64, show=lambda _view, group: orjson.Fragment(group.row.stored.rules)))


def _page(call: Call) -> dict[str, Any]:
    """Return the keyword arguments ``limit``, ``offset`` and ``all_projects`` of the function that lists the server
    groups, from the query. ``all_projects`` has an effect for administrators only."""
    return {"limit": page_size(call), "offset": call.query.get("offset", 0),
            "all_projects": "all_projects" in call.query}


def _group_arguments(call: Call) -> dict[str, Any]:
    want = call.body
    if want.get("policies") == []:
        raise InvalidField("server_group.policies", "must have exactly one policy")
    return {"name": want["name"], "policy": want.get("policy") or want["policies"][0], "rules": want.get("rules")}


ONE = FIELDS.one("server_group")
_row = operation_factory("os-server-groups", "/os-server-groups")
OPERATIONS = (
    _row("GET", "", "list", server_groups.list_server_groups, given=_page, shown=FIELDS.many("server_groups"),
         strict=75, query={
        "all_projects": Query(value=Anything()), "limit": Query(value=Limit()), "offset": Query(value=Limit())}),
    _row("POST", "", "create", server_groups.create_server_group, body=Wrapped("server_group", FIELDS.body("create")),
         given=_group_arguments, shown=ONE),
    _row("GET", "/{id}", "show", server_groups.show_server_group, shown=ONE, strict=102),
    _row("DELETE", "/{id}", "delete", server_groups.delete_server_group, status=204),
)
