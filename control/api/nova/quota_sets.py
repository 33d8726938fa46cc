# SPDX-License-Identifier: GPL-3.0-or-later
"""os-quota-sets and os-quota-class-sets: the limits of projects, of users in projects, and the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.values import TRUTH
from magnetar_control.api.values import Number, Wrapped, record, since
from magnetar_control.compute import quotas as quota
from magnetar_control.compute.quotas import INJECTED, NETWORK, RESOURCES
from magnetar_control.store import quotas
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import Text

RULE = "os_compute_api:os-quota-sets:"
CLASS_RULE = "os_compute_api:os-quota-class-sets:"
PATH, CLASS_PATH = "/os-quota-sets/{id}", "/os-quota-class-sets/{id}"
GROUPS = ("server_groups", "server_group_members")
#: Last versions with what other services keep: of projects, of classes; and with what is injected into guests.
NETWORK_UNTIL, CLASS_NETWORK_UNTIL, INJECTED_UNTIL = 35, 49, 56
STRICT = 75


def _names(version: int, network_until: int) -> list[str]:
    """The resources that a version knows."""
    return [*RESOURCES, *(NETWORK if version <= network_until else ()),
            *(INJECTED if version <= INJECTED_UNTIL else ())]


def _project(call: Call, what: str | None) -> str:
    """The project of the path; the caller must be allowed *what* to it. Raises ``Forbidden``, or 400 for none."""
    id = call.params["id"]
    if what is not None:
        call.cloud.policy.check(RULE + what, call.context, id)
    if not call.cloud.services.identity.project_exists(call.context, id):
        raise InvalidRequest(f"Project ID {id[:255]} is not a valid project.")
    return id


def _set(call: Call, limits: Mapping[str, int]) -> dict[str, Any]:
    return {name: limits[name] for name in _names(call.version, NETWORK_UNTIL)}


def show(call: Call) -> dict[str, Any]:
    """GET /os-quota-sets/{id}."""
    project = _project(call, "show")
    return {"quota_set": {"id": project, **_set(call, quota.limits(call, project, call.query.get("user_id")))}}


def defaults(call: Call) -> dict[str, Any]:
    """GET …/defaults: what the project would have if nothing were set for it."""
    project = _project(call, None)
    return {"quota_set": {"id": project, **_set(call, quota.class_limits(call, quotas.DEFAULT))}}


def _used(call: Call, project: str, user: str | None) -> dict[str, int]:
    return {**quota.used(call, project, user), "server_groups": quota.groups_used(call, project, user)}


def detail(call: Call) -> dict[str, Any]:
    """GET …/detail: limits with what is used."""
    project, user = _project(call, "detail"), call.query.get("user_id")
    limits, used = _set(call, quota.limits(call, project, user)), _used(call, project, user)
    return {"quota_set": {"id": project, **{
        name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0} for name, limit in limits.items()}}}


LIMIT = Number(-1)


def _fields(network_until: int) -> dict[str, Any]:
    return {**dict.fromkeys(RESOURCES, LIMIT),
            **{name: since("2.1", LIMIT, until=f"2.{network_until}") for name in NETWORK},
            **{name: since("2.1", LIMIT, until=f"2.{INJECTED_UNTIL}") for name in INJECTED}}


UPDATE_BODY = Wrapped("quota_set", record({**_fields(NETWORK_UNTIL), "force": TRUTH}))
CLASS_BODY = Wrapped("quota_class_set", record(_fields(CLASS_NETWORK_UNTIL)))


def update(call: Call) -> dict[str, Any]:
    """PUT /os-quota-sets/{id}."""
    project, user = _project(call, "update"), call.query.get("user_id")
    want = {name: limit for name, limit in call.body.items() if name != "force"}
    if not call.body.get("force", False):
        _check(want, _used(call, project, user), quota.limits(call, project) if user else {})
    with call.cloud.store.api.write() as connection:
        quotas.put(connection, quotas.of_user(project, user) if user else project, want)
    return {"quota_set": _set(call, quota.limits(call, project, user))}


def _check(want: Mapping[str, int], used: Mapping[str, int], most: Mapping[str, int]) -> None:
    """New limits are no lower than what is used, and a user's no higher than the project's."""
    for name, limit in want.items():
        if 0 <= limit < used.get(name, 0):
            raise InvalidRequest(f"Quota limit {limit} for {name} must be greater than or equal to already used and "
                                 f"reserved {used[name]}. Say force to set it all the same.")
        if most.get(name, -1) >= 0 and (limit < 0 or limit > most[name]):
            raise InvalidRequest(f"Quota limit {limit} for {name} must be less than or equal to {most[name]}, the "
                                 "limit of "
                                 "the project.")


def reset(call: Call) -> Answer:
    """DELETE /os-quota-sets/{id}: the defaults count again."""
    call.cloud.policy.check(f"{RULE}delete", call.context, call.params["id"])
    with call.cloud.store.api.write() as connection:
        quotas.reset(connection, call.params["id"], call.query.get("user_id"))
    return Answer(None, 202)


def _class_set(call: Call) -> dict[str, Any]:
    limits = quota.class_limits(call, call.params["id"])
    return {name: limits[name] for name in _names(call.version, CLASS_NETWORK_UNTIL)
            if name not in GROUPS or call.version > CLASS_NETWORK_UNTIL}


def show_class(call: Call) -> dict[str, Any]:
    """GET /os-quota-class-sets/{id}; the class ``default`` has the defaults of all projects."""
    return {"quota_class_set": {"id": call.params["id"], **_class_set(call)}}


def update_class(call: Call) -> dict[str, Any]:
    """PUT /os-quota-class-sets/{id}."""
    name = Text(1, 250).check(call.params["id"], "id")
    with call.cloud.store.api.write() as connection:
        quotas.put(connection, quotas.of_class(name), call.body)
    return {"quota_class_set": _class_set(call)}


def _row(method: str, path: str, handler: Callable[[Call], Any], name: str, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=name, **more)


_USER = {"user_id": Query(value=Text(1, 255))}
OPERATIONS = (
    _row("GET", PATH, show, "os-quota-sets.show", query=_USER, strict=STRICT),
    _row("GET", PATH + "/detail", detail, "os-quota-sets.detail.list", query=_USER, strict=STRICT),
    _row("GET", PATH + "/defaults", defaults, "os-quota-sets.defaults.list", rule=f"{RULE}defaults"),
    _row("PUT", PATH, update, "os-quota-sets.update", query=_USER, strict=STRICT, body=UPDATE_BODY),
    _row("DELETE", PATH, reset, "os-quota-sets.delete", query=_USER, strict=STRICT, status=202),
    _row("GET", CLASS_PATH, show_class, "os-quota-class-sets.show", rule=f"{CLASS_RULE}show", strict=102),
    _row("PUT", CLASS_PATH, update_class, "os-quota-class-sets.update", rule=f"{CLASS_RULE}update", body=CLASS_BODY),
)
