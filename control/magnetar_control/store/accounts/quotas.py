# SPDX-License-Identifier: GPL-3.0-or-later
"""The quota limits of all services that administrators set: for projects, for users in projects, and for quota classes
(the defaults). Also locks and checks for quotas; the result of a check stays valid until the transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from sqlalchemy import Connection, bindparam, delete, or_, select

from magnetar_control.store.engine.database import INSERT, advisory_lock
from magnetar_control.store.engine.tables import quotas

#: Name of the quota class of the default limits, and of their holder.
DEFAULT = "default"
#: Limits, or the used amounts, by resource; -1 means no limit.
Limits = dict[str, int]
_FOUND = select(quotas).where(quotas.c.project_id.in_(bindparam("holders", expanding=True)))


def user_quota_holder(project: str, user: str) -> str:
    """Return the key (quota holder) of a user in a project in the table of limits."""
    return f"{project}/{user}"


def class_quota_holder(name: str) -> str:
    """Return the key (quota holder) of the quota class *name* in the table of limits. Only the class ``default`` has an
    effect, as in Nova."""
    return name if name == DEFAULT else f"class/{name}"


def fetch_quota_limits(connection: Connection, holders: Iterable[str]) -> dict[str, Limits]:
    """Return the stored limits of *holders*: {holder: {resource: limit}}. A holder is a project id, or a key from
    ``user_quota_holder`` or ``class_quota_holder``."""
    limits: dict[str, Limits] = {}
    for row in connection.execute(_FOUND, {"holders": list(holders)}).all():
        limits.setdefault(row.project_id, {})[row.resource] = row.limit
    return limits


def merge_quota_limits(defaults: Mapping[str, int], limits_by_holder: Mapping[str, Mapping[str, int]],
                       *holders: str) -> Limits:
    """Return the effective limit of each resource in *defaults*: the limit of the first of *holders* that has one,
    otherwise the default. *limits_by_holder*: the stored limits, from ``fetch_quota_limits``."""
    limits = dict(defaults)
    for holder in reversed(holders):
        limits.update((name, limit) for name, limit in limits_by_holder.get(holder, {}).items() if name in limits)
    return limits


def fetch_effective_limits(connection: Connection, defaults: Mapping[str, int], *holders: str) -> Limits:
    """Return the effective limit of each resource in *defaults*: the stored limit of the first of *holders* (as in
    ``fetch_quota_limits``) that has one, otherwise the default."""
    return merge_quota_limits(defaults, fetch_quota_limits(connection, holders), *holders)


def fetch_limited_projects(connection: Connection, resources: Collection[str]) -> list[str]:
    """Return the sorted ids of the projects with a stored limit for at least one of *resources*."""
    query = select(quotas.c.project_id).where(quotas.c.resource.in_(resources), quotas.c.project_id != DEFAULT,
                                              ~quotas.c.project_id.contains("/"))
    return list(connection.execute(query.distinct().order_by(quotas.c.project_id)).scalars())


def lock_quota(connection: Connection, quota_key: str) -> None:
    """Lock a quota until the transaction ends, so that other transactions which check the same quota wait. *quota_key*:
    the name of the lock: a project, or an owner and a type of objects."""
    advisory_lock(connection, "quota", quota_key)


def has_room(connection: Connection, limit: int, count: Callable[[], int], quota_key: str | None) -> bool:
    """Return whether *count*, a function that counts the used amount, returns less than *limit* (negative: unlimited).
    *quota_key*: first lock this quota (see ``lock_quota``), so that concurrent callers wait; ``None``: do not lock."""
    if limit < 0:
        return True
    if quota_key is not None:
        lock_quota(connection, quota_key)
    return count() < limit


def upsert_quota_rows(connection: Connection, holder: str, limits: Mapping[str, int]) -> None:
    """Store *limits*, by resource, for the quota holder *holder* (a project id, or a key from ``user_quota_holder`` or
    ``class_quota_holder``). Its other limits do not change."""
    for resource, limit in limits.items():
        query = INSERT[connection.dialect.name](quotas).values(project_id=holder, resource=resource, limit=limit)
        connection.execute(query.on_conflict_do_update(
            index_elements=["project_id", "resource"], set_={"limit": query.excluded.limit}))


def remove_quota_rows(connection: Connection, resources: Collection[str], project: str,
                      user: str | None = None) -> None:
    """Delete the stored limits for *resources* of *user* in *project*. Without *user*: of the project and of all its
    users."""
    holder_condition = quotas.c.project_id == user_quota_holder(project, user) if user is not None else or_(
        quotas.c.project_id == project, quotas.c.project_id.startswith(project + "/", autoescape=True))
    connection.execute(delete(quotas).where(holder_condition, quotas.c.resource.in_(resources)))
