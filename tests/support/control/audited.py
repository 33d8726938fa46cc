# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit finds in a small cloud."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar_control.agents import Agents
from magnetar_control.conductor.periodic.audit_pages import audit_pages
from magnetar_control.conductor.periodic.audit_reader import AuditReader
from magnetar_control.conductor.periodic.audit_state import AuditState, AuditSubjects
from magnetar_control.services import Services
from magnetar_control.store.store import Store


def read_state(store: Store, agents: Agents, services: Services, names: Iterable[str] | None = None) -> AuditState:
    """Return everything in one page. *names*: the hosts whose agents are asked; all by default."""
    reader = AuditReader(store, agents, services, host_names=names)
    subjects = AuditSubjects()
    for page, _position in audit_pages(reader):
        subjects |= page
    return reader.read_page(subjects)
