# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind role."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity.own_login import check_own_admin_role
from magnetar_control.services.identity.resources import ROLES
from magnetar_core.document import Document
from magnetar_core.kinds import IdentityRole

from .identity_driver import IdentityDriver


class IdentityRoles(IdentityDriver):
    """The driver of the v1 API for Keystone roles. Only administrators may use it."""

    kind, resource = IdentityRole, ROLES
    in_domain = False
    columns: Mapping[str, str] = {"name": "name", "description": "description"}

    def complete_domain(self, connection: Connection, caller: Caller, want: Document, have: Document | None) -> None:
        """Override ``IdentityDriver.complete_domain``: if *want* has no domain, set ``domain`` and ``_domain_id`` to
        ``None``, because the role then belongs to the whole cloud."""
        if want.get("domain") is None:
            want.update(domain=None, _domain_id=None)
        else:
            super().complete_domain(connection, caller, want, have)

    def check_removal(self, connection: Connection, caller: Caller, have: Document, warnings: list[str],
                      dry_run: bool) -> None:
        super().check_removal(connection, caller, have, warnings, dry_run)
        check_own_admin_role(connection, caller.context, lambda row: bool(row["role_id"] == have["id"]))
