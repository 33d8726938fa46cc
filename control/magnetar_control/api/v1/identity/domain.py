# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind domain."""

from __future__ import annotations

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import assignments
from magnetar_control.services.identity.resources import DOMAINS
from magnetar_core.document import Document
from magnetar_core.kinds import IdentityDomain
from magnetar_core.operations import Operation

from .identity_driver import IdentityDriver


class IdentityDomains(IdentityDriver):
    """The driver of the v1 API for Keystone domains. Callers who are not administrators see only their own domain and
    the domains where they have a role."""

    kind, resource = IdentityDomain, DOMAINS
    in_domain = False

    def visible_ids(self, caller: Caller, connection: Connection) -> set[str]:
        context = caller.context
        return {context.user_domain_id, context.project_domain_id,
                *assignments.role_target_ids(connection, context.user_id, "domain")}

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Delete the domain, even if it is enabled. Keystone's API requires that a domain is disabled first, to prevent
        accidents; this API does not, because a playbook names the domain to remove."""
        self.store(caller).delete(have["id"], enabled_domain=True)
