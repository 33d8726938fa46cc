# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit: it compares databases, services and hosts, and finds whatever is stuck, lost or left behind.

``audit_pages`` yields the pages of a cell or a cloud, ``AuditReader`` reads one page, and ``CHECKS`` are pure functions
of that page. A finding counts when two readings have it: a busy cloud changes while it is read. An idle cloud has no
findings. ``CellAudit`` is the audit by a conductor, ``run_with_state`` the audit by the command."""

from __future__ import annotations

import time
from typing import NamedTuple

from magnetar_control.agents import Agents
from magnetar_control.services import Services
from magnetar_control.store.store import Store

from .audit_checks import findings_of_checks
from .audit_pages import audit_pages, merge_subjects
from .audit_reader import AuditReader
from .audit_state import AuditSubjects, Finding


class AuditReport(NamedTuple):
    """How much one run of ``magnetar audit`` has compared: the numbers of audited servers and hosts, and the names of
    hosts (*silent_hosts*) and ids of cells (*silent_cells*) that did not answer."""

    server_count: int
    host_count: int
    silent_hosts: set[str]
    silent_cells: set[str]


def run_with_state(store: Store, agents: Agents, services: Services,
                   pause: float = 2.0) -> tuple[list[Finding], AuditReport]:
    """Audit all cells twice, *pause* seconds apart, and return (findings that occur both times, report). The repetition
    excludes temporary differences during running actions. The second audit reads only the servers and hosts about which
    the first audit has findings."""
    reader = AuditReader(store, agents, services)
    suspects: dict[Finding, AuditSubjects] = {}
    for subjects, _position in audit_pages(reader):
        if subjects:
            state = reader.read_page(subjects)
            suspects |= {finding: state.subjects_of(finding) for finding in findings_of_checks(state)}
    report = AuditReport(reader.servers_seen, len(reader.hosts.keys() - reader.silent_hosts), reader.silent_hosts,
                         reader.silent_cells)
    if not suspects:
        return [], report
    time.sleep(pause)
    reader = AuditReader(store, agents, services)
    findings = {finding: None for subjects in merge_subjects(suspects.values())
                for finding in findings_of_checks(reader.read_page(subjects)) if finding in suspects}
    report.silent_hosts.update(reader.silent_hosts)
    report.silent_cells.update(reader.silent_cells)
    return list(findings), report
