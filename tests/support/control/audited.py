# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a small cloud that the audit reads, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar_control.agents import Agents
from magnetar_control.conductor.periodic.audit_pages import audit_pages
from magnetar_control.conductor.periodic.audit_reader import AuditReader
from magnetar_control.conductor.periodic.audit_state import AuditState, AuditSubjects
from magnetar_control.services import Services
from magnetar_control.store.store import Store


def read_state(store: Store, agents: Agents, services: Services, names: Iterable[str] | None = None) -> AuditState:
    """Return the state of the whole cloud as one page. *names*: the hosts whose agents are queried; by default all."""
    reader = AuditReader(store, agents, services, host_names=names)
    subjects = AuditSubjects()
    for page, _position in audit_pages(reader):
        subjects |= page
    return reader.read_page(subjects)
