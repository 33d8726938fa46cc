# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that an administrator's change does not end the login of that administrator. The Identity API has no such
checks, as Keystone has none; playbooks get them, because a playbook that locks itself out cannot undo its change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from magnetar_control.services import Context
from magnetar_core.errors import OwnLogin

from . import assignments

ADMIN = "admin"


def check_own_scope(context: Context, resource_type: str, id: str, verb: str) -> None:
    """Raise ``OwnLogin`` if the caller is logged in with the user, project or domain *id*, which therefore must not be
    deleted or disabled. *resource_type*: user, project or domain. *verb*: the refused change, for the error message."""
    own_ids = {"user": (context.user_id,), "project": (context.project_id,),
               "domain": (context.user_domain_id, context.project_domain_id)}
    if id in own_ids.get(resource_type, ()):
        raise OwnLogin(f"You are logged in with this {resource_type}, so to {verb} it would lock you out. Log in as an "
                       f"administrator with another {resource_type}, and repeat the task there.")


def check_own_admin_role(connection: Connection, context: Context,
                         removed: Callable[[Mapping[Any, Any]], bool]) -> None:
    """Raise ``OwnLogin`` if the caller is logged in with the role admin, and the removal of role assignments would take
    this role away. *removed*: returns whether the role assignment in a row will be removed."""
    def keeps_admin(condition: Callable[[Mapping[Any, Any]], bool]) -> bool:
        return assignments.keeps_role(connection, context.user_id, context.project_id or "", ADMIN, condition)

    if keeps_admin(lambda _row: False) and not keeps_admin(removed):
        raise OwnLogin(f"This would take the role admin in the project {context.project_name} from you, and you are "
                       "logged in with it. Log in as another administrator, and repeat the task there.")
