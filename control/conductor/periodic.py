# SPDX-License-Identifier: GPL-3.0-or-later
"""Periodic tasks of a conductor: audit and repair, confirming resizes, removing unused images.

By design there is nothing to repair. What there is nevertheless (after a crash between two databases, or an operator's
change) is repaired and logged. Every task may run twice, and in several conductors at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.tables import conductors

from . import confirm_resize, image_cache
from .audit import Finding, findings
from .audit_state import read_state
from .conductor import Conductor
from .host_watch import HostWatch
from .repair import Repairer

log = logging.getLogger(__name__)
#: Seconds between two checks of what is due.
TICK = 1.0
#: Seconds without a heartbeat after which a conductor is down.
SILENT = 15.0


@dataclass(frozen=True)
class Task:
    """*every*: seconds. *alone*: only one conductor of the cell runs it."""

    name: str
    every: float
    run: Callable[[Periodic], Any]
    alone: bool = True


class Periodic:
    """The periodic tasks of one conductor; ``run`` in a thread of its own."""

    def __init__(self, conductor: Conductor, watch: HostWatch | None = None) -> None:
        self.conductor = conductor
        self.repairer = Repairer(conductor, watch or HostWatch(conductor))
        self._due: dict[str, float] = {}
        #: What the audit found last time; only what is found twice is repaired.
        self._before: set[Finding] = set()
        self._reported: set[Finding] = set()

    def run(self) -> None:
        """Until the conductor ends."""
        began = time.monotonic()
        self._due = {task.name: began + task.every for task in TASKS}
        while not self.conductor.over.wait(TICK):
            for task in TASKS:
                if self._due[task.name] <= time.monotonic() and not self.conductor.over.is_set():
                    self._due[task.name] = time.monotonic() + task.every
                    self._run_task(task)

    def _run_task(self, task: Task) -> None:
        try:
            if not task.alone or self.first():
                task.run(self)
        except DBAPIError as error:
            log.warning("%s: %s", task.name, error.orig)
        except Exception:
            log.exception("%s failed; it is done again in %g s", task.name, task.every)

    def first(self) -> bool:
        """Whether this conductor runs the tasks of its cell: it is the first by name of those that are up."""
        database = self.conductor.database
        with database.read() as connection:
            name = connection.execute(select(func.min(conductors.c.holder)).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar()
        return name in (None, self.conductor.holder)

    # Audit and repair

    def audit(self) -> list[Finding]:
        """Run the audit, and repair what the last audit found too; returns these findings."""
        conductor = self.conductor
        mine = [name for name, host in conductor.states.hosts.items() if host.profile.cell_id == conductor.cell.id
                and host.profile.up]
        state = read_state(conductor.store, conductor.agents, conductor.services, mine)
        found = findings(state)
        lasting = [one for one in found if one in self._before]
        self._before = set(found)
        for one in lasting:
            if one not in self._reported:
                log.warning("%s", one.text, extra={"host": one.place})
            self.repairer.repair(state, one)
        self._reported = set(lasting)
        return lasting


def _forget_deliveries(periodic: Periodic) -> None:
    """Forget what was delivered to hosts: it is checked again."""
    periodic.conductor.delivery.known = set()


TASKS = (
    Task("confirming resizes", confirm_resize.LOOK,
         lambda periodic: confirm_resize.confirm_expired(periodic.conductor)),
    Task("audit", 120.0, Periodic.audit),
    Task("looking at hosts again", 3600.0, _forget_deliveries, alone=False),
    Task("removing images from hosts", 3600.0, lambda periodic: image_cache.remove_unused(periodic.conductor)))
