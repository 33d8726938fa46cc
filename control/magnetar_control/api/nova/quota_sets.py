# SPDX-License-Identifier: GPL-3.0-or-later
"""os-quota-sets and os-quota-class-sets: the limits of projects, of users in projects, and the defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.values import Number, Wrapped
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.accounts.quotas import INJECTED, NETWORK, RESOURCES
from magnetar_core.values import Text

from .fields import ApiField, Fields, View
from .operation import Call, Query, body_as, operation_factory
from .values import TRUTH

GROUPS = ("server_groups", "server_group_members")
LIMIT = Number(-1)
#: update, show: of projects; update_class, show_class: of quota classes.
FIELDS = Fields(
    *(ApiField(name, LIMIT, takes="update update_class", shows="show") for name in RESOURCES),
    *(ApiField(name, shows="show_class", since=50 if name in GROUPS else 1) for name in RESOURCES),
    *(ApiField(name, LIMIT, takes="update", shows="show", until=35) for name in NETWORK),
    *(ApiField(name, LIMIT, takes="update_class", shows="show_class", until=49) for name in NETWORK),
    *(ApiField(name, LIMIT, takes="update update_class", shows="show show_class", until=56) for name in INJECTED),
    ApiField("force", TRUTH, takes="update"),
    mapping=True)


def _with_id(key: str, answer: str) -> Callable[[Call, quotas.Limits], dict[str, Any]]:
    return lambda call, limits: {key: {"id": call.params["id"], **View(call, FIELDS, answer).document(limits)}}


def _detail(call: Call, limits_and_usage: tuple[quotas.Limits, quotas.Limits]) -> dict[str, Any]:
    """Return the limit and the usage of each resource: GET /os-quota-sets/{id}/detail. *limits_and_usage*: two
    mappings, limits by resource and usage by resource."""
    limits, used = limits_and_usage
    return {"quota_set": {"id": call.params["id"], **{
        name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0}
        for name, limit in View(call, FIELDS).document(limits).items()}}}


def _limits(call: Call) -> dict[str, Any]:
    return {"user": call.query.get("user_id"), "force": call.body.get("force", False),
            "want": {name: limit for name, limit in call.body.items() if name != "force"}}


_SHOWN = _with_id("quota_set", "show")
_OF_USER = {"query": {"user_id": Query(value=Text(1, 255))}, "strict": 75,
            "given": lambda call: {"user": call.query.get("user_id")}}
_row = operation_factory("os-quota-sets", "/os-quota-sets/{id}")
_class = operation_factory("os-quota-class-sets", "/os-quota-class-sets/{id}")
OPERATIONS = (
    _row("GET", "", "show", quotas.show_quotas, shown=_SHOWN, **_OF_USER),
    _row("GET", "/detail", "detail.list", quotas.show_quota_detail, shown=_detail, **_OF_USER),
    _row("GET", "/defaults", "defaults.list", quotas.show_default_quotas, shown=_SHOWN),
    _row("PUT", "", "update", quotas.update_quotas, body=Wrapped("quota_set", FIELDS.body("update")),
         shown=FIELDS.one("quota_set"), **{**_OF_USER, "given": _limits}),
    _row("DELETE", "", "delete", quotas.reset_quotas, status=202, **_OF_USER),
    _class("GET", "", "show", quotas.show_quota_class, shown=_with_id("quota_class_set", "show_class"), strict=102),
    _class("PUT", "", "update", quotas.update_quota_class, body=Wrapped("quota_class_set", FIELDS.body("update_class")),
           given=body_as("want"), shown=FIELDS.one("quota_class_set", "show_class")),
)
