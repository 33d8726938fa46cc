# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-groups: servers that the scheduler puts together or apart."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import Limit, size
from magnetar_control.api.nova.values import (
    record,
)
from magnetar_control.api.values import Anything, Number, Wrapped
from magnetar_control.compute import server_groups
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choice, Choices, ListOf

PATH = "/os-server-groups"
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
    ApiField("rules", record({"max_server_per_host": Number(1)}), takes="create", since=64),
    ApiField("rules", shows="show", since=64, show=lambda _view, group: orjson.Fragment(group.row.rules)))


def _shown(call: Call, group: server_groups.ServerGroup) -> dict[str, Any]:
    return {"server_group": View(call, FIELDS).document(group)}


def index(call: Call) -> dict[str, Any]:
    """GET /os-server-groups; all_projects counts for administrators, and is ignored for others."""
    found = server_groups.page(call, size(call), call.query.get("offset", 0), all_projects="all_projects" in call.query)
    return {"server_groups": [*map(View(call, FIELDS).document, found)]}


def show(call: Call) -> dict[str, Any]:
    """GET /os-server-groups/{id}."""
    return _shown(call, server_groups.show(call, call.params["id"]))


def create(call: Call) -> dict[str, Any]:
    """POST /os-server-groups."""
    want = call.body
    if want.get("policies") == []:
        raise InvalidField("server_group.policies", "must have exactly one policy")
    return _shown(call, server_groups.create(call, want["name"], want.get("policy") or want["policies"][0],
                                             want.get("rules")))


def delete(call: Call) -> None:
    """DELETE /os-server-groups/{id}."""
    server_groups.delete(call, call.params["id"])


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, use=server_groups.page, name="os-server-groups.list",
              strict=75, query={"all_projects": Query(value=Anything()), "limit": Query(value=Limit()),
                                "offset": Query(value=Limit())}),
    Operation(method="POST", path=PATH, handler=create, use=server_groups.create,
              name="os-server-groups.create", body=Wrapped("server_group", FIELDS.body("create"))),
    Operation(method="GET", path=PATH + "/{id}", handler=show, use=server_groups.show,
              name="os-server-groups.show", strict=102),
    Operation(method="DELETE", path=PATH + "/{id}", handler=delete, use=server_groups.delete,
              name="os-server-groups.delete", status=204),
)
