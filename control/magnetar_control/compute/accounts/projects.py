# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for a project's id by name or id, for APIs whose users name projects."""

from __future__ import annotations

import re
from collections.abc import Collection

from magnetar_control.compute.caller import Caller
from magnetar_core.errors import InvalidField

#: Ids as Keystone generates them, with or without dashes.
DRAWN = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")


def resolve_project_id(caller: Caller, key: str, field: str, known_ids: Collection[str] = ()) -> str:
    """Return the id of the project whose id or name is *key*.

    Administrators may name all projects, others only their own. If several projects have the name, the project in the
    caller's domain is returned. A *key* that is one of *known_ids*, or has the format of a Keystone id, is returned
    without a check. Raises ``InvalidField`` for any other *key*; *field* is the name of the request's field in this
    error.
    """
    context, identity = caller.context, caller.cloud.services.identity
    if key in (caller.project, *known_ids):
        return key
    if key == context.project_name and not context.is_admin:
        return caller.project
    if context.is_admin:
        if identity.project_exists(context, key):
            return key
        domains = identity.projects_named(context, key)
        named = [id for id, domain in domains.items() if domain == context.project_domain_id] or [*domains]
        if len(named) > 1:
            raise InvalidField(field, f"is the name of {len(named)} projects; use an id of " + ", ".join(sorted(named)),
                               key)
        if named:
            return named[0]
    if DRAWN.fullmatch(key):
        return key
    rule = "there is no project of this id or name" if context.is_admin else \
        "must be the id of a project, or the name of your own: only administrators may name others"
    raise InvalidField(field, rule, key)
