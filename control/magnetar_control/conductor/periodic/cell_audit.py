# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of a cell by one of its conductors, in small parts: one run at a time.

A run reads, in this order: the subjects of the last run's findings (the suspects), stuck servers, servers with a new
action, and then some pages of a slow pass over the whole cell. A small cell is read as a whole in each run.

The progress is stored when the next run has read the suspects again. If a conductor dies before that, its successor
reads the same pages once more.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.servers import audit_marks
from magnetar_control.store.servers.audit_marks import AuditMark

from .audit_checks import findings_of_checks
from .audit_pages import PAGE, audit_pages, merge_subjects, stuck_servers
from .audit_reader import AuditReader
from .audit_state import AuditState, AuditSubjects, Finding
from .repair import REPAIRS

log = logging.getLogger(__name__)
#: The most pages of changed servers in a run; the most pages of the slow pass, most of which are empty.
CHANGED_PAGES, SLOW_PAGES = 10, 20


class CellAudit:
    """The periodic audit of a conductor's cell, which compares the database with services and hosts. *repair*: a
    function that repairs a finding, if its kind can be repaired."""

    def __init__(self, conductor: Conductor, repair: Callable[[AuditState, Finding], None]) -> None:
        self.conductor, self.repair = conductor, repair
        #: Findings of the last run, each with the subjects of a page that shows it again; only lasting ones count.
        self.suspects: Mapping[Finding, AuditSubjects] = {}
        self.reported: set[Finding] = set()
        #: Servers that had an action when they were read as changed. They are read again.
        self._busy: frozenset[str] = frozenset()
        #: The progress, and the progress as stored.
        self._mark: AuditMark | None = None
        self._stored: AuditMark | None = None

    def run_next_part(self, rest: Callable[[float], object]) -> list[Finding]:
        """Run the next part of the audit: read some pages (batches of servers and hosts), and repair the findings that
        the previous run also had. Return these findings. *rest*: a function that is called after each page with the
        seconds that the page took, and may pause."""
        conductor = self.conductor
        up = [name for name, host in conductor.states.hosts.items() if host.profile.cell_id == conductor.cell.id
              and host.profile.up]
        run = AuditRun(self, AuditReader(conductor.store, conductor.agents, conductor.services,
                                         [conductor.cell.id], up), rest)
        mark = self._load_mark()
        try:
            for subjects in merge_subjects(self.suspects.values()):
                run.read_page(subjects, fresh=False)
            self._store_mark(mark)
            run.read_page(stuck_servers(run.reader))
            mark = self._read_changed(run, mark)
            mark = self._read_on(run, mark)
        finally:
            self.suspects, self.reported, self._mark = run.suspects(), set(run.lasting), mark
        return list(run.lasting)

    def _load_mark(self) -> AuditMark:
        """Return the position of the audit in the cell. At the first call, or if another conductor has changed the
        stored position, return the stored position, or the beginning if none is stored. Otherwise return this
        conductor's own position."""
        with self.conductor.database.read() as connection:
            stored = audit_marks.fetch_audit_mark(connection)
            if self._mark is None or stored != self._stored:
                self._mark = stored or audit_marks.first_audit_mark(connection)
        self._stored = stored
        return self._mark

    def _store_mark(self, mark: AuditMark) -> None:
        if mark != self._stored:
            with self.conductor.database.write() as connection:
                audit_marks.save_audit_mark(connection, mark)
            self._stored = mark

    def _read_changed(self, run: AuditRun, mark: AuditMark) -> AuditMark:
        """Audit the servers with actions that began since the last run, and the servers whose action was unfinished in
        the last run. Return the new position of the audit."""
        busy: set[str] = set()
        ids = set(self._busy)
        for _page in range(CHANGED_PAGES):
            with self.conductor.database.read() as connection:
                acted = audit_marks.fetch_acted_servers(connection, mark.action_id, PAGE)
            state = run.read_page(AuditSubjects(frozenset(ids.union(id for _number, id in acted))))
            busy.update(id for id, row in state.servers.items() if row.busy)
            ids = set()
            if acted:
                mark = mark._replace(action_id=acted[-1][0])
            if len(acted) < PAGE:
                break
        self._busy = frozenset(sorted(busy)[:PAGE])
        return mark

    def _read_on(self, run: AuditRun, mark: AuditMark) -> AuditMark:
        """Continue the pass over the whole cell from the position *mark* until one page of servers is read. Return the
        new position."""
        count = 0
        for subjects, position in itertools.islice(audit_pages(run.reader, mark.position), SLOW_PAGES):
            count += len(run.read_page(subjects).ids)
            if self.conductor.over.is_set():
                break
            mark = mark._replace(position=position)
            if count >= PAGE:
                break
        return mark


class AuditRun:
    """One run of the periodic audit of a cell (``CellAudit``). ``found``: its findings, each with the servers or hosts
    that the next run reads again to confirm or drop the finding. ``lasting``: the findings that the previous run had
    too."""

    def __init__(self, audit: CellAudit, reader: AuditReader, rest: Callable[[float], object]) -> None:
        self.audit, self.reader, self.rest = audit, reader, rest
        self.found: dict[Finding, AuditSubjects] = {}
        self.lasting: dict[Finding, None] = {}

    def read_page(self, subjects: AuditSubjects, *, fresh: bool = True) -> AuditState:
        """Audit the servers and hosts in *subjects*, repair the findings that the previous run had too, and return the
        data that were read. *fresh*: ``False`` if the servers and hosts are read only because of the previous run's
        findings; in this case, only findings that can be repaired are checked again in the next run."""
        if not subjects or self.audit.conductor.over.is_set():
            return AuditState()
        began = time.monotonic()
        state = self.reader.read_page(subjects)
        for finding in findings_of_checks(state):
            if finding in self.audit.suspects and finding not in self.lasting:
                self.lasting[finding] = None
                if finding not in self.audit.reported:
                    log.warning("%s", finding.text, extra={"host": finding.place})
                self.audit.repair(state, finding)
            if fresh or finding.kind in REPAIRS:
                self.found[finding] = state.subjects_of(finding)
        self.rest(time.monotonic() - began)
        return state

    def suspects(self) -> dict[Finding, AuditSubjects]:
        """Return the findings to check again in the next run, each with the servers or hosts to read for this. New
        findings come first. The result is limited to one page of servers and one page of hosts; the pass over the whole
        cell finds the other differences again."""
        suspects: dict[Finding, AuditSubjects] = {}
        names: set[str] = set()
        for finding, subjects in sorted(self.found.items(), key=lambda item: item[0] in self.lasting):
            more = names | subjects.hosts
            if len(suspects) < PAGE and (more == names or not names or sum(
                    host.servers for name in more if (host := self.reader.hosts.get(name))) <= PAGE):
                suspects[finding], names = subjects, more
        return suspects
