# SPDX-License-Identifier: GPL-3.0-or-later
"""os-quota-sets and os-quota-class-sets: the limits of projects, of users in projects, and the defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.values import (
    TRUTH,
)
from magnetar_control.api.values import Number, Wrapped
from magnetar_control.compute import quotas
from magnetar_control.compute.quotas import INJECTED, NETWORK, RESOURCES
from magnetar_core.values import Text

PATH, CLASS_PATH = "/os-quota-sets/{id}", "/os-quota-class-sets/{id}"
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


def _set(call: Call, limits: quotas.Limits) -> dict[str, Any]:
    return View(call, FIELDS).document(limits)


def show(call: Call) -> dict[str, Any]:
    """GET /os-quota-sets/{id}."""
    project = call.params["id"]
    return {"quota_set": {"id": project, **_set(call, quotas.show(call, project, call.query.get("user_id")))}}


def defaults(call: Call) -> dict[str, Any]:
    """GET …/defaults: what the project would have if nothing were set for it."""
    project = call.params["id"]
    return {"quota_set": {"id": project, **_set(call, quotas.show_defaults(call, project))}}


def detail(call: Call) -> dict[str, Any]:
    """GET …/detail: limits with what is used."""
    project = call.params["id"]
    limits, used = quotas.show_detail(call, project, call.query.get("user_id"))
    return {"quota_set": {"id": project, **{
        name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0}
        for name, limit in _set(call, limits).items()}}}


def update(call: Call) -> dict[str, Any]:
    """PUT /os-quota-sets/{id}."""
    want = {name: limit for name, limit in call.body.items() if name != "force"}
    return {"quota_set": _set(call, quotas.update(call, call.params["id"], want, call.query.get("user_id"),
                                                  force=call.body.get("force", False)))}


def reset(call: Call) -> None:
    """DELETE /os-quota-sets/{id}: the defaults count again."""
    quotas.reset(call, call.params["id"], call.query.get("user_id"))


def _class_set(call: Call, limits: quotas.Limits) -> dict[str, Any]:
    return View(call, FIELDS, "show_class").document(limits)


def show_class(call: Call) -> dict[str, Any]:
    """GET /os-quota-class-sets/{id}."""
    name = call.params["id"]
    return {"quota_class_set": {"id": name, **_class_set(call, quotas.show_class(call, name))}}


def update_class(call: Call) -> dict[str, Any]:
    """PUT /os-quota-class-sets/{id}."""
    return {"quota_class_set": _class_set(call, quotas.update_class(call, call.params["id"], call.body))}


def _row(method: str, path: str, handler: Callable[[Call], Any], name: str, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=name, **more)


_USER = {"user_id": Query(value=Text(1, 255))}
OPERATIONS = (
    _row("GET", PATH, show, "os-quota-sets.show", query=_USER, strict=75),
    _row("GET", PATH + "/detail", detail, "os-quota-sets.detail.list", query=_USER, strict=75),
    _row("GET", PATH + "/defaults", defaults, "os-quota-sets.defaults.list", use=quotas.show_defaults),
    _row("PUT", PATH, update, "os-quota-sets.update", query=_USER, strict=75,
         body=Wrapped("quota_set", FIELDS.body("update"))),
    _row("DELETE", PATH, reset, "os-quota-sets.delete", query=_USER, strict=75, status=202),
    _row("GET", CLASS_PATH, show_class, "os-quota-class-sets.show", use=quotas.show_class, strict=102),
    _row("PUT", CLASS_PATH, update_class, "os-quota-class-sets.update", use=quotas.update_class,
         body=Wrapped("quota_class_set", FIELDS.body("update_class"))),
)
